#include "server/http_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <limits>
#include <string_view>

#include "server/http_rules.h"

namespace nanovllm::server {

namespace http = boost::beast::http;
using boost::system::error_code;
using BeastView = boost::beast::string_view;

namespace {

// Of the request line beside the URL: a method, two blanks and the version.
constexpr size_t kLineBeside = 64;

[[noreturn]] void bad_request(const std::string& what) {
  throw HttpFault(400, fmt::format("Invalid HTTP request: {}.", what));
}

}  // namespace

class HttpParser::Impl : public http::basic_parser<true> {
 public:
  explicit Impl(HttpRequest& r) : request(r) {}

  HttpRequest& request;
  std::string request_line = "-";
  int http_version = 0;  // 11 for HTTP/1.1
  bool is_head_done = false;

 private:
  void on_request_impl(http::verb /*method*/, BeastView method, BeastView target, int version,
                       error_code& /*ec*/) override {
    request_line = fmt::format("{} {} HTTP/{}.{}", std::string_view(method),
                               std::string_view(target), version / 10, version % 10);
    request.method = method;
    http_version = version;
    std::string_view rest = target;
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
    request.path = percent_decoded(rest.substr(0, query));
    if (request.path.empty()) request.path += '/';
    if (query < rest.size()) request.query = rest.substr(query + 1);
  }

  void on_field_impl(http::field name, BeastView name_string, BeastView value,
                     error_code& /*ec*/) override {
    if (is_head_done) return;  // behind the last chunk: nothing that this server knows
    if (name == http::field::content_length &&
        !(request.header("content-length").empty() &&
          std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; }))) {
      bad_request("it has more than one length");
    }
    if (name == http::field::transfer_encoding && !equal_ignoring_case(value, "chunked")) {
      bad_request("of transfer codings only chunked is known");
    }
    if (name == http::field::host) {
      if (std::exchange(has_host_, true)) bad_request("it has more than one host");
      if (!host_of_target_.empty()) value = host_of_target_;
    }
    request.headers.emplace_back(name_string, value);
  }

  void on_header_impl(error_code& /*ec*/) override {
    if (http_version >= 11 && !has_host_) bad_request("it names no host");
    if (http_version < 11 && chunked()) bad_request("HTTP/1.0 has no chunks");
    is_head_done = true;
  }

  size_t on_body_impl(BeastView piece, error_code& /*ec*/) override {
    request.body.append(piece.data(), piece.size());
    return piece.size();
  }
  size_t on_chunk_body_impl(uint64_t /*remain*/, BeastView piece, error_code& ec) override {
    return on_body_impl(piece, ec);
  }
  void on_response_impl(int /*code*/, BeastView /*reason*/, int /*version*/,
                        error_code& /*ec*/) override {}
  void on_body_init_impl(const boost::optional<uint64_t>& /*length*/, error_code& /*ec*/) override {
  }
  void on_chunk_header_impl(uint64_t /*size*/, BeastView /*extensions*/,
                            error_code& /*ec*/) override {}
  void on_finish_impl(error_code& /*ec*/) override {}

  std::string host_of_target_;
  bool has_host_ = false;
};

HttpParser::HttpParser(const HttpOptions& options, HttpRequest& request)
    : options_(options), impl_(std::make_unique<Impl>(request)) {
  // Ours are checked before Beast sees the bytes.
  impl_->header_limit(std::numeric_limits<uint32_t>::max());
  impl_->body_limit(static_cast<uint64_t>(options.max_body_bytes));
}

HttpParser::~HttpParser() = default;

// Lines end in CR LF, none continues another, and no other control character of the three stands
// in them: Beast is more lenient, and so are servers behind which requests have been smuggled.
bool HttpParser::find_end_of_head(const std::string& input) {
  const auto max_head = static_cast<size_t>(options_.max_header_bytes);
  const auto max_line = static_cast<size_t>(options_.max_url_bytes) + kLineBeside;
  for (;;) {
    const size_t end = input.find('\n', line_start_);
    const std::string_view line =
        std::string_view(input).substr(line_start_, std::min(end, input.size()) - line_start_);
    if (line.find('\0') != std::string_view::npos) bad_request("it holds a NUL");
    if (line_start_ == 0 && line.size() > max_line) {
      throw HttpFault(414, fmt::format("The URL is longer than {} bytes.", options_.max_url_bytes));
    }
    if (line_start_ + line.size() + 1 > max_head) {
      throw HttpFault(
          431, fmt::format("The headers are longer than {} bytes.", options_.max_header_bytes));
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
  error_code ec;
  impl_->put(asio::buffer(input.data(), line_start_), ec);
  input.erase(0, line_start_);
  if (ec == http::error::body_limit) {
    throw HttpFault(413, fmt::format("The body is longer than {} bytes.", options_.max_body_bytes));
  }
  if (ec) bad_request(ec.message());
  const std::string_view line = impl_->request_line;
  if (line.size() > static_cast<size_t>(options_.max_url_bytes) + impl_->request.method.size() +
                        std::string_view("  HTTP/1.1").size()) {
    throw HttpFault(414, fmt::format("The URL is longer than {} bytes.", options_.max_url_bytes));
  }
  impl_->eager(true);
  return true;
}

bool HttpParser::take_body(std::string& input) {
  size_t taken = 0;
  error_code ec;
  while (!impl_->is_done() && taken < input.size() && !ec) {
    taken += impl_->put(asio::buffer(input.data() + taken, input.size() - taken), ec);
  }
  input.erase(0, taken);
  if (ec == http::error::body_limit) {
    throw HttpFault(413, fmt::format("The body is longer than {} bytes.", options_.max_body_bytes));
  }
  if (ec && ec != http::error::need_more) bad_request(ec.message());
  if (ec && input.size() >= static_cast<size_t>(options_.max_header_bytes)) {
    bad_request("what stands around a chunk is too long");
  }
  return impl_->is_done();
}

bool HttpParser::has_body() const { return !impl_->is_done(); }
bool HttpParser::keep_alive() const { return impl_->is_head_done && impl_->keep_alive(); }
bool HttpParser::knows_chunks() const { return impl_->is_head_done && impl_->http_version >= 11; }
const std::string& HttpParser::request_line() const { return impl_->request_line; }

}  // namespace nanovllm::server
