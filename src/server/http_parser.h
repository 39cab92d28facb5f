// The bytes of a connection into requests, and the reasons why they are none.
#pragma once

#include <boost/beast/http/basic_parser.hpp>
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
class HttpParser : private boost::beast::http::basic_parser<true> {
 public:
  HttpParser(const HttpOptions& options, HttpRequest& request);
  // Both take what they read from the front of `input` and return whether they have all of it.
  bool take_head(std::string& input);
  bool take_body(std::string& input);

  bool has_body() const { return !is_done(); }  // once the head is there: some is still to come
  bool keeps_alive() const { return keep_alive(); }
  bool knows_chunks() const { return version_ >= 11; }
  const std::string& request_line() const { return request_line_; }  // "-" before it is known

 private:
  using error_code = boost::beast::error_code;
  using View = boost::beast::string_view;

  bool find_end_of_head(const std::string& input);
  void check(const error_code& ec) const;

  void on_request_impl(boost::beast::http::verb, View method, View target, int version,
                       error_code&) override;
  void on_field_impl(boost::beast::http::field, View name, View value, error_code&) override;
  void on_header_impl(error_code&) override;
  size_t on_body_impl(View piece, error_code&) override;
  size_t on_chunk_body_impl(uint64_t remain, View piece, error_code&) override;
  void on_response_impl(int, View, int, error_code&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  void on_chunk_header_impl(uint64_t, View, error_code&) override {}
  void on_finish_impl(error_code&) override {}

  const HttpOptions& options_;
  HttpRequest& request_;
  size_t line_start_ = 0;  // of the first line that is not checked, in bytes
  std::string request_line_ = "-";
  int version_ = 0;  // 11 for HTTP/1.1
  std::string host_of_target_ = {};
  bool has_host_ = false;
  bool has_head_ = false;
};

}  // namespace nanovllm::server
