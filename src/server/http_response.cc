#include <algorithm>

#include "server/http_rules.h"
#include "server/protocol.h"

namespace nanovllm::server {

namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view HttpRequest::header(std::string_view name) const {
  const auto found = std::find_if(headers.begin(), headers.end(), [&](const auto& entry) {
    return equal_ignoring_case(entry.first, name);
  });
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

HttpResponse error_response(int status, const std::string& message, const std::string& param,
                            const std::string& type) {
  return {.status = status, .body = error_body(status, message, param, type)};
}

}  // namespace nanovllm::server
