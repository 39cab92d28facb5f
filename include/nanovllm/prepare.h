// Makes a command for an engine out of a user's prompt or chat, on any thread, so that the engine's
// own thread need not tokenise and check it.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/engine_info.h"
#include "nanovllm/llm_engine.h"
#include "nanovllm/sampling_params.h"

namespace nanovllm {

class ChatTemplate;
class EngineLoop;
class Grammar;
class GrammarCompiler;
class Tokenizer;

// Command: add a request. The loop answers with deltas and ends, or with a RequestError that may
// also come after deltas.
struct AddRequest {
  // The caller's choice. It may be used again after the request's last event. If a running request
  // has this id, one RequestError ends both that request and the new one.
  uint64_t id = 0;
  std::vector<int32_t> prompt_token_ids = {};
  // output_kind is ignored: events are always deltas. A request without a seed gets one made from
  // `id` and EngineConfig::seed.
  SamplingParams params = {};
  // See LLMEngine::add_request.
  std::vector<std::vector<int32_t>> previous_output_ids = {};
  // Of params.structured_outputs; RequestPreparer::check() sets it. Neither sent to another process
  // nor compared: it follows from what is.
  std::shared_ptr<const Grammar> grammar = {};
  bool operator==(const AddRequest& other) const {
    return id == other.id && prompt_token_ids == other.prompt_token_ids && params == other.params &&
           previous_output_ids == other.previous_output_ids;
  }
};

// How the text of a chat ends, and what the tokenizer adds to it: as transformers'
// apply_chat_template has it.
struct ChatTextOptions {
  // The text ends where the model's answer begins.
  bool add_generation_prompt = true;
  // It ends with the content of the last message, which the model goes on with.
  bool continue_final_message = false;
  // Those that the tokenizer adds to other texts; ignored where the template has written them.
  bool add_special_tokens = false;
};

// The text of a chat's prompt.
struct ChatText {
  std::string text = {};
  // For Tokenizer::encode.
  bool add_special_tokens = false;
};

// The arguments are ChatTemplate::render's. Throws what that throws; and Error(kInvalidArgument)
// for options that contradict each other, and where the template leaves out the message that is to
// be continued.
ChatText chat_text(const ChatTemplate& chat_template, const nlohmann::ordered_json& messages,
                   const nlohmann::ordered_json& tools, const nlohmann::ordered_json& kwargs,
                   const ChatTextOptions& options = {});

struct RequestPreparer;

// A request that RequestPreparer::check() let pass; nobody else makes one. An engine with the
// limits and the tokenizer that it was checked for takes it without another check.
class CheckedRequest {
 public:
  const AddRequest* operator->() const { return &request_; }
  bool is_for(const RequestPreparer& engine) const;
  // Its content, to be moved elsewhere and changed.
  AddRequest release() && { return std::move(request_); }

 private:
  friend struct RequestPreparer;
  friend class EngineLoop;
  CheckedRequest(AddRequest&& request, const RequestPreparer& engine);
  // Nothing that is checked depends on these.
  void set_output_kind(RequestOutputKind kind) { request_.params.output_kind = kind; }
  void set_seed(int64_t seed) { request_.params.seed = seed; }

  AddRequest request_;
  EngineLimits limits_;
  const Tokenizer* tokenizer_;
};

// Needs no engine: only its EngineInfo and, if the model has them, its tokenizer and its chat
// template, which must live as long as this. Immutable: any number of threads may use it at the
// same time.
struct RequestPreparer {
  // For messages: the model's folder or GGUF file.
  std::string model_dir;
  // Of the engine that will run the requests.
  EngineInfo info = {};
  // Null = none: prompts must be token ids.
  const Tokenizer* tokenizer = nullptr;
  // Null = none: prepare_chat() throws Error(kUnsupported).
  const ChatTemplate* chat_template = nullptr;
  // Of that tokenizer, for structured_outputs. Null = whoever takes the requests compiles them.
  const GrammarCompiler* grammars = nullptr;
  // The tags around the model's thoughts, which are tokens of their own or of several each. Empty =
  // none are known: requests with a thinking_token_budget are refused. An engine's own preparer has
  // <think> and </think> where they are tokens.
  std::string thinking_start = {};
  std::string thinking_end = {};
  // Whether outputs with structured_outputs may begin with a thought, for the user is given it
  // apart from the text. An engine's own preparer says no: then one comes first only where the
  // prompt ends with the tag that opens it, or a thinking_token_budget is set.
  bool may_think_first = true;

  // The ids of a prompt, of a text with the special tokens that the tokenizer adds. Throws
  // Error(kUnsupported) for a text where there is no tokenizer.
  std::vector<int32_t> token_ids(Prompt prompt) const;
  // The same of what chat_text() makes of a chat. Throws also what that throws.
  std::vector<int32_t> token_ids_of_chat(const nlohmann::ordered_json& messages,
                                         const nlohmann::ordered_json& tools,
                                         const nlohmann::ordered_json& kwargs,
                                         const ChatTextOptions& options = {}) const;
  // Checks parameters and prompt, finds out thinking_tags where they are needed, and compiles
  // structured_outputs. Throws what LLMEngine::add_request throws.
  CheckedRequest check(AddRequest request) const;
  // Whether check() has to compile a grammar that it does not know, which may take part of a
  // second.
  bool must_compile(const SamplingParams& params) const;
  // token_ids() and check() in one: no prompt is tokenised for parameters that are refused.
  CheckedRequest check(AddRequest request, Prompt prompt) const;

  // The same.
  AddRequest prepare(uint64_t id, const Prompt& prompt, const SamplingParams& params) const;
  // For SamplingParams: the tags, and how much of a thought is open at the end of these ids, which
  // are a prompt or the part of it where one may have begun. Throws Error(kUnsupported) where no
  // tags are known.
  ThinkingTags thinking_tags(const std::vector<int32_t>& prompt) const;
  // token_ids_of_chat() and check() in one, likewise.
  AddRequest prepare_chat(uint64_t id, const nlohmann::ordered_json& messages,
                          const nlohmann::ordered_json& tools, const nlohmann::ordered_json& kwargs,
                          const SamplingParams& params, const ChatTextOptions& options = {}) const;
};

}  // namespace nanovllm
