#include "server/http_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "server/http_rules.h"

namespace nanovllm::server {

namespace http = boost::beast::http;

namespace {

// Bytes of the request line beside the URL: a method, two blanks and the version.
constexpr size_t kBesideUrl = 64;

[[noreturn]] void bad_request(const std::string& what) {
  throw HttpFault(400, fmt::format("Invalid HTTP request: {}.", what));
}

[[noreturn]] void too_long(int status, const char* what, int64_t limit) {
  throw HttpFault(status, fmt::format("{} more than {} bytes.", what, limit));
}

}  // namespace

HttpParser::HttpParser(const HttpOptions& options, HttpRequest& request)
    : options_(options), request_(request) {
  header_limit(std::numeric_limits<uint32_t>::max());  // find_end_of_head() keeps ours
  body_limit(static_cast<uint64_t>(options.max_body_bytes));
}

// Lines end in CR LF, none continues another, and no NUL or further CR stands in them: Beast is
// more lenient, and so are servers behind which requests have been smuggled.
bool HttpParser::find_end_of_head(const std::string& input) {
  for (;;) {
    const size_t end = input.find('\n', line_start_);
    const std::string_view line =
        std::string_view(input).substr(line_start_, std::min(end, input.size()) - line_start_);
    if (line.find('\0') != std::string_view::npos) bad_request("it holds a NUL");
    if (line_start_ == 0 &&
        line.size() > static_cast<size_t>(options_.max_url_bytes) + kBesideUrl) {
      too_long(414, "The URL has", options_.max_url_bytes);
    }
    if (line_start_ + line.size() + 1 > static_cast<size_t>(options_.max_header_bytes)) {
      too_long(431, "The headers have", options_.max_header_bytes);
    }
    if (end == std::string::npos) return false;
    if (line.empty() || line.find('\r') != line.size() - 1) {
      bad_request("a line does not end in CR LF");
    }
    if (line.front() == ' ' || line.front() == '\t') bad_request("a header goes over two lines");
    line_start_ = end + 1;
    if (line.size() == 1) return true;
  }
}

void HttpParser::check(const error_code& ec) const {
  if (ec == http::error::body_limit) too_long(413, "The body has", options_.max_body_bytes);
  if (ec && ec != http::error::need_more) bad_request(ec.message());
}

bool HttpParser::take_head(std::string& input) {
  if (line_start_ == 0) {
    while (input.starts_with("\r\n")) input.erase(0, 2);  // as older clients send behind a body
  }
  if (!find_end_of_head(input)) return false;
  error_code ec;
  put(asio::buffer(input.data(), line_start_), ec);
  input.erase(0, line_start_);
  check(ec);
  if (!has_head_) bad_request("its head is incomplete");
  eager(true);
  return true;
}

bool HttpParser::take_body(std::string& input) {
  size_t taken = 0;
  error_code ec;
  while (!is_done() && taken < input.size() && !ec) {
    taken += put(asio::buffer(input.data() + taken, input.size() - taken), ec);
  }
  input.erase(0, taken);
  check(ec);
  if (input.size() >= static_cast<size_t>(options_.max_header_bytes) && !is_done()) {
    bad_request("what stands around a chunk is too long");
  }
  return is_done();
}

void HttpParser::on_request_impl(http::verb /*method*/, View method, View target, int version,
                                 error_code& /*ec*/) {
  request_line_ = fmt::format("{} {} HTTP/{}.{}", std::string_view(method),
                              std::string_view(target), version / 10, version % 10);
  request_.method = method;
  version_ = version;
  std::string_view rest = target;
  if (rest.size() > static_cast<size_t>(options_.max_url_bytes)) {
    too_long(414, "The URL has", options_.max_url_bytes);
  }
  const size_t scheme = rest.starts_with("http://") ? 7 : rest.starts_with("https://") ? 8 : 0;
  if (scheme > 0) {  // a proxy's form: the host it names replaces the header's
    rest.remove_prefix(scheme);
    const size_t end = std::min(rest.find_first_of("/?"), rest.size());
    host_of_target_ = rest.substr(0, end);
    rest.remove_prefix(end);
  } else if (!rest.starts_with('/') && rest != "*") {
    bad_request("its target begins with no slash");
  }
  const size_t query = std::min(rest.find('?'), rest.size());
  request_.path = percent_decoded(rest.substr(0, query));
  if (request_.path.empty()) request_.path += '/';
  if (query < rest.size()) request_.query = rest.substr(query + 1);
}

void HttpParser::on_field_impl(http::field field, View name, View value, error_code& /*ec*/) {
  if (has_head_) return;  // behind the last chunk: nothing that this server knows
  if (field == http::field::content_length &&
      !(request_.header("content-length").empty() &&
        std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; }))) {
    bad_request("it has more than one length");
  }
  if (field == http::field::transfer_encoding && !equal_ignoring_case(value, "chunked")) {
    bad_request("of transfer codings only chunked is known");
  }
  if (field == http::field::host) {
    if (std::exchange(has_host_, true)) bad_request("it has more than one host");
    if (!host_of_target_.empty()) value = host_of_target_;
  }
  request_.headers.emplace_back(name, value);
}

void HttpParser::on_header_impl(error_code& /*ec*/) {
  if (version_ >= 11 && !has_host_) bad_request("it names no host");
  if (version_ < 11 && chunked()) bad_request("HTTP/1.0 has no chunks");
  has_head_ = true;
}

size_t HttpParser::on_body_impl(View piece, error_code& /*ec*/) {
  request_.body.append(piece.data(), piece.size());
  return piece.size();
}

size_t HttpParser::on_chunk_body_impl(uint64_t /*remain*/, View piece, error_code& ec) {
  return on_body_impl(piece, ec);
}

}  // namespace nanovllm::server
