#include "engine/speculative_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "engine/grammar_drafter.h"
#include "io/json.h"

namespace nanovllm {

namespace {

constexpr const char* kWhere = "speculative_config";
constexpr int kMostLength = 1024;  // of what is compared
constexpr double kHope = 0.8;      // how often a model's tokens come, before anything is known
constexpr const char* kMethods = "suffix, ngram or draft_model";

// Of vLLM's methods those that are not here, as people name them.
void refuse_method(const std::string& method) {
  if (method == "mtp" || method.ends_with("_mtp")) {  // of one family, as qwen3_next_mtp
    throw_error(ErrorCode::kUnsupported, "{}: the method {} is not supported yet; {} are.", kWhere,
                printable(method), "suffix, ngram and draft_model");
  }
  throw_error(ErrorCode::kInvalidArgument, "{}: method must be {}, got \"{}\".", kWhere, kMethods,
              printable(method));
}

void read_suffix(const JsonFields& fields, SpeculativeConfig& config) {
  SuffixDrafterOptions& suffix = config.suffix;
  const auto depth = fields.integer("suffix_decoding_max_tree_depth", 1, kMostLength);
  suffix.max_length = static_cast<int>(depth.value_or(24));
  const auto texts = fields.integer("suffix_decoding_max_cached_requests", 0, 1 << 24);
  suffix.max_texts = static_cast<int>(texts.value_or(10'000));
  suffix.most_per_match = fields.number("suffix_decoding_max_spec_factor", 0.01, 1e6).value_or(1);
  config.min_token_prob = fields.number("suffix_decoding_min_token_prob", 0, 1).value_or(0.1);
  config.num_speculative_tokens = 16;
}

// One of the two is as the other, where that is left out.
void read_ngram(const JsonFields& fields, SpeculativeConfig& config) {
  const auto min = fields.integer("prompt_lookup_min", 1, kMostLength);
  const auto max = fields.integer("prompt_lookup_max", 1, kMostLength);
  SuffixDrafterOptions& suffix = config.suffix;
  suffix.min_length = static_cast<int>(min ? *min : max.value_or(5));
  suffix.max_length = static_cast<int>(max ? *max : min.value_or(5));
  if (suffix.min_length > suffix.max_length) {
    throw_error(ErrorCode::kInvalidArgument,
                "{}: prompt_lookup_min is {}, more than prompt_lookup_max, which is {}.", kWhere,
                suffix.min_length, suffix.max_length);
  }
  suffix.max_texts = 0;
  suffix.most_per_match = kMostDraftTokens;
}

void read_draft_model(const JsonFields& fields, SpeculativeConfig& config) {
  config.model = fields.string("model").value_or("");
  if (config.model.empty()) {
    throw_error(ErrorCode::kInvalidArgument,
                "{}: model is missing; with draft_model it must be a folder or a GGUF file.",
                kWhere);
  }
  config.quantization = fields.string("quantization").value_or("");
  config.max_model_len = static_cast<int>(fields.integer("max_model_len", 2, 1 << 24).value_or(0));
  const auto num_ranks = fields.integer("draft_tensor_parallel_size", 1, 1 << 16);
  if (num_ranks.value_or(1) != 1) {
    throw_error(ErrorCode::kInvalidArgument,
                "{}: draft_tensor_parallel_size is {}, but must be 1: ranks do not share a draft "
                "model out.",
                kWhere, *num_ranks);
  }
}

std::vector<SpeculativeConfig::Range> read_ranges(const JsonFields& fields) {
  constexpr const char* kKey = "num_speculative_tokens_per_batch_size";
  constexpr const char* kExpected =
      "a list of [first batch size, last batch size, most tokens], in rising order";
  std::vector<SpeculativeConfig::Range> ranges;
  const Json* list = fields.find(kKey);
  if (list == nullptr || list->is_null()) return ranges;
  if (!list->is_array()) fields.fail(kKey, kExpected);
  for (const Json& entry : *list) {
    if (!entry.is_array() || entry.size() != 3) fields.fail(kKey, kExpected);
    int numbers[3];
    for (int i = 0; i < 3; ++i) {
      const auto number = integer_of(entry[i]);
      if (!number || *number < (i < 2 ? 1 : 0) || *number > 1 << 16) fields.fail(kKey, kExpected);
      numbers[i] = static_cast<int>(*number);
    }
    const auto [first, last, num_tokens] = numbers;
    const int before = ranges.empty() ? 0 : ranges.back().last;
    if (first <= before || last < first) fields.fail(kKey, kExpected);
    ranges.push_back({first, last, num_tokens});
  }
  return ranges;
}

void read_acceptance(const JsonFields& fields, SpeculativeConfig& config) {
  const auto method = fields.string("rejection_sample_method");
  const auto length = fields.number("synthetic_acceptance_length", 1, kMostDraftTokens + 1);
  if (method && *method != "synthetic") {
    throw_error(
        ErrorCode::kInvalidArgument,
        "{}: rejection_sample_method must be synthetic, for benchmarks, or be left out, got "
        "\"{}\"; drafts are accepted where they are what is drawn.",
        kWhere, printable(*method));
  }
  if (method.has_value() != length.has_value()) {
    throw_error(
        ErrorCode::kInvalidArgument,
        "{}: rejection_sample_method synthetic and synthetic_acceptance_length go together; "
        "one of them is missing.",
        kWhere);
  }
  if (length && *length > config.num_speculative_tokens + 1) {
    throw_error(
        ErrorCode::kInvalidArgument,
        "{}: synthetic_acceptance_length is {}, but {} drafts and one more are {} tokens at "
        "most.",
        kWhere, *length, config.num_speculative_tokens, config.num_speculative_tokens + 1);
  }
  config.synthetic_acceptance_length = length.value_or(0);
}

SpeculativeConfig read(const Json& json) {
  const JsonFields fields(json, kWhere);
  SpeculativeConfig config;
  const auto method = fields.string("method");
  if (!method) {
    throw_error(ErrorCode::kInvalidArgument, "{}: method is missing; it must be {}.", kWhere,
                kMethods);
  }
  if (*method == "suffix") {
    read_suffix(fields, config);
  } else if (*method == "ngram") {
    read_ngram(fields, config);
  } else if (*method == "draft_model") {
    read_draft_model(fields, config);
  } else {
    refuse_method(*method);
  }
  const auto count = fields.integer("num_speculative_tokens", 1, kMostDraftTokens);
  if (!count && *method != "suffix") {
    throw_error(ErrorCode::kInvalidArgument,
                "{}: num_speculative_tokens is missing; with {} it must be 1 to {}.", kWhere,
                *method, kMostDraftTokens);
  }
  if (count) config.num_speculative_tokens = static_cast<int>(*count);
  config.per_batch_size = read_ranges(fields);
  read_acceptance(fields, config);
  if (const auto unread = fields.unread(); !unread.empty()) {
    throw_error(ErrorCode::kInvalidArgument, "{}: {} is no key of the method {}.", kWhere,
                printable(unread.front()), *method);
  }
  return config;
}

}  // namespace

// Batches of other sizes than those given: as the nearest smaller ones, or the smallest.
int SpeculativeConfig::most_tokens(int num_sequences) const {
  int most = num_speculative_tokens;
  for (const Range& range : per_batch_size) {
    if (&range == &per_batch_size.front() || num_sequences >= range.first) {
      most = std::min(num_speculative_tokens, range.num_tokens);
    }
  }
  return most;
}

// Of 1 + p + p^2 + ... + p^num_speculative_tokens, which grows with p, by halving.
double SpeculativeConfig::synthetic_acceptance() const {
  double low = 0, high = synthetic_acceptance_length > 0 ? 1 : 0;
  for (int i = 0; i < 50; ++i) {
    const double p = (low + high) / 2;
    double length = 1, survival = 1;
    for (int token = 0; token < num_speculative_tokens; ++token) length += survival *= p;
    (length < synthetic_acceptance_length ? low : high) = p;
  }
  return high;
}

std::optional<SpeculativeConfig> parse_speculative_config(const std::string& json) {
  if (json.empty()) return std::nullopt;
  try {
    const Json parsed = parse_json(json, kWhere);
    if (parsed.is_null()) return std::nullopt;
    return read(parsed);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorruptData) throw;
    throw Error(ErrorCode::kInvalidArgument, error.what());
  }
}

std::string with_draft_model(const std::string& json,
                             const std::function<std::string(const std::string&)>& find) {
  const auto config = parse_speculative_config(json);
  if (!config || config->model.empty()) return json;
  Json found = parse_json(json, kWhere);
  found["model"] = find(config->model);
  return found.dump();
}

DraftingParts make_drafting(const SpeculativeConfig& config, const Tokenizer* tokenizer) {
  DraftingParts parts;
  if (config.model.empty()) parts.drafter = std::make_unique<SuffixDrafter>(config.suffix);
  if (tokenizer != nullptr) parts.others.push_back(std::make_unique<GrammarDrafter>(*tokenizer));
  parts.most_tokens = [config](int num_sequences) { return config.most_tokens(num_sequences); };
  parts.synthetic_acceptance = config.synthetic_acceptance();
  parts.planner.emplace(config.min_token_prob, config.model.empty() ? 0 : kHope);
  return parts;
}

}  // namespace nanovllm
