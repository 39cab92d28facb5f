// What the APIs that agents speak have in common: a body that is translated into one of chat's, one
// completion of it, and its answer as a list of blocks. Each API draws them in its own way.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/chat_request.h"
#include "server/openai/protocol.h"
#include "server/transcript/turn.h"

namespace nanovllm::server {

// The prompt is more than the context holds, or leaves no room for an answer.
class PromptTooLong : public ApiError {
 public:
  PromptTooLong(size_t num_tokens, size_t most);
  size_t num_tokens() const noexcept { return num_tokens_; }  // of the prompt; at least
  size_t most() const noexcept { return most_; }

 private:
  size_t num_tokens_, most_;
};

// A chat of the translated body, whose fields are chat's (/v1/chat/completions) but for max_tokens
// and n. Throws ApiError.
ChatRequest agent_request(Json chat, const ServedModel& model);
// As many tokens of a prompt are counted, which is more than the context holds.
size_t most_counted_tokens(const ServedModel& model);
// Of its prompt; one of more than most_counted_tokens is given up soon behind them. Throws ApiError
// where there is no tokenizer.
std::vector<int32_t> agent_prompt(const ChatRequest& request, const ServedModel& model);

// As the model's template knows it: gpt-oss was taught three efforts, of which it gets the nearest.
std::string effort_for(const ServedModel& model, const std::string& effort);

// A part of an answer. Never of blanks alone.
struct AnswerBlock {
  enum class Kind { kThought, kText, kCall };
  Kind kind = Kind::kText;
  size_t index = 0;          // in the answer
  std::string text = {};     // so far; of a call, its arguments as the model wrote them
  std::string name = {};     // of a call
  std::string call_id = {};  // of a call
};

struct AgentOptions {
  std::string_view call_ids = {};            // what they begin with
  std::optional<int64_t> max_tokens = {};    // cut to what the context has left
  bool parallel_tool_calls = true;           // else the first call alone is shown
  std::optional<int> num_top_logprobs = {};  // none = no log-probabilities
  // The client's name of what the output must follow.
  const char* constraint = "structured_outputs";
};

struct AgentUsage {
  size_t num_prompt_tokens = 0;
  size_t num_cached_tokens = 0;  // of the prompt; known at the end
  size_t num_tokens = 0;
  size_t num_reasoning_tokens = 0;  // of them
};

// However its events are cut into pieces, the blocks are the same.
class AgentCall : public ApiCall {
 public:
  std::string on_events(size_t prompt, std::span<const EngineEvent> events) final;
  bool is_over() const final { return error_ || finish_reason_ != FinishReason::kNone; }
  std::optional<ApiError> error() const final { return error_; }
  bool next_piece(std::string& out) final;

 protected:
  // `id` is the request's. Throws PromptTooLong and ApiError.
  AgentCall(Json chat, const ServedModel& model, const std::string& id,
            const AgentOptions& options);

  const ServedModel& model() const { return model_; }
  const std::string& id() const { return id_; }
  // Those that are closed, and in a stream the one that is open.
  const std::vector<AnswerBlock>& blocks() const { return blocks_; }
  bool has_called() const { return turn_.has_called(); }
  FinishReason finish_reason() const { return finish_reason_; }
  const StopReason& stop_reason() const { return stop_reason_; }
  AgentUsage usage() const;

 private:
  // The text that a stream is sent: at its first event; when a block is opened (it has no text
  // yet), grows by `piece`, which is the end of its text, and is closed; and at its end. After an
  // error nothing more is drawn; an open block stays so.
  virtual std::string begin() = 0;
  virtual std::string open(const AnswerBlock& block) = 0;
  virtual std::string grow(const AnswerBlock& block, std::string_view piece) = 0;
  virtual std::string close(const AnswerBlock& block) = 0;
  virtual std::string end() = 0;
  virtual std::string fail(const ApiError& error) = 0;
  // The body of an answer that is no stream.
  virtual std::string whole() = 0;
  // A piece with log-probabilities, whose text is still to be read.
  virtual void take_logprobs(const RequestDelta& /*delta*/) {}
  // A block grows by what the bytes [begin, end) of the model's text, at most, say. In order.
  virtual void take_words(const AnswerBlock& /*block*/, size_t /*begin*/, size_t /*end*/) {}

  void take(const RequestDelta& delta);
  void take_end(const RequestEnd& over);
  void take_error(const ApiError& error);
  void draw_begin();
  void take_news();
  void add_words(AnswerBlock::Kind kind, const std::string& words);
  void open_block(AnswerBlock block);
  void extend_block(const std::string& text);
  void close_block();
  void flush();

  const ServedModel& model_;
  const std::string id_;
  const std::string call_ids_;
  ChatRequest request_;
  Turn turn_;
  AgentUsage usage_ = {};
  FinishReason finish_reason_ = FinishReason::kNone;
  StopReason stop_reason_ = {};
  std::optional<ApiError> error_ = {};

  std::vector<AnswerBlock> blocks_ = {};
  bool is_open_ = false;     // the last block
  int call_ = -1;            // the parser's number of the last call
  std::string blanks_ = {};  // which open no block alone, of blanks_kind_
  AnswerBlock::Kind blanks_kind_ = AnswerBlock::Kind::kText;
  bool is_behind_thought_ = false;  // no text has come since
  size_t num_read_ = 0;             // bytes of the model's text

  bool has_begun_ = false;
  std::string grown_ = {};  // of the open block, not drawn yet
  std::string drawn_ = {};
};

}  // namespace nanovllm::server
