// The bytes of a connection into requests, and the reasons why they are none.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "server/http_server.h"

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
  // Both take what they read from the front of `input` and return whether they have all of it.
  bool take_head(std::string& input);
  bool take_body(std::string& input);

  bool has_body() const;  // once the head is there: bytes of it are still to come
  bool keep_alive() const;
  bool knows_chunks() const;                // HTTP/1.1
  const std::string& request_line() const;  // "-" before it is known

 private:
  class Impl;
  bool find_end_of_head(const std::string& input);

  const HttpOptions& options_;
  std::unique_ptr<Impl> impl_;
  size_t line_start_ = 0;  // of the first line that is not checked, in bytes
};

}  // namespace nanovllm::server
