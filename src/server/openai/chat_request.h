// A chat as a request for an engine, and what its answers need to know of it: what every API that
// chats come by has in common.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "server/openai/chat_prompt.h"
#include "server/transcript/turn.h"

namespace nanovllm::server {

class ChatRequest {
 public:
  // Reads the fields that say what the prompt is; `params` are what the others say. Throws
  // ApiError.
  ChatRequest(const RequestFields& fields, const ServedModel& model, SamplingParams params);

  const ChatPrompt& prompt() const { return prompt_; }
  // Those given to it, with the tags that are to be found in the answers, and what calls and
  // channels make of what the answers must follow, which was given as the field `constraint`.
  // Throws ApiError.
  SamplingParams params(const char* constraint = "structured_outputs") const;
  // Of the prompt. Throws ApiError.
  std::vector<int32_t> encode() const;

  // Of one completion, which this and the model outlive.
  Turn make_turn(const TurnOptions& options) const;
  // Whether a parser takes the answers apart.
  bool is_parsed() const { return is_parsed_; }
  // Of a call in a completion of the request `id`: the same for the same. `prefix` is left out
  // where the template takes short ids alone.
  std::string call_id(std::string_view prefix, const std::string& id, size_t completion,
                      int call) const;
  // The prompt's text and its grammar are not needed any more: where answers wait, they would take
  // much.
  void drop_text();

 private:
  bool has_channels() const;
  bool are_calls_bound() const;
  void constrain(SamplingParams& params, const char* constraint) const;
  void compile_whole(const StructuredOutputsParams& whole,
                     const std::optional<StructuredOutputsParams>& asked,
                     const char* constraint) const;
  void find_thoughts(SamplingParams& params) const;

  const ServedModel& model_;
  SamplingParams params_;
  ChatPrompt prompt_;
  std::string turn_;  // that the prompt has begun
  bool is_parsed_ = false;
  // Of the last params(): who checks them finds it there.
  mutable std::shared_ptr<const Grammar> grammar_ = {};
};

}  // namespace nanovllm::server
