#include "server/http/http_rules.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <charconv>
#include <ctime>
#include <nlohmann/json.hpp>

#include "server/http/api_error.h"
#include "server/log.h"

namespace nanovllm::server {

namespace {

// Without the port; the brackets of an IPv6 address go too.
std::string_view host_name(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

// What a browser names as the origin of this server's own pages.
bool is_own_origin(std::string_view origin, std::string_view host) {
  const size_t scheme = origin.find("://");
  return scheme != std::string_view::npos && !host.empty() &&
         equal_ignoring_case(origin.substr(scheme + 3), host);
}

// application/json, or application/ANYTHING+json.
bool is_json(std::string_view content_type) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (type.ends_with(' ') || type.ends_with('\t')) type.remove_suffix(1);
  const size_t slash = std::min(type.find('/'), type.size());
  const size_t plus = type.rfind('+');
  const bool has_suffix = plus != std::string_view::npos && plus > slash + 1;
  return equal_ignoring_case(type.substr(0, slash), "application") &&
         equal_ignoring_case(type.substr(has_suffix ? plus : slash).substr(0, 6),
                             has_suffix ? "+json" : "/json");
}

std::array<unsigned char, 32> digest(std::string_view text) {
  std::array<unsigned char, 32> result;
  ::SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), result.data());
  return result;
}

std::string escaped_for_log(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c < ' ' || c > '~' || c == '"' || c == '\\') {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  const auto found = std::find_if(headers.begin(), headers.end(), [&](const auto& entry) {
    return equal_ignoring_case(entry.first, name);
  });
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

HttpResponse error_response(int status, const std::string& message, const std::string& param,
                            const std::string& type, const std::string& code) {
  return {.status = status,
          .body = error_body(status, message, param, type),
          .error = ErrorWords{.message = message, .param = param, .code = code}};
}

std::string make_request_id() {
  std::array<unsigned char, 16> bytes = {};
  ::RAND_bytes(bytes.data(), static_cast<int>(bytes.size()));
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

std::string http_date() {
  return fmt::format("{:%a, %d %b %Y %H:%M:%S GMT}", fmt::gmtime(std::time(nullptr)));
}

std::string percent_decoded(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    if (text[i] == '%' && text.size() - i > 2 &&
        std::from_chars(&text[i + 1], &text[i + 1] + 2, byte, 16).ptr == &text[i + 1] + 2) {
      result += static_cast<char>(byte);
      i += 2;
    } else {
      result += text[i];
    }
  }
  return result;
}

HttpRules::HttpRules(const HttpOptions& options, bool on_loopback)
    : options_(options),
      on_loopback_(on_loopback),
      all_origins_(std::count(options.allowed_origins.begin(), options.allowed_origins.end(), "*") >
                   0),
      root_path_(options.root_path) {
  while (root_path_.ends_with('/')) root_path_.pop_back();
  if (!root_path_.empty() && root_path_.front() != '/') root_path_ = '/' + root_path_;
  for (const std::string& key : options.api_keys) keys_.push_back(digest(key));
}

std::string HttpRules::strip_root(std::string path) const {
  if (root_path_.empty() || !path.starts_with(root_path_)) return path;
  if (path.size() == root_path_.size()) return "";
  return path[root_path_.size()] == '/' ? path.substr(root_path_.size()) : path;
}

bool HttpRules::is_allowed(std::string_view origin) const {
  return all_origins_ ||
         std::any_of(options_.allowed_origins.begin(), options_.allowed_origins.end(),
                     [&](const std::string& one) { return equal_ignoring_case(one, origin); });
}

bool HttpRules::is_known_host(std::string_view host) const {
  const std::string_view name = host_name(host);
  if (all_origins_ || equal_ignoring_case(name, "localhost") ||
      equal_ignoring_case(name, options_.host)) {
    return true;
  }
  for (const std::string_view origin : options_.allowed_origins) {
    const size_t scheme = origin.find("://");
    if (scheme == origin.npos) continue;
    if (equal_ignoring_case(name, host_name(origin.substr(scheme + 3)))) return true;
  }
  boost::system::error_code ec;
  const auto address = asio::ip::make_address(std::string(name), ec);
  return !ec && address.is_loopback();
}

bool HttpRules::has_key(const HttpRequest& request) const {
  const std::string_view authorization = request.header("authorization");
  const size_t blank = authorization.find(' ');
  if (blank != std::string_view::npos &&
      equal_ignoring_case(authorization.substr(0, blank), "bearer") &&
      is_key(authorization.substr(blank + 1))) {
    return true;
  }
  return is_key(request.header("x-api-key"));
}

bool HttpRules::is_key(std::string_view text) const {
  // Digests are of one length, and none of them is skipped: time tells nothing of the keys.
  const Digest given = digest(text);
  int found = 0;
  for (const Digest& key : keys_) {
    found |= ::CRYPTO_memcmp(given.data(), key.data(), key.size()) == 0 ? 1 : 0;
  }
  return found != 0;
}

std::optional<HttpResponse> HttpRules::answer(const HttpRequest& request, bool has_body) const {
  const std::string_view host = request.header("host");
  if (on_loopback_ && !host.empty() && !is_known_host(host)) {
    return error_response(403,
                          "The Host header names no address of this machine: ask for localhost. "
                          "Where a proxy keeps the name that it was asked for, start the server "
                          "with --allowed-origins https://NAME.",
                          "", "Forbidden");
  }
  const std::string_view origin = request.header("origin");
  if (!origin.empty() && !is_own_origin(origin, host) && !is_allowed(origin)) {
    return error_response(403,
                          "Pages of this Origin may not ask this server: --allowed-origins "
                          "lists those that may.",
                          "", "Forbidden");
  }
  if (request.method == "OPTIONS") {
    if (origin.empty() || request.header("access-control-request-method").empty()) return {};
    HttpResponse response = {.content_type = "text/plain; charset=utf-8",
                             .headers = {{"Access-Control-Allow-Methods",
                                          "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"},
                                         {"Access-Control-Max-Age", "600"}},
                             .body = "OK"};
    const std::string_view wanted = request.header("access-control-request-headers");
    if (!wanted.empty()) response.headers.emplace_back("Access-Control-Allow-Headers", wanted);
    return response;
  }
  const auto& open = options_.open_paths;
  if (!keys_.empty() && std::find(open.begin(), open.end(), request.path) == open.end() &&
      !has_key(request)) {
    return HttpResponse{
        .status = 401,
        .headers = {{"WWW-Authenticate", "Bearer"}},
        .body = kUnauthorized,
        .error = ErrorWords{.message = "No key of this server came with the request: send one as "
                                       "\"Authorization: Bearer KEY\" or as \"x-api-key: KEY\"."}};
  }
  const std::string_view encoding = request.header("content-encoding");
  if (has_body && !encoding.empty() && !equal_ignoring_case(encoding, "identity")) {
    HttpResponse response = error_response(
        415, "Bodies are taken as they are: send this one without a Content-Encoding.");
    response.headers.emplace_back("Accept-Encoding", "identity");
    return response;
  }
  if (request.method == "POST" && has_body && !is_json(request.header("content-type"))) {
    return error_response(400,
                          "1 validation error:\n  Unsupported Media Type: Only 'application/json' "
                          "is allowed",
                          "", "Bad Request");
  }
  return {};
}

void HttpRules::allow_origin(const HttpRequest& request, HttpHeaders& headers) const {
  if (options_.allowed_origins.empty()) return;
  if (!all_origins_) headers.emplace_back("Vary", "Origin");
  const std::string_view origin = request.header("origin");
  if (origin.empty() || !is_allowed(origin)) return;
  headers.emplace_back("Access-Control-Allow-Origin", all_origins_ ? "*" : origin);
  headers.emplace_back("Access-Control-Expose-Headers", "x-request-id, request-id, retry-after");
}

std::string access_log_line(const HttpOptions& options, const HttpRequest& request,
                            std::string_view request_line, int status, double milliseconds,
                            std::chrono::system_clock::time_point time) {
  if (!options.access_log_json) {
    return fmt::format("{} {} - \"{}\" {} {:.1f} ms {}", utc_time(time), request.peer,
                       escaped_for_log(request_line), status, milliseconds,
                       escaped_for_log(request.id));
  }
  using Json = nlohmann::ordered_json;
  return Json{{"time", utc_time(time)}, {"peer", request.peer}, {"request", request_line},
              {"status", status},       {"ms", milliseconds},   {"id", request.id}}
      .dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace nanovllm::server
