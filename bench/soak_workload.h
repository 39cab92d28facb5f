// The load of the soak: when requests arrive, what they ask for, and which of them are wrong. All
// of it is drawn from one seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "nanovllm/llm_engine.h"

namespace nanovllm {

struct SoakRequest {
  std::vector<int32_t> ids;  // the prompt
  std::string text;          // the prompt as it is given; empty = as ids
  SamplingParams params;

  Prompt prompt() const { return text.empty() ? Prompt(ids) : Prompt(text); }
};

struct SoakLimits {
  int vocab_size = 0;
  int max_model_len = 0;
  int64_t kv_tokens = 0;  // that the KV cache holds
  int block_size = 0;
  int max_num_seqs = 0;

  // Longest prompt plus output that fits.
  int max_num_tokens() const {
    return static_cast<int>(std::min<int64_t>(max_model_len, kv_tokens));
  }
};

class SoakWorkload {
 public:
  // `texts` are short prompts as text, with their ids; empty where the model has no tokenizer.
  SoakWorkload(const SoakLimits& limits, std::vector<SoakRequest> texts, uint64_t seed);

  int pick(int n) { return static_cast<int>(rng_() % static_cast<uint64_t>(n)); }  // 0 .. n-1
  bool one_in(int n) { return pick(n) == 0; }

  // Requests that arrive before the next step: many in a burst, some, or none for a while.
  int arrivals();
  SoakRequest request();
  // One that must be refused.
  SoakRequest bad_request();
  // Greedy, and the same at every call.
  std::vector<SoakRequest> probes() const;
  RequestOutputKind output_kind() { return static_cast<RequestOutputKind>(pick(3)); }
  // Later prompts may begin like this text.
  void remember(std::vector<int32_t> ids);

 private:
  enum class Weather { kBurst, kSteady, kQuiet };

  double uniform(double low, double high);
  int log_uniform(int low, int high);
  int32_t token() { return pick(limits_.vocab_size); }
  std::vector<int32_t> prompt();
  int prompt_length();
  SamplingParams params(int num_prompt_tokens);
  void draw_distribution(SamplingParams& params);
  void draw_end(SamplingParams& params);

  const SoakLimits limits_;
  const std::vector<SoakRequest> texts_;
  std::mt19937_64 rng_;
  Weather weather_ = Weather::kBurst;
  int steps_left_ = 0;                            // of this weather
  std::vector<std::vector<int32_t>> remembered_;  // a few
};

}  // namespace nanovllm
