// The bytes of a connection into requests, and the reasons why they are none.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "server/http/http_server.h"

namespace nanovllm::server {

// A request that can't be read; the connection ends behind its answer.
class HttpFault : public std::runtime_error {
 public:
  HttpFault(int status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  int status() const noexcept { return status_; }

 private:
  int status_;
};

// Reads one request into what its maker holds. Stricter than HTTP asks where servers and proxies
// are known to disagree on where a request ends: such a request throws HttpFault, as one over the
// limits does.
class HttpParser {
 public:
  HttpParser(const HttpOptions& options, HttpRequest& request);
  ~HttpParser();
  HttpParser(const HttpParser&) = delete;
  HttpParser& operator=(const HttpParser&) = delete;

  // Both take what they read from the front of `input` and return whether they have all of it.
  bool take_head(std::string& input);
  bool take_body(std::string& input);

  bool has_body() const;  // once the head is there: some is still to come
  bool keeps_alive() const;
  bool knows_chunks() const;
  std::string request_line() const;  // "-" before it is known

 private:
  struct Beast;

  bool find_end_of_head(const std::string& input);
  void take_target(std::string_view target);
  void take_fields();

  const HttpOptions& options_;
  HttpRequest& request_;
  const std::unique_ptr<Beast> beast_;
  size_t line_start_ = 0;  // of the first line that is not checked, in bytes
  std::string host_of_target_ = {};
};

// "OK" of 200.
std::string_view reason_of(int status);

}  // namespace nanovllm::server
