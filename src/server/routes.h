// The endpoints, a row each: the paths, who may ask what, what answers, what /openapi.json says.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/http/http_server.h"
#include "server/openai/protocol.h"

namespace nanovllm::server {

class ApiServer;

// What is answered at once; a call that makes requests for engines; and what is made of a body,
// which takes milliseconds where that is long. They throw ApiError.
using AnswerAtOnce = HttpResponse (*)(const ApiServer& server, const HttpRequest& request);
using ParseCall = std::unique_ptr<ApiCall> (*)(std::string_view body, const ServedModel& model,
                                               const std::string& id);
using AnswerText = std::string (*)(std::string_view body, const ServedModel& model);

struct Route {
  Operation operation;
  bool is_open;  // to those without a key too
  std::variant<AnswerAtOnce, ParseCall, AnswerText> handler;

  bool takes(std::string_view method) const;
};

std::span<const Route> routes();
// Null = there is none. One whose path ends with "{...}" has those that end with anything else.
const Route* find_route(std::string_view path);
// Those of the page too.
std::vector<std::string> open_paths();
// Why there is no such path: a sentence.
std::string missing_path(std::string_view path);
// What the API of a path adds to the head of an answer, and its form of errors.
void finish_answer(const HttpRequest& request, HttpResponse& response);

}  // namespace nanovllm::server
