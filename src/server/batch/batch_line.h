// The lines of OpenAI's batch files, as text: what is asked, what is answered, and what an answer
// of an earlier run answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/http_server.h"

namespace nanovllm::server {

// Why a line asks nothing that can be answered.
struct BatchFault {
  const char* code;  // what programs know it by, as OpenAI has it
  std::string message;
};

// {"custom_id": ..., "method": "POST", "url": "/v1/...", "body": {...}}. What else a line has is
// nobody's business, as with vLLM.
struct BatchRequest {
  std::optional<std::string> custom_id = {};
  std::string url = {};
  std::string body = {};                 // as it came: what is wrong with it, the endpoint says
  std::optional<BatchFault> fault = {};  // then there is no url and no body
};
// `number` is the line's in its file, from 1.
BatchRequest parse_batch_request(std::string_view line, int64_t number);

// Which line of the input an answer is to, by its place or by the name that its sender gave it.
struct BatchPlace {
  int64_t index = 0;  // of the request, from 0
  std::optional<std::string> custom_id = {};
};

// One line, with its end: {id, custom_id, response: {status_code, request_id, body}, error}. Where
// the status is not 200, `body` is the server's error, as OpenAI has it, and `error` is not null
// either, as vLLM has it.
std::string batch_answer(const BatchPlace& place, const std::string& request_id,
                         const HttpResponse& response);
// The same of a line that was not asked: its response is null.
std::string batch_answer(const BatchPlace& place, const BatchFault& fault);

// How every answer begins; # stands for digits.
constexpr std::string_view kBatchAnswerBegin = R"({"id":"batch_req_#","custom_id":)";

// An answer as it stands in a file.
struct BatchAnswer {
  BatchPlace place;
  bool was_asked = false;  // else custom_id may be missing
  bool has_failed = false;
};
// Nothing where the line is none of batch_answer()'s.
std::optional<BatchAnswer> read_batch_answer(std::string_view line);

}  // namespace nanovllm::server
