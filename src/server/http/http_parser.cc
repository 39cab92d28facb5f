#include "server/http/http_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <limits>
#include <string_view>
#include <utility>

#include "server/http/http_rules.h"

namespace nanovllm::server {

namespace http = boost::beast::http;
using boost::beast::error_code;

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

struct HttpParser::Beast : http::request_parser<http::string_body> {
  // Takes bytes from the front of `input`, at most up to `end`.
  void take(std::string& input, size_t end, int64_t max_body_bytes) {
    size_t taken = 0;
    error_code ec;
    while (!is_done() && taken < end && !ec) {
      taken += put(asio::buffer(input.data() + taken, end - taken), ec);
    }
    input.erase(0, taken);
    if (ec == http::error::body_limit) too_long(413, "The body has", max_body_bytes);
    if (ec && ec != http::error::need_more) bad_request(ec.message());
  }
};

HttpParser::HttpParser(const HttpOptions& options, HttpRequest& request)
    : options_(options), request_(request), beast_(std::make_unique<Beast>()) {
  beast_->header_limit(std::numeric_limits<uint32_t>::max());  // find_end_of_head() keeps ours
  beast_->body_limit(static_cast<uint64_t>(options.max_body_bytes));
}

HttpParser::~HttpParser() = default;
bool HttpParser::has_body() const { return !beast_->is_done(); }
bool HttpParser::keeps_alive() const { return beast_->keep_alive(); }
bool HttpParser::knows_chunks() const { return beast_->get().version() >= 11; }

std::string HttpParser::request_line() const {
  const auto& head = beast_->get();
  if (head.target().empty()) return "-";
  return fmt::format("{} {} HTTP/{}.{}", std::string_view(head.method_string()),
                     std::string_view(head.target()), head.version() / 10, head.version() % 10);
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

bool HttpParser::take_head(std::string& input) {
  if (line_start_ == 0) {
    while (input.starts_with("\r\n")) input.erase(0, 2);  // as older clients send behind a body
  }
  if (!find_end_of_head(input)) return false;
  try {
    beast_->take(input, line_start_, options_.max_body_bytes);
  } catch (const HttpFault&) {
    // A length that is refused: the refusal has the form of the path.
    const std::string target(beast_->get().target());
    if (!target.empty()) take_target(target);
    throw;
  }
  if (!beast_->is_header_done()) bad_request("its head is incomplete");
  beast_->eager(true);
  const auto& head = beast_->get();
  request_.method = head.method_string();
  take_target(head.target());
  take_fields();
  return true;
}

bool HttpParser::take_body(std::string& input) {
  beast_->take(input, input.size(), options_.max_body_bytes);
  if (beast_->is_done()) {
    request_.body = std::move(beast_->get().body());
  } else if (input.size() >= static_cast<size_t>(options_.max_header_bytes)) {
    bad_request("what stands around a chunk is too long");
  }
  return beast_->is_done();
}

void HttpParser::take_target(std::string_view target) {
  if (target.size() > static_cast<size_t>(options_.max_url_bytes)) {
    too_long(414, "The URL has", options_.max_url_bytes);
  }
  const size_t scheme = target.starts_with("http://") ? 7 : target.starts_with("https://") ? 8 : 0;
  if (scheme > 0) {  // a proxy's form: the host it names replaces the header's
    target.remove_prefix(scheme);
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    host_of_target_ = target.substr(0, end);
    target.remove_prefix(end);
  } else if (!target.starts_with('/') && target != "*") {
    bad_request("its target begins with no slash");
  }
  const size_t query = std::min(target.find('?'), target.size());
  request_.path = percent_decoded(target.substr(0, query));
  if (request_.path.empty()) request_.path += '/';
  if (query < target.size()) request_.query = target.substr(query + 1);
}

void HttpParser::take_fields() {
  const auto& head = beast_->get();
  for (const auto& field : head) {
    std::string_view value(field.value());
    if (field.name() == http::field::content_length &&
        value.find_first_not_of("0123456789") != std::string_view::npos) {
      bad_request("its length is no number");
    }
    if (field.name() == http::field::transfer_encoding && !equal_ignoring_case(value, "chunked")) {
      bad_request("of transfer codings only chunked is known");
    }
    if (field.name() == http::field::host && !host_of_target_.empty()) value = host_of_target_;
    request_.headers.emplace_back(field.name_string(), value);
  }
  if (head.count(http::field::content_length) > 1) bad_request("it has more than one length");
  if (head.count(http::field::host) > 1) bad_request("it has more than one host");
  if (head.version() >= 11 && head.count(http::field::host) == 0) bad_request("it names no host");
  if (head.version() < 11 && beast_->chunked()) bad_request("HTTP/1.0 has no chunks");
}

std::string_view reason_of(int status) {
  return std::string_view(http::obsolete_reason(static_cast<http::status>(status)));
}

// Beast's own comparison knows no locale.
bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return boost::beast::iequals({a.data(), a.size()}, {b.data(), b.size()});
}

}  // namespace nanovllm::server
