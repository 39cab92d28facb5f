#include "nanovllm/prepare.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "engine/request_check.h"
#include "nanovllm/chat.h"
#include "nanovllm/tokenizer.h"

namespace nanovllm {

AddRequest RequestPreparer::prepare(uint64_t id, const Prompt& prompt,
                                    const SamplingParams& params) const {
  return {.id = id, .prompt_token_ids = check_request(prompt, params, *this), .params = params};
}

// The template writes the special tokens itself.
AddRequest RequestPreparer::prepare_chat(uint64_t id, const nlohmann::ordered_json& messages,
                                         const nlohmann::ordered_json& tools,
                                         const nlohmann::ordered_json& kwargs,
                                         const SamplingParams& params) const {
  if (chat_template == nullptr) {
    throw_error(ErrorCode::kUnsupported, "{} has no chat template; give the prompt as text.",
                model_dir);
  }
  std::string text = chat_template->render(messages, tools, true, kwargs);
  if (tokenizer == nullptr) return prepare(id, std::move(text), params);  // which says so
  return prepare(id, tokenizer->encode(text, false), params);
}

}  // namespace nanovllm
