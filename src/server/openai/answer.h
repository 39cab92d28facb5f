// What the answers of /v1/completions and /v1/chat/completions share: the frame of an answer and of
// its chunks, usage, errors, and who gained what.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/logprob_text.h"
#include "server/openai/protocol.h"
#include "server/openai/request_fields.h"

namespace nanovllm::server {

// A JSON string. What is no UTF-8 in it becomes U+FFFD.
std::string json_text(std::string_view text);
std::string json_of(const std::vector<int32_t>& ids);
std::string json_of(const StopReason& reason);

// Who splits lines as Python's splitlines() does takes some characters for their ends too. JSON has
// them in texts alone, where an escape means the same, and is appended in their place.
void append_in_one_line(std::string& out, std::string_view json);
// An event of a stream.
std::string event_of(std::string_view json, std::string_view name = {});

class Answer : public ApiCall {
 public:
  std::string on_events(size_t prompt, std::span<const EngineEvent> events) final;
  bool is_over() const final;
  std::optional<ApiError> error() const final;
  bool next_piece(std::string& out) final;

 protected:
  struct Names {
    const char* id_prefix;
    const char* object;
    const char* chunk_object;
  };
  struct Choice {
    explicit Choice(LogprobText writer) : logprob_text(std::move(writer)) {}
    LogprobText logprob_text;      // of the first of
    PackedLogprobs logprobs = {};  // a whole answer, or one chunk
    size_t num_tokens = 0;
    FinishReason finish_reason = FinishReason::kNone;
    StopReason stop_reason = {};
    std::vector<int32_t> token_ids = {};  // of a whole answer, or of one chunk
  };
  // A prompt, as far as answers show it.
  struct PromptFacts {
    std::string text = {};
    size_t num_tokens = 0;
    std::vector<int32_t> token_ids = {};  // where answers show them
    PackedLogprobs logprobs = {};
    int num_cached_tokens = 0;
    bool begun = false;
  };

  // Of a whole answer: a text, and behind it what is made when it is sent, piece by piece: `more`
  // appends the next one, until `out` has `end` bytes, and returns whether there is another.
  struct Part {
    std::string text = {};
    size_t num_sent = 0;  // bytes of text
    std::function<bool(std::string& out, size_t end)> more = {};
  };

  // Reads the fields that both APIs have; then the derived class reads its own, and calls
  // prepare().
  Answer(const RequestFields& fields, const ServedModel& model, const Names& names,
         const std::string& id);
  // Throws ApiError for a prompt that can't be served. `text` is what an answer may show of it.
  void prepare(std::vector<int32_t> token_ids, std::string text, const SamplingParams& params);
  // Throws ApiError where `max_tokens` is more than the model has room for.
  void check_max_tokens(const char* name, std::optional<int64_t> max_tokens) const;

  const ServedModel& model() const { return model_; }
  std::vector<Choice>& choices() { return choices_; }
  PromptFacts& prompt_of(size_t choice) { return prompts_[choice / num_completions_]; }
  // "data: {...}\n\n" around the JSON of a choice. `more` are further members.
  std::string chunk(size_t choice, const std::string& json, bool is_last,
                    std::string_view more = {}) const;
  // Appends to the whole answer.
  void add_text(std::string_view text);
  // A list's entries without the brackets: `append` adds one behind those before.
  void add_list(size_t count, std::function<void(size_t i, std::string& out)> append);
  void add_prompt_logprobs(const PromptFacts& prompt);
  // "null" where the answer shows none.
  std::string token_ids_json(const std::vector<int32_t>& ids) const;

  bool return_token_ids_ = false;
  bool return_as_token_ids_ = false;
  bool keeps_prompt_ids_ = false;  // answers show them
  int num_completions_ = 1;        // of each prompt

 private:
  // The chunks that a prompt's first event brings.
  virtual std::string first_chunks(size_t /*prompt*/) { return {}; }
  // Takes in what a choice gained; the base has done so with its members.
  virtual void take(size_t choice, const RequestDelta& delta) = 0;
  virtual void end(size_t /*choice*/) {}
  // Adds the JSON of a choice to the whole answer.
  virtual void add_choice(size_t choice) = 0;
  // The JSON of a choice in a chunk, with what came since the last one; empty = that is nothing.
  virtual std::string take_chunk(size_t choice) = 0;
  // JSON of usage.completion_tokens_details, of a choice or of all; empty = the API has none.
  virtual std::string completion_details(std::optional<size_t> /*choice*/) const { return {}; }
  // Adds members of a whole answer between usage and the end.
  virtual void add_members() = 0;

  std::string end_of_stream() const;
  void add_whole();
  std::string usage(size_t num_prompt_tokens, size_t num_tokens) const;
  std::string total_usage(bool is_whole) const;

  const ServedModel& model_;
  const char* const constraint_;  // see prepare_request
  std::string head_;              // of an answer, up to its choices
  bool include_usage_ = false;    // in a chunk behind the last
  bool continuous_usage_ = false;
  std::vector<PromptFacts> prompts_;
  int num_open_ = 0;  // completions that have not ended
  std::vector<Choice> choices_;
  std::optional<RequestError> error_;
  std::vector<Part> parts_;  // of a whole answer; those before next_part_ were sent
  size_t next_part_ = 0;
};

}  // namespace nanovllm::server
