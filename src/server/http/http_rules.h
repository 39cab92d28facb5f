// Who may ask what, and what the answers say of it; no sockets.
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http_server.h"

namespace nanovllm::server {

bool equal_ignoring_case(std::string_view a, std::string_view b);
// "%2F" is '/'; what is no escape stays as it is.
std::string percent_decoded(std::string_view text);
std::string make_request_id();  // 32 random hexadecimal digits
std::string http_date();        // now

class HttpRules {
 public:
  // `on_loopback`: only programs of this machine can connect, which browsers do for any page.
  HttpRules(const HttpOptions& options, bool on_loopback);
  // The path without --root-path; empty where it is nothing else.
  std::string strip_root(std::string path) const;
  // What is answered without the handler: a refusal, or what a browser asks beforehand.
  std::optional<HttpResponse> answer(const HttpRequest& request, bool has_body) const;
  // What lets a page of an allowed origin read the answer.
  void allow_origin(const HttpRequest& request, HttpHeaders& headers) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  bool is_allowed(std::string_view origin) const;
  bool is_known_host(std::string_view host) const;
  bool has_key(const HttpRequest& request) const;
  bool is_key(std::string_view text) const;

  const HttpOptions& options_;
  const bool on_loopback_;
  const bool all_origins_;
  std::string root_path_;
  std::vector<Digest> keys_ = {};
};

// One line of the access log, without its end; `time` is the answer's end.
std::string access_log_line(const HttpOptions& options, const HttpRequest& request,
                            std::string_view request_line, int status, double milliseconds,
                            std::chrono::system_clock::time_point time);

}  // namespace nanovllm::server
