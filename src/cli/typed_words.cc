#include "cli/typed_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "cli/model_option.h"
#include "cli/nearest_name.h"
#include "io/json.h"

namespace nanovllm::cli {
namespace {

// What vLLM and llama.cpp call otherwise. Where a command has an option of their name, that is
// meant.
struct OtherName {
  std::string_view theirs, ours;
};
constexpr OtherName kOtherNames[] = {
    {"-tp", "--tensor-parallel-size"},
    {"-dp", "--data-parallel-size"},
    {"-ep", "--enable-expert-parallel"},
    {"--block-size", "--kvcache-block-size"},
    {"--num-gpu-blocks-override", "--num-kvcache-blocks"},
    {"--kv-cache-memory-bytes", "--kv-cache-memory"},
    {"--device-memory-utilization", "--gpu-memory-utilization"},
    {"--seed", "--engine-seed"},
    {"-j", "--json-schema"},
    {"-jf", "--json-schema"},
    {"--json-schema-file", "--json-schema"},
    {"--grammar", "--grammar-file"},
};

// Flags of vLLM that ask for what is so anyway, or for what changes no answer. "": any value;
// otherwise other values than this one ask for something that is not there. Of a flag without
// values "true" is that it stands there. Python's keywords agree: python/nanovllm/_arguments.py.
struct NoChange {
  std::string_view name, value;
  bool is_flag = false;
};
constexpr bool kIsFlag = true;
constexpr NoChange kNoChange[] = {
    {"--disable-log-stats", "", kIsFlag},
    {"--disable-log-requests", "", kIsFlag},
    {"--trust-remote-code", "", kIsFlag},
    {"--disable-custom-all-reduce", "", kIsFlag},
    {"--disable-cascade-attn", "", kIsFlag},
    {"--disable-frontend-multiprocessing", "", kIsFlag},
    {"--use-v2-block-manager", "", kIsFlag},
    {"-O0", "", kIsFlag},
    {"-O1", "", kIsFlag},
    {"-O2", "", kIsFlag},
    {"-O3", "", kIsFlag},
    {"--enable-auto-tool-choice", "true", kIsFlag},
    {"--enable-chunked-prefill", "true", kIsFlag},
    {"--enable-request-id-headers", "true", kIsFlag},
    {"--async-scheduling", "true", kIsFlag},
    {"--language-model-only", "true", kIsFlag},
    {"--swap-space", ""},
    {"--uvicorn-log-level", ""},
    {"--api-server-count", ""},
    {"-asc", ""},
    {"--optimization-level", ""},
    {"--compilation-config", ""},
    {"-cc", ""},
    {"--attention-backend", ""},
    {"--mamba-backend", ""},
    {"--gdn-prefill-backend", ""},
    {"--mamba-block-size", ""},
    {"--mamba-cache-mode", ""},
    {"--distributed-executor-backend", ""},
    {"--max-parallel-loading-workers", ""},
    {"--max-seq-len-to-capture", ""},
    {"--max-cudagraph-capture-size", ""},
    {"--num-scheduler-steps", ""},
    {"--sse-keep-alive-interval", ""},
    {"--stream-interval", ""},
    {"--chat-template-content-format", "auto"},
    {"--convert", "auto"},
    {"--convert", "none"},
    {"--config-format", "auto"},
    {"--config-format", "hf"},
    {"--cpu-offload-gb", "0"},
    {"--generation-config", "auto"},
    {"--kv-cache-dtype", "auto"},
    {"--load-format", "auto"},
    {"--load-format", "safetensors"},
    {"--logprobs-mode", "raw_logprobs"},
    {"--mamba-cache-dtype", "auto"},
    {"--mamba-cache-dtype", "float32"},
    {"--mamba-ssm-cache-dtype", "auto"},
    {"--mamba-ssm-cache-dtype", "float32"},
    {"--max-logprobs", "20"},
    {"--model-impl", "auto"},
    {"--model-impl", "vllm"},
    {"--pipeline-parallel-size", "1"},
    {"-pp", "1"},
    {"--runner", "auto"},
    {"--runner", "generate"},
    {"--task", "auto"},
    {"--task", "generate"},
    {"--tokenizer-mode", "auto"},
};

// Numbers such as -1 are none, nor is "-", which stands for standard input.
bool is_option(std::string_view word) {
  return word.size() > 1 && word[0] == '-' &&
         (word[1] == '-' || std::isalpha(static_cast<unsigned char>(word[1])) != 0);
}

class TypedReader {
 public:
  TypedReader(const CLI::App& app, const std::vector<std::string>& words)
      : command_(&app), words_(words) {}
  TypedWords run();

 private:
  bool enter_command();
  void take_option(const std::string& word);
  void take_known(const CLI::Option& option, const std::string& name,
                  std::optional<std::string> value);
  bool take_no_change(const std::string& name, std::optional<std::string> value);
  void judge_no_change(const NoChange& row, std::string_view value, const std::string& shown,
                       const std::string& shown_value);
  bool take_negation(const std::string& name);
  void put_model(const std::string& model);
  void give_model_back();
  std::string taken_as(const std::string& name, const std::string& value);
  std::string nearest(std::string_view name) const;

  const CLI::Option* find(const std::string& name) const {
    return command_->get_option_no_throw(name);
  }
  const NoChange* find_no_change(std::string_view name) const;
  // Plain: a value, or MODEL.
  bool has_plain() const { return next_ < words_.size() && !is_option(words_[next_]); }
  void tell(std::string fault) {
    if (result_.fault.empty()) result_.fault = std::move(fault);
  }

  const CLI::App* command_;
  const std::vector<std::string>& words_;
  size_t next_ = 0;  // of words_
  TypedWords result_ = {};
  size_t begin_ = 0;         // of the command's own in result_.words
  bool has_engine_ = false;  // the command runs one, with vLLM's options
  bool has_model_ = false;   // or another word that is no option's
  bool wants_help_ = false;
  std::vector<std::string> no_change_ = {};
  // In result_.words: the last value behind an option's first.
  std::optional<size_t> last_extra_ = {};
};

bool TypedReader::enter_command() {
  const auto is_named = [&](const CLI::App* command) {
    return command->get_name() == words_[next_];
  };
  const auto found =
      next_ < words_.size() ? command_->get_subcommands(is_named) : std::vector<const CLI::App*>();
  if (found.empty()) return false;
  command_ = found.front();
  result_.words.push_back(words_[next_++]);
  return true;
}

TypedWords TypedReader::run() {
  while (enter_command()) {
  }
  begin_ = result_.words.size();
  has_engine_ = find("--max-num-seqs") != nullptr;
  while (next_ < words_.size() && words_[next_] != "--") {
    const std::string& word = words_[next_++];
    if (is_option(word) && command_->get_require_subcommand_min() == 0) {
      take_option(word);
    } else {
      has_model_ = true;
      result_.words.push_back(word);
    }
  }
  has_model_ = has_model_ || next_ < words_.size();
  std::copy(words_.begin() + static_cast<std::ptrdiff_t>(next_), words_.end(),
            std::back_inserter(result_.words));
  give_model_back();
  if (!no_change_.empty()) {
    result_.notes.push_back(
        fmt::format("ignored, as they change nothing here: {}", fmt::join(no_change_, ", ")));
  }
  if (wants_help_) result_.fault.clear();
  return std::move(result_);
}

void TypedReader::take_option(const std::string& word) {
  const bool is_long = word.starts_with("--");
  const size_t end = std::min(word.find('='), word.size());
  const std::string typed = word.substr(0, end);
  std::optional<std::string> value;
  if (end < word.size()) value = word.substr(end + 1);
  std::string name = typed;
  if (is_long) std::ranges::replace(name, '_', '-');
  const auto* other = std::ranges::find(kOtherNames, name, &OtherName::theirs);
  const bool is_theirs = has_engine_ && other != std::end(kOtherNames);
  // One letter, with its value or other flags behind it: but "-pp" is no "-p p".
  if (!is_long && !is_theirs && find_no_change(name) == nullptr &&
      find(word.substr(0, 2)) != nullptr) {
    if (word.size() == 2) return take_known(*find(word), word, std::nullopt);
    result_.words.push_back(word);
    return;
  }
  if (find(name) == nullptr && is_theirs) name = other->ours;

  if (const CLI::Option* option = find(name)) return take_known(*option, name, std::move(value));
  if (take_no_change(name, value) || take_negation(name)) return;
  if (name == "--model" && find("model") != nullptr && (value || has_plain())) {
    if (!value) value = words_[next_++];
    put_model(*value);
    if (last_extra_) ++*last_extra_;
    return;
  }
  if (name == "--disable-uvicorn-access-log" && find("--access-log") != nullptr) {
    if (value != "false") result_.words.insert(result_.words.end(), {"--access-log", "none"});
    return;
  }
  const std::string near = nearest(name);
  tell(fmt::format("there is no option {}; {}", printable(typed),
                   near.empty() ? "--help lists those there are" : "did you mean " + near + "?"));
  if (!value && has_plain()) ++next_;  // its own, which is no model
}

// CLI11 takes the word behind "--api-key=" for its value, and for a value whatever stands behind an
// option that wants one.
void TypedReader::take_known(const CLI::Option& option, const std::string& name,
                             std::optional<std::string> value) {
  wants_help_ = wants_help_ || &option == command_->get_help_ptr();
  if (option.get_items_expected_max() == 0) {
    result_.words.push_back(value ? fmt::format("{}={}", name, *value) : name);
    return;
  }
  const bool is_joined = value.has_value();
  if (!value && next_ < words_.size()) value = words_[next_++];
  if (value) value = taken_as(name, *value);
  if (is_joined && !value->empty()) {
    result_.words.push_back(fmt::format("{}={}", name, *value));
    return;
  }
  result_.words.push_back(name);
  if (value) result_.words.push_back(*value);
  if (is_joined || option.get_items_expected_max() == 1) return;
  // CLI11 would take MODEL too.
  while (has_plain()) {
    result_.words.push_back(name);
    last_extra_ = result_.words.size();
    result_.words.push_back(words_[next_++]);
  }
}

const NoChange* TypedReader::find_no_change(std::string_view name) const {
  // Of an object's members: --compilation-config.level 3.
  const auto* found = std::ranges::find(kNoChange, name.substr(0, name.find('.')), &NoChange::name);
  return !has_engine_ || found == std::end(kNoChange) ? nullptr : found;
}

bool TypedReader::take_no_change(const std::string& name, std::optional<std::string> value) {
  const NoChange* row = find_no_change(name);
  if (row == nullptr) return false;
  if (row->is_flag) {
    judge_no_change(*row, CLI::detail::to_lower(value.value_or("true")), name,
                    value ? "=" + *value : "");
    return true;
  }
  if (!value && has_plain()) value = words_[next_++];
  if (!value) tell(fmt::format("{} needs a value", name));
  judge_no_change(*row, value.value_or(""), name, " " + value.value_or(""));
  return true;
}

void TypedReader::judge_no_change(const NoChange& row, std::string_view value,
                                  const std::string& shown, const std::string& shown_value) {
  const bool is_fine =
      row.value.empty() || std::ranges::any_of(kNoChange, [&](const NoChange& other) {
        return other.name == row.name && value == other.value;
      });
  if (is_fine) {
    no_change_.push_back(shown);
  } else {
    tell(fmt::format("{}{} is not supported yet; leave it out", shown, printable(shown_value)));
  }
}

// vLLM has --no-X beside every flag X.
bool TypedReader::take_negation(const std::string& name) {
  constexpr std::string_view kNo = "--no-";
  if (!name.starts_with(kNo)) return false;
  const std::string positive = "--" + name.substr(kNo.size());
  if (const CLI::Option* option = find(positive)) {
    if (option->get_items_expected_max() > 0) return false;
    result_.words.push_back(positive + "=false");
    return true;
  }
  const NoChange* row = find_no_change(positive);
  if (row == nullptr || !row->is_flag) return false;
  judge_no_change(*row, "false", name, "");
  return true;
}

// In front: behind an option of several values CLI11 would take it for one.
void TypedReader::put_model(const std::string& model) {
  result_.words.insert(result_.words.begin() + static_cast<std::ptrdiff_t>(begin_), model);
  has_model_ = true;
}

// MODEL may stand behind an option of several values: the last of them is it, where nothing else
// is.
void TypedReader::give_model_back() {
  if (has_model_ || !last_extra_ || find("model") == nullptr) return;
  const auto place = result_.words.begin() + static_cast<std::ptrdiff_t>(*last_extra_);
  // Keys may look like a name of the hub, which is shown, and the hub asked for it.
  const bool is_key = *(place - 1) == "--api-key";
  if (is_key ? is_surely_model(*place) : may_be_model(*place)) {
    const std::string model = *place;
    result_.words.erase(place - 1, place + 1);
    put_model(model);
  } else {  // which may be a key: it is not shown
    tell(fmt::format("model is required, and {} took what is behind it; MODEL goes before it",
                     *(place - 1)));
  }
}

// Values of vLLM's that have another name here.
std::string TypedReader::taken_as(const std::string& name, const std::string& value) {
  if (name != "--dtype" || !has_engine_) return value;
  if (value == "float") return "float32";
  if (value != "half" && value != "float16") return value;
  result_.notes.push_back(
      fmt::format("--dtype {} is taken as bfloat16, as float16 checkpoints are", value));
  return "bfloat16";
}

// The option that was meant, if one is near.
std::string TypedReader::nearest(std::string_view name) const {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command_->get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& known : option->get_lnames()) flags.push_back("--" + known);
  }
  return nearest_name(name, flags);
}

}  // namespace

TypedWords read_typed(const CLI::App& app, const std::vector<std::string>& words) {
  return TypedReader(app, words).run();
}

}  // namespace nanovllm::cli
