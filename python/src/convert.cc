#include "convert.h"

#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "base/check.h"

namespace nanovllm::python {
namespace {

template <typename... Args>
[[noreturn]] void refuse(nb::exception_type type, fmt::format_string<Args...> format,
                         Args&&... args) {
  throw nb::builtin_exception(type, fmt::format(format, std::forward<Args>(args)...).c_str());
}

nlohmann::ordered_json integer_json(nb::handle value) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (overflow == 0) {
    if (number == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
    return number;
  }
  const unsigned long long large = PyLong_AsUnsignedLongLong(value.ptr());
  if (PyErr_Occurred() == nullptr) return large;
  PyErr_Clear();
  refuse(nb::exception_type::value_error, "{} does not fit into 64 bits.", to_text(nb::str(value)));
}

int32_t token_id(PyObject* item) {
  if (PyBool_Check(item) != 0 || PyIndex_Check(item) == 0) {
    refuse(nb::exception_type::type_error, "a prompt's token ids must be integers, got {}",
           type_of(item));
  }
  const Py_ssize_t id = PyNumber_AsSsize_t(item, nullptr);  // clamps
  if (id == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  if (!std::in_range<int32_t>(id)) {
    refuse(nb::exception_type::value_error, "Token id {} is out of vocabulary", id);
  }
  return static_cast<int32_t>(id);
}

// RecursionError rather than the end of the stack, for a list that holds itself.
struct Deeper {
  Deeper() {
    if (Py_EnterRecursiveCall(" in a value for nanovllm") != 0) throw nb::python_error();
  }
  ~Deeper() { Py_LeaveRecursiveCall(); }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;
};

// The classes of nanovllm.outputs; looked up once, and kept for ever.
struct Classes {
  nb::object module = nb::module_::import_("nanovllm.outputs");
  nb::object request = module.attr("RequestOutput");
  nb::object completion = module.attr("CompletionOutput");
  nb::object logprob = module.attr("Logprob");
  nb::object metrics = module.attr("RequestMetrics");
  nb::object step = module.attr("StepStats");

  static const Classes& get() {
    static const Classes* classes = new Classes;
    return *classes;
  }
};

}  // namespace

std::string type_of(nb::handle value) { return to_text(value.type().attr("__name__")); }

std::string to_text(nb::handle value) {
  Py_ssize_t size = 0;
  if (const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &size); text != nullptr) {
    return {text, static_cast<size_t>(size)};
  }
  const nb::python_error error;  // of half a surrogate pair
  refuse(nb::exception_type::value_error, "a text is not Unicode: {}",
         to_text(nb::str(error.value())));
}

nlohmann::ordered_json to_json(nb::handle value) {
  const Deeper deeper;
  if (value.is_none()) return nullptr;
  if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value);
  if (nb::isinstance<nb::int_>(value)) return integer_json(value);
  if (nb::isinstance<nb::float_>(value)) return nb::cast<double>(value);
  if (nb::isinstance<nb::str>(value)) return to_text(value);
  if (nb::isinstance<nb::dict>(value)) {
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    for (const auto [key, item] : nb::cast<nb::dict>(value)) {
      object[to_text(nb::str(key))] = to_json(item);
    }
    return object;
  }
  if (nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value)) {
    nlohmann::ordered_json array = nlohmann::ordered_json::array();
    for (const nb::handle item : value) array.push_back(to_json(item));
    return array;
  }
  if (nb::hasattr(value, "tolist")) return to_json(value.attr("tolist")());
  refuse(nb::exception_type::type_error, "a value of type {} can't be taken here", type_of(value));
}

std::vector<int32_t> to_token_ids(nb::handle value) {
  nb::object list = nb::borrow(value);
  if (!nb::isinstance<nb::list>(value) && nb::hasattr(value, "tolist")) {
    list = value.attr("tolist")();
  }
  if (PySequence_Check(list.ptr()) == 0 || nb::isinstance<nb::str>(list) ||
      nb::isinstance<nb::bytes>(list)) {
    refuse(nb::exception_type::type_error,
           "a prompt must be a str, a list or an array of token ids, or a dict with \"prompt\" or "
           "\"prompt_token_ids\", got {}",
           type_of(value));
  }
  const nb::tuple items(list);  // what __index__ of its items does can't change it
  std::vector<int32_t> ids;
  ids.reserve(items.size());
  for (const nb::handle item : items) ids.push_back(token_id(item.ptr()));
  return ids;
}

Prompt to_prompt(nb::handle value) {
  if (nb::isinstance<nb::str>(value)) return to_text(value);
  if (!nb::isinstance<nb::dict>(value)) return to_token_ids(value);
  const auto prompt = nb::cast<nb::dict>(value);
  for (const auto [key, item] : prompt) {
    const std::string name = to_text(nb::str(key));
    if (name != "prompt" && name != "prompt_token_ids" && !item.is_none()) {
      refuse(nb::exception_type::value_error,
             "A prompt has \"prompt\" or \"prompt_token_ids\"; \"{}\" can't be served.", name);
    }
  }
  if (prompt.contains("prompt_token_ids") && !nb::object(prompt["prompt_token_ids"]).is_none())
    return to_token_ids(prompt["prompt_token_ids"]);
  if (!prompt.contains("prompt") || !nb::isinstance<nb::str>(prompt["prompt"])) {
    throw nb::type_error("a prompt needs \"prompt\" (a str) or \"prompt_token_ids\" (a list)");
  }
  return to_text(prompt["prompt"]);
}

std::vector<Prompt> to_prompts(const nb::list& values) {
  std::vector<Prompt> prompts;
  prompts.reserve(values.size());
  for (const nb::handle value : values) {
    try {
      prompts.push_back(to_prompt(value));
    } catch (const nb::builtin_exception& error) {
      if (values.size() == 1) throw;
      refuse(error.type(), "prompt {}: {}", prompts.size(), error.what());
    }
  }
  return prompts;
}

nb::list to_python(const std::vector<int32_t>& ids) {
  auto list = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(ids.size())));
  if (!list.is_valid()) throw nb::python_error();
  for (size_t i = 0; i < ids.size(); ++i) {
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLong(ids[i]));
  }
  return list;
}

nb::object to_python(const PositionLogprobs& position) {
  nb::dict dict;
  for (const TokenLogprob& entry : position) {
    nb::object token = nb::none();
    if (entry.decoded_token) token = nb::cast(*entry.decoded_token);
    dict[nb::int_(entry.token_id)] = Classes::get().logprob(entry.logprob, entry.rank, token);
  }
  return dict;
}

nb::list to_python(const std::vector<PositionLogprobs>& positions) {
  nb::list list;
  for (const PositionLogprobs& position : positions) list.append(to_python(position));
  return list;
}

nb::object to_python(const std::vector<std::optional<PositionLogprobs>>& positions) {
  if (positions.empty()) return nb::none();
  nb::list list;
  for (const auto& position : positions) {
    list.append(position ? to_python(*position) : nb::none());
  }
  return list;
}

nb::object to_python(const StopReason& reason) {
  if (const auto* id = std::get_if<int32_t>(&reason)) return nb::int_(*id);
  if (const auto* text = std::get_if<std::string>(&reason)) return nb::cast(*text);
  return nb::none();
}

nb::object to_python(FinishReason reason) {
  if (reason == FinishReason::kNone) return nb::none();
  return nb::str(to_string(reason));
}

nb::object to_python(const RequestMetrics& metrics) {
  return Classes::get().metrics(metrics.time_to_first_step, metrics.time_to_first_token,
                                metrics.time_to_last_token, metrics.time_to_finish);
}

nb::object to_python(const CompletionOutput& completion) {
  nb::object logprobs = nb::none();
  nb::object cumulative = nb::none();
  if (!completion.logprobs.empty()) {
    double sum = 0;
    for (const PositionLogprobs& position : completion.logprobs) sum += position.front().logprob;
    logprobs = to_python(completion.logprobs);
    cumulative = nb::float_(sum);
  }
  return Classes::get().completion(
      completion.index, completion.text, to_python(completion.token_ids), cumulative, logprobs,
      to_python(completion.finish_reason), to_python(completion.stop_reason));
}

nb::object to_python(const RequestOutput& output) {
  nb::list completions;
  for (const CompletionOutput& completion : output.outputs) {
    completions.append(to_python(completion));
  }
  nb::object prompt = nb::none();
  if (!output.prompt.empty()) prompt = nb::cast(output.prompt);
  return Classes::get().request(
      std::to_string(output.request_id), prompt, to_python(output.prompt_token_ids),
      to_python(output.prompt_logprobs), completions, output.finished, to_python(output.metrics),
      output.num_cached_tokens, output.num_preemptions);
}

nb::object exception_of(ErrorCode code, const std::string& message) {
  const bool is_value = code == ErrorCode::kInvalidArgument || code == ErrorCode::kCorruptData ||
                        code == ErrorCode::kUnsupported;
  PyObject* exception = is_value                          ? PyExc_ValueError
                        : code == ErrorCode::kNotFound    ? PyExc_FileNotFoundError
                        : code == ErrorCode::kOutOfMemory ? PyExc_MemoryError
                        : code == ErrorCode::kIo          ? PyExc_OSError
                                                          : PyExc_RuntimeError;
  return nb::borrow(exception)(message);
}

nb::dict to_python(const EngineInfo& info) {
  nb::dict dict;
  dict["architecture"] = info.architecture;
  dict["device"] = info.device;
  dict["dtype"] = info.dtype;
  dict["num_parameters"] = info.num_parameters;
  dict["weight_bytes"] = info.weight_bytes;
  dict["kv_bytes_per_token"] = info.kv_bytes_per_token;
  dict["kv_cache_bytes"] = info.kv_cache_bytes;
  dict["num_kvcache_blocks"] = info.num_kvcache_blocks;
  dict["kvcache_block_size"] = info.kvcache_block_size;
  dict["max_num_batched_tokens"] = info.max_num_batched_tokens;
  dict["max_num_seqs"] = info.max_num_seqs;
  dict["max_model_len"] = info.max_model_len;
  dict["vocab_size"] = info.vocab_size;
  dict["load_seconds"] = info.load_seconds;
  return dict;
}

nb::object to_python(const StepStats& s) {
  return Classes::get().step(s.num_prefill_tokens, s.num_decode_tokens, s.num_running,
                             s.num_waiting, s.num_used_blocks, s.num_total_blocks, s.seconds,
                             s.num_preemptions, s.num_prompt_tokens, s.num_generation_tokens,
                             s.num_prefix_cache_queries, s.num_prefix_cache_hits);
}

}  // namespace nanovllm::python
