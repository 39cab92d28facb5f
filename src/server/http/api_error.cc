#include "server/http/api_error.h"

#include <nlohmann/json.hpp>

namespace nanovllm::server {
const char* type_of(int status) {
  constexpr std::pair<int, const char*> kTypes[] = {{401, "Unauthorized"},
                                                    {403, "Forbidden"},
                                                    {404, "NotFoundError"},
                                                    {405, "Method Not Allowed"},
                                                    {413, "Request Entity Too Large"},
                                                    {415, "Unsupported Media Type"},
                                                    {429, "Too Many Requests"},
                                                    {503, "ServiceUnavailableError"}};
  for (const auto& [known, type] : kTypes) {
    if (status == known) return type;
  }
  return status >= 500 ? "InternalServerError" : "BadRequestError";
}

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
    case ErrorCode::kCorruptData:
      return 400;
    case ErrorCode::kUnavailable:
      return 503;
    case ErrorCode::kNotFound:
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
      return 500;
  }
  return 500;
}

std::string error_body(int status, const std::string& message, const std::string& param,
                       const std::string& type, const std::string& code) {
  nlohmann::ordered_json error = {{"message", message},
                                  {"type", type.empty() ? type_of(status) : type},
                                  {"param", nullptr},
                                  {"code", status}};
  if (!param.empty()) error["param"] = param;
  if (!code.empty()) error["code"] = code;
  const nlohmann::ordered_json body = {{"error", std::move(error)}};
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace nanovllm::server
