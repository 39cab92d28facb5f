// What the engine can serve, and the sentence for what it can't.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nanovllm/llm_engine.h"
#include "nanovllm/tokenizer.h"

namespace nanovllm {

struct RequestLimits {
  std::string model_dir;  // for messages
  const Tokenizer* tokenizer = nullptr;
  int vocab_size = 0;  // of the model's logits
  int max_model_len = 0;
  int num_kvcache_blocks = 0;
  int kvcache_block_size = 0;
};

// The prompt's token ids. Throws Error(kInvalidArgument), or kUnsupported where a tokenizer is
// needed and there is none, when the request can never be served.
std::vector<int32_t> check_request(const Prompt& prompt, const SamplingParams& params,
                                   const RequestLimits& limits);

}  // namespace nanovllm
