#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/http_server.h"

namespace nanovllm::server {

namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  const auto found = std::find_if(headers.begin(), headers.end(), [&](const auto& entry) {
    return std::equal(entry.first.begin(), entry.first.end(), name.begin(), name.end(),
                      [](char a, char b) { return lower(a) == lower(b); });
  });
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

HttpResponse error_response(int status, const std::string& message, const std::string& param) {
  const char* type = status == 401   ? "Unauthorized"
                     : status == 404 ? "NotFoundError"
                     : status >= 500 ? "InternalServerError"
                                     : "BadRequestError";
  nlohmann::ordered_json error = {
      {"message", message}, {"type", type}, {"param", nullptr}, {"code", status}};
  if (!param.empty()) error["param"] = param;
  using Json = nlohmann::ordered_json;
  return {.status = status,
          .body = Json{{"error", error}}.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

}  // namespace nanovllm::server
