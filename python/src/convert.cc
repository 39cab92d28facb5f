#include "convert.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <string>
#include <utility>

#include "base/check.h"
#include "io/json.h"

namespace nanovllm::python {
namespace {

constexpr int kMaxDepth = 500;

class JsonMaker {
 public:
  explicit JsonMaker(bool is_document) : is_document_(is_document) {}

  nlohmann::ordered_json make(nb::handle value, int depth = 0) {
    if (depth > kMaxDepth) {
      PyErr_SetString(PyExc_RecursionError, "a value for nanovllm is nested too deep");
      throw nb::python_error();
    }
    if (value.is_none()) return nullptr;
    if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value);
    if (nb::isinstance<nb::int_>(value)) return integer(value);
    if (nb::isinstance<nb::float_>(value)) return real(value);
    if (nb::isinstance<nb::str>(value)) return to_text(value);
    if (nb::isinstance<nb::dict>(value)) {
      nlohmann::ordered_json object = nlohmann::ordered_json::object();
      for (const auto [key, item] : nb::cast<nb::dict>(value)) {
        std::string name = to_text(nb::str(key));
        nlohmann::ordered_json member = make_at(name, item, depth);
        object[std::move(name)] = std::move(member);
      }
      return object;
    }
    if (nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value)) {
      nlohmann::ordered_json array = nlohmann::ordered_json::array();
      for (const nb::handle item : value) {
        array.push_back(make_at(is_document_ ? std::to_string(array.size()) : "", item, depth));
      }
      return array;
    }
    if (nb::hasattr(value, "tolist")) return make(value.attr("tolist")(), depth + 1);
    if (is_document_ && nb::hasattr(value, "model_json_schema")) {
      refuse(nb::exception_type::type_error,
             "a pydantic model can't be taken here; give its schema, model_json_schema()");
    }
    refuse(nb::exception_type::type_error, "a value of type {} can't be taken here",
           type_of(value));
  }

 private:
  nlohmann::ordered_json make_at(const std::string& name, nb::handle value, int depth) {
    const size_t size = path_.size();
    if (is_document_) path_ += "/" + name;
    nlohmann::ordered_json made = make(value, depth + 1);
    path_.resize(size);
    return made;
  }

  nlohmann::ordered_json integer(nb::handle value) const {
    if (int64_t number = 0; nb::try_cast(value, number)) return number;
    if (uint64_t number = 0; nb::try_cast(value, number)) return number;
    const std::string text = to_text(nb::str(value));
    if (path_.empty()) {
      refuse(nb::exception_type::value_error, "{} does not fit into 64 bits.", text);
    }
    try {
      return parse_ordered_json(text, "a number", {.exact_members = kEverywhere});
    } catch (const Error&) {
      refuse(nb::exception_type::value_error,
             "the number {} at {} can't be held exactly; use fewer digits", printable(text),
             printable(path_, 300));
    }
  }

  nlohmann::ordered_json real(nb::handle value) const {
    const auto number = nb::cast<double>(value);
    if (!path_.empty() && !std::isfinite(number)) {
      refuse(nb::exception_type::value_error, "the number {} at {} is none that JSON has", number,
             printable(path_, 300));
    }
    return number;
  }

  const bool is_document_;
  std::string path_;  // of a document's part, from its root
};

int32_t token_id(PyObject* item) {
  if (PyBool_Check(item) != 0 || PyIndex_Check(item) == 0) {
    refuse(nb::exception_type::type_error, "token ids must be integers, got {}", type_of(item));
  }
  const Py_ssize_t id = PyNumber_AsSsize_t(item, nullptr);  // clamps
  if (id == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  if (!std::in_range<int32_t>(id)) {
    refuse(nb::exception_type::value_error, "Token id {} is out of vocabulary",
           to_text(nb::str(item)));
  }
  return static_cast<int32_t>(id);
}

// The classes of nanovllm.outputs, kept for ever.
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

nb::object to_python(const PositionLogprobs& position) {
  nb::dict dict;
  for (const TokenLogprob& entry : position) {
    dict[nb::int_(entry.token_id)] =
        Classes::get().logprob(entry.logprob, entry.rank, entry.decoded_token);
  }
  return dict;
}

nb::object to_python(const std::optional<PositionLogprobs>& position) {
  return position ? to_python(*position) : nb::none();
}

nb::object to_python(const CompletionOutput& completion);

// None where there are none: they were not asked for.
template <typename T>
nb::object list_of(const std::vector<T>& items) {
  if (items.empty()) return nb::none();
  nb::list list;
  for (const T& item : items) list.append(to_python(item));
  return list;
}

nb::object to_python(const CompletionOutput& completion) {
  nb::object cumulative = nb::none();
  if (!completion.logprobs.empty()) {
    double sum = 0;
    for (const PositionLogprobs& position : completion.logprobs) sum += position.front().logprob;
    cumulative = nb::float_(sum);
  }
  nb::object reason = nb::none();
  if (completion.finish_reason != FinishReason::kNone) {
    reason = nb::str(to_string(completion.finish_reason));
  }
  return Classes::get().completion(completion.index, completion.text, completion.token_ids,
                                   cumulative, list_of(completion.logprobs), reason,
                                   completion.stop_reason);
}

}  // namespace

void find_classes() { Classes::get(); }

std::string type_of(nb::handle value) { return to_text(value.type().attr("__name__")); }

std::string to_text(nb::handle value) {
  if (!nb::isinstance<nb::str>(value)) {
    refuse(nb::exception_type::type_error, "a text must be a str, got {}", type_of(value));
  }
  Py_ssize_t size = 0;
  if (const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &size); text != nullptr) {
    return {text, static_cast<size_t>(size)};
  }
  const nb::python_error error;  // of half a surrogate pair
  refuse(nb::exception_type::value_error, "a text is not Unicode: {}",
         to_text(nb::str(error.value())));
}

nlohmann::ordered_json to_json(nb::handle value) { return JsonMaker(false).make(value); }
nlohmann::ordered_json to_document(nb::handle value) { return JsonMaker(true).make(value); }

std::vector<int32_t> to_token_ids(nb::handle value, const char* expected) {
  nb::object list = nb::borrow(value);
  if (!nb::isinstance<nb::list>(value) && nb::hasattr(value, "tolist")) {
    list = value.attr("tolist")();
  }
  if (PySequence_Check(list.ptr()) == 0 || nb::isinstance<nb::str>(list) ||
      nb::isinstance<nb::bytes>(list)) {
    refuse(nb::exception_type::type_error, "{}, got {}", expected, type_of(value));
  }
  const nb::tuple items(list);  // what __index__ of its items does can't change it
  std::vector<int32_t> ids;
  ids.reserve(items.size());
  for (const nb::handle item : items) ids.push_back(token_id(item.ptr()));
  return ids;
}

Prompt to_prompt(nb::handle value) {
  if (nb::isinstance<nb::str>(value)) return to_text(value);
  if (!nb::isinstance<nb::dict>(value)) {
    return to_token_ids(value,
                        "a prompt must be a str, a list or an array of token ids, or a dict with "
                        "\"prompt\" or \"prompt_token_ids\"");
  }
  const auto prompt = nb::cast<nb::dict>(value);
  for (const auto [key, item] : prompt) {
    const std::string name = to_text(nb::str(key));
    if (name != "prompt" && name != "prompt_token_ids" && !item.is_none()) {
      refuse(nb::exception_type::value_error,
             "A prompt has \"prompt\" or \"prompt_token_ids\"; \"{}\" can't be served.", name);
    }
  }
  const nb::object ids = prompt.attr("get")("prompt_token_ids");
  const nb::object text = prompt.attr("get")("prompt");
  if (!ids.is_none()) return to_token_ids(ids);
  if (nb::isinstance<nb::str>(text)) return to_text(text);
  throw nb::type_error("a prompt needs \"prompt\" (a str) or \"prompt_token_ids\" (a list)");
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

nb::object to_python(const RequestOutput& output) {
  nb::object prompt = nb::none();
  if (!output.prompt.empty()) prompt = nb::cast(output.prompt);
  const RequestMetrics& metrics = output.metrics;
  return Classes::get().request(
      std::to_string(output.request_id), prompt, output.prompt_token_ids,
      list_of(output.prompt_logprobs), list_of(output.outputs), output.finished,
      Classes::get().metrics(metrics.time_to_first_step, metrics.time_to_first_token,
                             metrics.time_to_last_token, metrics.time_to_finish),
      output.num_cached_tokens, output.num_preemptions);
}

nb::object to_python(const EngineInfo& info) {
  using nb::literals::operator""_a;
  return nb::module_::import_("builtins")
      .attr("dict")("architecture"_a = info.architecture, "device"_a = info.device,
                    "device_type"_a = info.device_type, "dtype"_a = info.dtype,
                    "num_parameters"_a = info.num_parameters, "weight_bytes"_a = info.weight_bytes,
                    "mapped_weight_bytes"_a = info.mapped_weight_bytes,
                    "kv_bytes_per_token"_a = info.kv_bytes_per_token,
                    "kv_cache_bytes"_a = info.kv_cache_bytes,
                    "num_kvcache_blocks"_a = info.num_kvcache_blocks,
                    "kvcache_block_size"_a = info.kvcache_block_size,
                    "max_num_batched_tokens"_a = info.max_num_batched_tokens,
                    "max_num_seqs"_a = info.max_num_seqs, "max_model_len"_a = info.max_model_len,
                    "vocab_size"_a = info.vocab_size, "load_seconds"_a = info.load_seconds);
}

nb::object to_python(const StepStats& s) {
  return Classes::get().step(
      s.num_prefill_tokens, s.num_decode_tokens, s.num_running, s.num_waiting, s.num_used_blocks,
      s.num_total_blocks, s.num_used_states, s.num_total_states, s.seconds, s.num_preemptions,
      s.num_prompt_tokens, s.num_generation_tokens, s.num_prefix_cache_queries,
      s.num_prefix_cache_hits, s.num_drafts, s.num_draft_tokens, s.num_accepted_per_pos);
}

}  // namespace nanovllm::python
