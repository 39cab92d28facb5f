// From what a user asks to a command for an engine, without the engine's time.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "nanovllm/engine_info.h"
#include "nanovllm/llm_engine.h"
#include "nanovllm/sampling_params.h"

namespace nanovllm {

class ChatTemplate;
class Tokenizer;

// Queues a request. Its deltas and ends, or one RequestError, answer it.
struct AddRequest {
  // The caller's choice; free again once the request's last event was told. When it is taken, both
  // requests end with an error.
  uint64_t id = 0;
  std::vector<int32_t> prompt_token_ids = {};
  // output_kind counts as kDelta. Without a seed the request draws from its id and
  // EngineConfig::seed.
  SamplingParams params = {};
  std::vector<std::vector<int32_t>> previous_output_ids = {};  // as LLMEngine::add_request takes it
  bool operator==(const AddRequest&) const = default;
};

// Needs no engine, only facts about one, and of its model what there is. Does not change: any
// number of threads may use it at once. The methods throw what LLMEngine::add_request does, and
// prepare_chat() what ChatTemplate::render does, or Error(kUnsupported) where there is no template.
struct RequestPreparer {
  std::string model_dir;                        // for messages
  EngineInfo info = {};                         // of the engine that will run it
  const Tokenizer* tokenizer = nullptr;         // null = none: token ids only
  const ChatTemplate* chat_template = nullptr;  // null = none

  AddRequest prepare(uint64_t id, const Prompt& prompt, const SamplingParams& params) const;
  // The arguments are ChatTemplate::render's; the text is the model's turn to go on.
  AddRequest prepare_chat(uint64_t id, const nlohmann::ordered_json& messages,
                          const nlohmann::ordered_json& tools, const nlohmann::ordered_json& kwargs,
                          const SamplingParams& params) const;
};

}  // namespace nanovllm
