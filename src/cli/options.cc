#include "cli/options.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "api/json.h"
#include "base/check.h"

namespace nanovllm::cli {
namespace {

constexpr const char* kEngineGroup = "Engine";
constexpr const char* kGpuGroup = "Engine, on GPUs only";
constexpr const char* kSamplingGroup = "Sampling (defaults: the model's own)";

// The number that is the whole of a text, without the octal and hexadecimal ones that CLI11 knows.
template <typename T>
std::optional<T> parse_number(const std::string& text) {
  T value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end) return std::nullopt;
  const size_t digits = text.starts_with('-') ? 1 : 0;
  const bool octal = std::is_integral_v<T> && text.size() > digits + 1 && text[digits] == '0';
  return octal ? std::nullopt : std::optional(value);
}

// What is wrong with the text of a number; CLI11's own words name neither reason nor remedy.
template <typename T>
std::string fault_of_number(const std::string& text) {
  if (parse_number<T>(text)) return "";
  if constexpr (std::is_floating_point_v<T>) return fmt::format("must be a number, got {}", text);
  return fmt::format("must be an integer up to {}, got {}", std::numeric_limits<T>::max(), text);
}

template <typename T>
CLI::Option* check_number(CLI::Option* option) {
  return option->check(CLI::Validator(fault_of_number<T>, ""));
}

template <typename T>
CLI::Option* add(CLI::App& app, const char* flag, T& value, const std::string& help,
                 const char* group) {
  CLI::Option* option = app.add_option(flag, value, help)->group(group)->capture_default_str();
  if constexpr (std::is_arithmetic_v<T>) check_number<T>(option);
  return option;
}
template <typename T>
CLI::Option* add(CLI::App& app, const char* flag, std::optional<T>& value, const std::string& help,
                 const char* group) {
  return check_number<T>(app.add_option(flag, value, help)->group(group));
}

// Shells make it hard to write a line break. Other backslashes stay as they are: \boxed is a stop.
std::string unescape(std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const char next = text[i] == '\\' && i + 1 < text.size() ? text[i + 1] : '\0';
    const bool known = next == 'n' || next == 't' || next == '\\';
    plain += !known ? text[i] : next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
    i += known ? 1 : 0;
  }
  text = std::move(plain);
  return "";  // nothing is wrong with it
}

// The least seed is 0, or -1 where that asks for no seed; then nothing is returned for it.
std::optional<uint64_t> parse_seed(const char* flag, const std::string& text, int least) {
  if (least == -1 && text == "-1") return std::nullopt;
  const auto seed = parse_number<uint64_t>(text);
  if (!seed) {
    throw CLI::ValidationError(flag, fmt::format("must be an integer from {} to {}, got {}", least,
                                                 std::numeric_limits<uint64_t>::max(), text));
  }
  return seed;
}

}  // namespace

CLI::Validator at_least(int least) {
  const auto check = [least](const std::string& text) -> std::string {
    const auto value = parse_number<int>(text);
    if (!value) return fault_of_number<int>(text);
    return *value < least ? fmt::format("must be at least {}, got {}", least, text) : "";
  };
  return {check, ""};
}

CLI::Option* add_seed(CLI::App& app, const char* flag, uint64_t& seed, const char* help) {
  return app
      .add_option_function<std::string>(
          flag, [flag, &seed](const std::string& text) { seed = *parse_seed(flag, text, 0); }, help)
      ->type_name("UINT")
      ->default_str(std::to_string(seed));
}

int64_t parse_bytes(const std::string& text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const std::string suffix(rest, end);
  const std::string known = "KMGT";
  double unit = 1;
  bool valid = error == std::errc() && number >= 0;
  if (!suffix.empty()) {
    const auto position =
        known.find(static_cast<char>(std::toupper(static_cast<unsigned char>(suffix[0]))));
    valid = valid && position != std::string::npos &&
            (suffix.size() == 1 || suffix.substr(1) == "B" || suffix.substr(1) == "iB");
    unit = std::pow(1024.0, static_cast<double>(position) + 1);
  }
  if (valid && number * unit >= 0x1p62) {
    throw_error(ErrorCode::kInvalidArgument, "{} is too large: it must be less than 4194304T",
                text);
  }
  if (!valid) {
    throw_error(ErrorCode::kInvalidArgument,
                "\"{}\" is not a size in bytes; write for example 536870912, 512M or 1.5G", text);
  }
  return static_cast<int64_t>(number * unit);
}

void add_engine_options(CLI::App& app, EngineConfig& config) {
  const char* group = kEngineGroup;
  add(app, "--device", config.device, "auto, cpu or, where the build has it, cuda", group);
  add(app, "--dtype", config.dtype, "auto (the checkpoint's), bfloat16 or float32", group);
  add(app, "--num-threads", config.num_threads,
      "CPU threads; 0 = as many as affinity and cgroup limits allow", group);
  add(app, "--max-model-len", config.max_model_len,
      "longest prompt plus output, in tokens; never more than the model's own", group);
  add(app, "--max-num-seqs", config.max_num_seqs, "sequences in one step, at most", group);
  add(app, "--max-num-batched-tokens", config.max_num_batched_tokens,
      "tokens in one step, at most (longer prompts are computed in chunks)", group);
  add(app, "--kvcache-block-size", config.kvcache_block_size, "tokens in a block of the KV cache",
      group);
  add(app, "--num-kvcache-blocks", config.num_kvcache_blocks,
      "blocks in the KV cache; -1 = as many as memory allows", group);
  app.add_option_function<std::string>(
         "--kv-cache-memory",
         [&config](const std::string& text) {
           try {
             config.kv_cache_memory = parse_bytes(text);
           } catch (const Error& error) {
             throw CLI::ValidationError("--kv-cache-memory", error.what());
           }
         },
         "bytes for the KV cache (512M, 4G, ...); overrides the share of memory")
      ->group(group);
  add(app, "--gpu-memory-utilization", config.gpu_memory_utilization,
      "share of the memory free at start that may be used", kGpuGroup);
  app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", config.enable_prefix_caching,
               "reuse the KV of equal prompt beginnings (default: on)")
      ->group(group);
  app.add_flag("--enforce-eager", config.enforce_eager, "no CUDA graphs")->group(kGpuGroup);
  app.add_flag("--deterministic", config.deterministic,
               "tokens never depend on batch mates (always so on the CPU)")
      ->group(kGpuGroup);
  add(app, "--tensor-parallel-size", config.tensor_parallel_size,
      "ranks that share the weights, 1 to 8: a GPU each, or a share of the CPU threads", group);
  add_seed(app, "--engine-seed", config.seed, "base of the seeds of requests that bring none")
      ->group(group);
}

void add_trace_option(CLI::App& app, EngineConfig& config) {
  app.add_option("--trace", config.trace_file,
                 "write a Chrome/Perfetto trace of the run to this file")
      ->group(kEngineGroup);
}

void SamplingOptions::add_to(CLI::App& app, const std::string& max_tokens) {
  const char* group = kSamplingGroup;
  const auto option = [&](const char* flag, auto& value, const std::string& help) {
    add(app, flag, value, help, group);
  };
  option("--temperature", temperature_, "0 = greedy; higher, up to 2, is more random");
  option("--top-k", top_k_, "draw from the k most likely tokens only; 0 = all");
  option("--top-p", top_p_, "draw from the smallest set of tokens with this probability");
  option("--min-p", min_p_, "drop tokens below this share of the likeliest one's probability");
  app.add_option_function<std::string>(
         "--seed", [this](const std::string& text) { seed_ = parse_seed("--seed", text, -1); },
         "same seed, prompt and parameters: same tokens; without one (-1) every run draws alike, "
         "by --engine-seed")
      ->type_name("INT")
      ->group(group);
  option("--max-tokens", max_tokens_,
         fmt::format("longest output, in tokens (default: {})", max_tokens));
  option("--min-tokens", min_tokens_, "no end of text before so many tokens");
  option("--presence-penalty", presence_penalty_, "-2 to 2: against tokens already generated");
  option("--frequency-penalty", frequency_penalty_, "-2 to 2: the same, for each occurrence");
  option("--repetition-penalty", repetition_penalty_, "above 1: against tokens already seen");
  // Given several times, they add up; help need not show "..." for that.
  const auto texts = [&](const char* flag, std::vector<std::string>& value, const char* help) {
    app.add_option(flag, value, help)
        ->group(group)
        ->option_text("TEXT")
        ->transform(CLI::Validator(unescape, ""))
        ->allow_extra_args(false);
  };
  texts("--stop", stop_,
        "text that ends the output (may be given several times; knows \\n, \\t and \\\\)");
  texts("--bad-words", bad_words_, "text that the output must not hold (in the same way)");
  check_number<int32_t>(app.add_option("--stop-token-ids", stop_token_ids_,
                                       "token ids that end the output: 5,6 or several times"))
      ->group(group)
      ->option_text("INT")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--logit-bias", logit_bias_,
                 "ID:BIAS, added to that token's logit: 5:-100,6:2 or several times")
      ->group(group)
      ->option_text("TEXT")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_flag("--ignore-eos", ignore_eos_, "go on after the end-of-text token")->group(group);
  app.add_flag("--include-stop-str-in-output", include_stop_str_in_output_,
               "keep the text that ended the output")
      ->group(group);
  app.add_flag("--no-skip-special-tokens", keep_special_tokens_, "show special tokens in the text")
      ->group(group);
}

void SamplingOptions::add_details_to(CLI::App& app) {
  const char* group = kSamplingGroup;
  add(app, "-n,--n", n_, "completions of each prompt", group);
  add(app, "--logprobs", logprobs_,
      "log-probabilities of so many top tokens for each position, up to 20", group);
  add(app, "--prompt-logprobs", prompt_logprobs_, "the same for each token of the prompt", group);
}

SamplingParams SamplingOptions::apply_to(SamplingParams params) const {
  const auto set = [](auto& field, const auto& given) {
    if (given) field = *given;
  };
  set(params.n, n_);
  set(params.temperature, temperature_);
  set(params.top_k, top_k_);
  set(params.top_p, top_p_);
  set(params.min_p, min_p_);
  set(params.seed, seed_);
  set(params.max_tokens, max_tokens_);
  set(params.min_tokens, min_tokens_);
  set(params.presence_penalty, presence_penalty_);
  set(params.frequency_penalty, frequency_penalty_);
  set(params.repetition_penalty, repetition_penalty_);
  set(params.logprobs, logprobs_);
  set(params.prompt_logprobs, prompt_logprobs_);
  if (!stop_.empty()) params.stop = stop_;
  if (!bad_words_.empty()) params.bad_words = bad_words_;
  if (!stop_token_ids_.empty()) params.stop_token_ids = stop_token_ids_;
  nlohmann::json biases;
  for (const std::string& pair : logit_bias_) {
    const auto colon = pair.find(':');
    const std::string value = colon == std::string::npos ? "" : pair.substr(colon + 1);
    nlohmann::json bias = nlohmann::json::parse(value, nullptr, false);
    if (!bias.is_number()) {
      throw_error(ErrorCode::kInvalidArgument, "--logit-bias wants ID:BIAS, got \"{}\"", pair);
    }
    biases[pair.substr(0, colon)] = std::move(bias);
  }
  if (!biases.is_null()) update_sampling_params(params, {{"logit_bias", biases}});
  params.ignore_eos = params.ignore_eos || ignore_eos_;
  params.include_stop_str_in_output |= include_stop_str_in_output_;
  if (keep_special_tokens_) params.skip_special_tokens = false;
  return params;
}

}  // namespace nanovllm::cli
