// The APIs without their transport: from the text of a body to requests for an engine, and from an
// engine's events to the text of an answer. Of OpenAI's, statuses, fields and their order are
// vLLM's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/engine_loop.h"
#include "nanovllm/prepare.h"
#include "server/http/api_error.h"
#include "server/transcript/transcript_parser.h"

namespace nanovllm::server {

// What calls need to know. Does not change: any number of threads may use it at once.
struct ServedModel {
  std::vector<std::string> names;  // answers bear the first
  RequestPreparer preparer;
  SamplingParams defaults = {};
  int64_t created = 0;  // seconds since the epoch
  std::string system_fingerprint = {};

  TranscriptFormat format = {};
  TranscriptTags tags = {};  // of the format
  // make_transcript_parser; not called where the format is empty.
  std::function<std::unique_ptr<TranscriptParser>(const TranscriptFormat& format,
                                                  const TranscriptTags& tags,
                                                  std::string_view prompt, const ToolTypes* tools)>
      make_parser = {};

  nlohmann::ordered_json default_chat_template_kwargs = nlohmann::ordered_json::object();
  bool trust_request_chat_template = false;
  bool return_tokens_as_token_ids = false;
  bool enable_prompt_tokens_details = false;
  bool enable_force_include_usage = false;
  std::string tokenizer_info = {};  // the body of /tokenizer_info
  int max_num_prompts = 1024;       // of a completions call
  int max_json_depth = 64;
};

// One call that is answered with what a model says, in whichever API. The model outlives it; one
// thread at a time.
class ApiCall {
 public:
  virtual ~ApiCall() = default;

  // One a prompt, to be queued all; their ids are left to who does it.
  std::vector<AddRequest> requests;
  bool stream = false;
  // Events are to be told when they come, for what is kept of them is much less.
  bool wants_events_soon = false;
  std::vector<std::string> ignored_fields;  // that nobody knows

  // What happened to requests[prompt], in order. Returns what the client is sent: SSE text where it
  // streams, else nothing.
  virtual std::string on_events(size_t prompt, std::span<const EngineEvent> events) = 0;
  // Whether all requests have ended, or one with an error, and the others are to be cancelled.
  virtual bool is_over() const = 0;
  // The error that one of the requests ended with; none = there is none.
  virtual std::optional<ApiError> error() const = 0;
  // Appends the end of the stream, or of a whole answer the next piece, which ends soon behind
  // kAnswerPiece bytes. Returns whether there is more. The first call throws ApiError where a whole
  // answer became none.
  virtual bool next_piece(std::string& out) = 0;
  // All of them.
  std::string finish() {
    std::string all;
    while (next_piece(all)) {
    }
    return all;
  }
};

inline constexpr size_t kAnswerPiece = size_t{64} << 10;  // bytes

// `id` is the request's, for the answer's own. Throw ApiError. They render and tokenize, which
// takes milliseconds for long prompts.
std::unique_ptr<ApiCall> parse_completion(std::string_view body, const ServedModel& model,
                                          const std::string& id);
std::unique_ptr<ApiCall> parse_chat(std::string_view body, const ServedModel& model,
                                    const std::string& id);

// Bodies of answers. The first two throw ApiError.
std::string tokenize_body(std::string_view body, const ServedModel& model);
std::string detokenize_body(std::string_view body, const ServedModel& model);
std::string models_body(const ServedModel& model);
// Of one of its names; throws ApiError (404) for another one.
std::string model_body(const ServedModel& model, const std::string& name);
inline constexpr std::string_view kTokenizerInfo = "/tokenizer_info";
// As vLLM's: what stands in a tokenizer_config.json (its text, or nothing) and the chat template
// that is used. Throws Error(kCorruptData).
std::string tokenizer_info_body(std::string_view config, std::string_view chat_template);
std::string version_body();

// What /openapi.json says of an endpoint.
struct Operation {
  std::string_view path;
  const char* methods;  // "GET, POST"; who may GET may HEAD
  const char* summary;
  const char* answer;                   // a schema's name, or a type of content
  const char* request = nullptr;        // the schema of the body
  bool streams = false;                 // where it is asked to
  const char* error = "ErrorResponse";  // a schema's name
};
std::string openapi_body(std::span<const Operation> operations);

}  // namespace nanovllm::server
