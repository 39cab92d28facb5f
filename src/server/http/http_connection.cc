#include "server/http/http_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <deque>
#include <limits>

#include "server/http/http_parser.h"

namespace nanovllm::server {

namespace {

using Clock = std::chrono::steady_clock;
using boost::system::error_code;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr size_t kReadBufferSize = size_t{8}
                                   << 10;  // bytes; a connection holds as many while it is idle
constexpr size_t kMaxPiece = size_t{64} << 10;  // bytes of what was sent ahead
constexpr size_t kMaxIdSize = 200;              // bytes of an x-request-id that is taken over
// How long the head of a request may take that will be refused, and how long a connection that ends
// waits for another byte.
constexpr Clock::duration kRefusalTime = std::chrono::seconds(5);
constexpr Clock::duration kLinger = std::chrono::seconds(2);

}  // namespace

class HttpConnection final : public HttpExchange,
                             public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(std::shared_ptr<HttpShared> shared, StreamSocket socket, std::string peer)
      : shared_(std::move(shared)),
        options_(shared_->options),
        socket_(std::move(socket)),
        timer_(socket_.get_executor()),
        watchdog_(socket_.get_executor()),
        peer_(std::move(peer)),
        is_refused_(shared_->num_connections.fetch_add(1) >= shared_->max_connections &&
                    !end_an_idle_connection(*shared_)) {}
  ~HttpConnection() override {
    const std::lock_guard lock(shared_->mutex);
    shared_->connections.erase(this);
    --shared_->num_connections;
  }
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  void start();
  void end(bool at_once);  // from any thread
  // Whether it is idle, and ended for that; with HttpShared::mutex held.
  bool end_if_idle_since(int64_t time);
  int64_t idle_since() const { return idle_since_; }

  const HttpRequest& request() const override { return request_; }
  std::string take_body() override { return std::exchange(request_.body, {}); }
  asio::awaitable<void> send(HttpResponse response) override;
  asio::awaitable<void> begin_stream(HttpResponse response) override;
  asio::awaitable<bool> write(std::string_view piece) override;
  asio::awaitable<bool> wait(const std::function<void(std::function<void()> wake)>& wait,
                             std::chrono::milliseconds timeout) override;
  bool is_gone() const override { return is_gone_; }

 private:
  enum class Sent { kNothing, kStreamHead, kAll };

  asio::awaitable<void> run();
  asio::awaitable<bool> serve_request();
  asio::awaitable<bool> read_head(HttpParser& parser);
  asio::awaitable<bool> read_body(HttpParser& parser);
  std::optional<HttpResponse> answer_head(bool has_body);
  asio::awaitable<void> call_handler();
  asio::awaitable<void> linger();
  asio::awaitable<bool> more_input(Clock::time_point deadline);
  asio::awaitable<void> sleep_until(Clock::time_point deadline);
  asio::awaitable<bool> write_all(std::string data);
  std::string head_of(const HttpResponse& response, std::string_view framing);
  void start_read();
  void watch(Clock::duration time);
  void abort();
  // One operation of the stream that there is.
  template <typename F>
  auto on_stream(F operate) {
    return tls_ ? operate(*tls_) : operate(socket_);
  }
  // It may be ended to make room for another one until is_kept() says that it was not.
  void begin_idle() {
    int64_t busy = kBusy;
    const int64_t now = Clock::now().time_since_epoch().count();
    if (!is_refused_) idle_since_.compare_exchange_strong(busy, now);
  }
  bool is_kept() { return idle_since_.exchange(kBusy) != kEnded; }
  bool is_idle() const { return !is_busy_ && input_.empty() && ahead_.empty(); }
  bool is_unwanted() const { return idle_since_ == kEnded || (is_idle() && shared_->stopping); }
  void keep(std::string_view bytes);

  const std::shared_ptr<HttpShared> shared_;
  const HttpOptions& options_;
  StreamSocket socket_;
  std::optional<asio::ssl::stream<StreamSocket&>> tls_ = {};
  asio::steady_timer timer_;  // of whoever waits; cancelled to wake it
  asio::steady_timer watchdog_;
  const std::string peer_;
  const bool is_refused_;

  std::array<char, kReadBufferSize> read_buffer_;
  std::string input_ = {};  // what was read and nobody took yet
  // What comes behind it: of requests that are sent before the answer to this one. All is read, as
  // the end of the connection is behind it.
  std::deque<std::string> ahead_ = {};
  size_t num_ahead_ = 0;  // bytes of it
  uint64_t num_reads_ = 0;
  bool is_reading_ = false;
  bool is_gone_ = false;  // the client left, or was left

  static constexpr int64_t kBusy = 0, kEnded = -1;
  std::atomic<int64_t> idle_since_ = kBusy;  // nanoseconds of Clock

  bool is_ready_ = false;  // for requests
  bool is_busy_ = false;   // with a request
  HttpRequest request_ = {};
  bool keeps_alive_ = false;
  bool knows_chunks_ = false;
  Sent sent_ = Sent::kNothing;
  int status_ = 0;  // of the answer; 0 = none
  uint64_t wait_round_ = 0;
  bool is_woken_ = false;
};

void HttpConnection::start() {
  if (shared_->tls) tls_.emplace(socket_, *shared_->tls);
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->connections.emplace(this, weak_from_this());
  }
  asio::co_spawn(
      socket_.get_executor(), [self = shared_from_this()] { return self->run(); }, asio::detached);
}

void HttpConnection::end(bool at_once) {
  asio::post(socket_.get_executor(), [self = shared_from_this(), at_once] {
    if (at_once || !self->is_ready_) {
      self->abort();
    } else if (self->is_unwanted()) {
      self->timer_.cancel();
    }
  });
}

bool HttpConnection::end_if_idle_since(int64_t time) {
  return time > 0 && idle_since_.compare_exchange_strong(time, kEnded);
}

// Aborts unless `watchdog_` is set anew before.
void HttpConnection::watch(Clock::duration time) {
  watchdog_.expires_after(time);
  watchdog_.async_wait([self = shared_from_this()](error_code ec) {
    if (!ec && self->watchdog_.expiry() <= Clock::now()) self->abort();
  });
}

// Nothing more is read or written. What the client did not take yet is thrown away, so that one
// that never reads holds no memory of the kernel's either.
void HttpConnection::abort() {
  error_code ignored;
  socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  socket_.close(ignored);
  is_gone_ = true;
  timer_.cancel();
}

asio::awaitable<void> HttpConnection::run() {
  try {
    bool is_open = !is_refused_ || shared_->num_connections.load() <=
                                       shared_->max_connections + shared_->max_refused;
    if (tls_ && is_open) {
      begin_idle();
      watch(options_.idle_timeout);
      const auto [ec] = co_await tls_->async_handshake(asio::ssl::stream_base::server, kAwait);
      watchdog_.expires_at(Clock::time_point::max());
      is_open = !ec;
    }
    is_ready_ = true;
    while (is_open) {
      is_open = co_await serve_request();
    }
    if (status_ != 0 && !is_gone_) {
      co_await linger();
    }
  } catch (const std::exception&) {
    // Out of memory, say: it ends this connection and nothing else.
  }
  error_code ignored;
  socket_.close(ignored);
  is_gone_ = true;
}

// A connection that is closed with bytes unread is reset, and the client may lose the answer:
// the rest of what it sends is waited for.
asio::awaitable<void> HttpConnection::linger() {
  if (tls_) {
    tls_->async_shutdown([self = shared_from_this()](error_code) {});
  } else {
    error_code ignored;
    socket_.shutdown(asio::socket_base::shutdown_send, ignored);
  }
  const auto last = Clock::now() + options_.idle_timeout;
  do {
    input_.clear();
    ahead_.clear();
    num_ahead_ = 0;
  } while (Clock::now() < last && co_await more_input(std::min(last, Clock::now() + kLinger)));
}

void HttpConnection::start_read() {
  if (is_reading_ || is_gone_) return;
  is_reading_ = true;
  auto done = [self = shared_from_this()](error_code ec, size_t size) {
    self->is_reading_ = false;
    ++self->num_reads_;
    if (ec) {
      self->is_gone_ = true;
      error_code ignored;
      self->socket_.cancel(ignored);  // a write waits in vain
    } else {
      self->keep({self->read_buffer_.data(), size});
    }
    self->timer_.cancel();
    if (self->is_busy_) self->start_read();
  };
  on_stream(
      [&](auto& stream) { stream.async_read_some(asio::buffer(read_buffer_), std::move(done)); });
}

// As much ahead as a request may be long; who sends more does not wait for answers.
void HttpConnection::keep(std::string_view bytes) {
  if (ahead_.empty() && input_.size() <= static_cast<size_t>(options_.max_header_bytes)) {
    input_ += bytes;
    return;
  }
  if (ahead_.empty() || ahead_.back().size() + bytes.size() > kMaxPiece) ahead_.emplace_back();
  ahead_.back() += bytes;
  num_ahead_ += bytes.size();
  const int64_t most = options_.max_header_bytes + options_.max_body_bytes;
  if (std::cmp_greater(num_ahead_, most)) abort();
}

asio::awaitable<void> HttpConnection::sleep_until(Clock::time_point deadline) {
  timer_.expires_at(deadline);
  co_await timer_.async_wait(kAwait);
}

// False at the deadline and at the end of the connection.
asio::awaitable<bool> HttpConnection::more_input(Clock::time_point deadline) {
  if (!ahead_.empty()) {
    input_ += ahead_.front();
    num_ahead_ -= ahead_.front().size();
    ahead_.pop_front();
    co_return !is_gone_;
  }
  const uint64_t before = num_reads_;
  start_read();
  while (num_reads_ == before && !is_gone_ && Clock::now() < deadline && !is_unwanted()) {
    co_await sleep_until(deadline);
  }
  co_return num_reads_ != before && !is_gone_;
}

// Both are false where the client left, and throw HttpFault where there is something to say to it.
asio::awaitable<bool> HttpConnection::read_head(HttpParser& parser) {
  const Clock::duration limit = options_.idle_timeout;
  const auto deadline = Clock::now() + (is_refused_ ? std::min(limit, kRefusalTime) : limit);
  try {
    while (!parser.take_head(input_)) {
      begin_idle();
      if (co_await more_input(deadline)) continue;
      if (is_gone_ || idle_since_ == kEnded) co_return false;
      throw HttpFault(408, "The head of the request took too long.");
    }
  } catch (const HttpFault&) {
    request_.path = shared_->rules.strip_root(std::move(request_.path));
    throw;
  }
  request_.path = shared_->rules.strip_root(std::move(request_.path));
  if (!is_kept()) co_return false;
  request_.id = request_.header("x-request-id").substr(0, kMaxIdSize);
  keeps_alive_ = parser.keeps_alive();
  knows_chunks_ = parser.knows_chunks();
  co_return true;
}

asio::awaitable<bool> HttpConnection::read_body(HttpParser& parser) {
  if (input_.empty() && knows_chunks_ &&
      equal_ignoring_case(request_.header("expect"), "100-continue")) {
    co_await write_all("HTTP/1.1 100 Continue\r\n\r\n");
  }
  const auto deadline = Clock::now() + options_.idle_timeout;
  while (!parser.take_body(input_)) {
    if (co_await more_input(deadline)) continue;
    if (is_gone_) co_return false;
    throw HttpFault(408, "The body of the request took too long.");
  }
  co_return true;
}

std::optional<HttpResponse> HttpConnection::answer_head(bool has_body) {
  std::optional<HttpResponse> answer;
  if (is_refused_) {
    answer = error_response(503, "The server has as many connections as it may have.", "",
                            "ServiceUnavailableError");
    answer->headers.emplace_back("Retry-After", "1");
  } else {
    answer = shared_->rules.answer(request_, has_body);
  }
  if (is_refused_ || (answer && has_body)) keeps_alive_ = false;  // the body is not worth reading
  return answer;
}

// Whether there can be another one.
asio::awaitable<bool> HttpConnection::serve_request() {
  is_busy_ = keeps_alive_ = knows_chunks_ = false;
  status_ = 0;
  sent_ = Sent::kNothing;
  request_ = {};
  request_.peer = peer_;
  input_.shrink_to_fit();
  if (input_.empty()) {
    begin_idle();
    if (!co_await more_input(Clock::now() + options_.idle_timeout)) {
      co_return false;
    }
  }
  is_busy_ = true;
  const auto start = Clock::now();
  HttpParser parser(options_, request_);
  std::optional<HttpResponse> answer;
  try {
    if (!co_await read_head(parser)) {
      co_return false;
    }
    answer = answer_head(parser.has_body());
    if (!answer && parser.has_body() && !co_await read_body(parser)) {
      co_return false;
    }
  } catch (const HttpFault& fault) {
    if (!is_kept()) co_return false;
    answer = error_response(fault.status(), fault.what(), "",
                            fault.status() == 400 ? "Bad Request" : "");
    keeps_alive_ = false;
  }
  if (request_.id.empty()) request_.id = make_request_id();
  start_read();  // so that a client that leaves is noticed
  if (answer) {
    co_await send(std::move(*answer));
  } else {
    co_await call_handler();
  }
  if (options_.access_log) {
    constexpr int kClientLeft = 499;
    const std::chrono::duration<double, std::milli> time = Clock::now() - start;
    options_.access_log(access_log_line(options_, request_, parser.request_line(),
                                        status_ == 0 ? kClientLeft : status_, time.count(),
                                        std::chrono::system_clock::now()));
  }
  co_return keeps_alive_ && !is_gone_;
}

asio::awaitable<void> HttpConnection::call_handler() {
  std::string error = "The request was left without an answer.";
  bool has_failed = false;
  try {
    co_await shared_->handler(*this);
  } catch (const std::exception& e) {
    error = e.what();
    has_failed = true;
  }
  ++wait_round_;  // who still wakes this request must not wake the next one
  if (sent_ == Sent::kNothing) {
    if (!is_gone_) {
      co_await send(error_response(500, error));
    }
  } else if (sent_ == Sent::kStreamHead) {
    if (has_failed) keeps_alive_ = false;  // without its end, the client sees that it is cut short
    if (!has_failed && knows_chunks_ && request_.method != "HEAD") {
      co_await write_all("0\r\n\r\n");
    }
  }
}

std::string HttpConnection::head_of(const HttpResponse& response, std::string_view framing) {
  status_ = response.status;
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\nContent-Type: {}\r\n{}", status_,
                                 reason_of(status_), http_date(), response.content_type, framing);
  if (shared_->stopping) keeps_alive_ = false;
  if (!keeps_alive_) {
    head += "Connection: close\r\n";
  } else if (!knows_chunks_) {
    head += "Connection: keep-alive\r\n";
  }
  HttpHeaders headers = {{"x-request-id", request_.id}};
  shared_->rules.allow_origin(request_, headers);
  headers.insert(headers.end(), response.headers.begin(), response.headers.end());
  for (const auto& [name, value] : headers) head += fmt::format("{}: {}\r\n", name, value);
  return head + "\r\n";
}

asio::awaitable<void> HttpConnection::send(HttpResponse response) {
  sent_ = Sent::kAll;
  if (options_.finish) options_.finish(request_, response);
  constexpr int kNotModified = 304;  // has the length of what it stands for, or none
  const std::string length = fmt::format("Content-Length: {}\r\n", response.body.size());
  std::string data = head_of(response, response.status == kNotModified ? "" : length);
  if (request_.method != "HEAD") data += response.body;
  co_await write_all(std::move(data));
}

asio::awaitable<void> HttpConnection::begin_stream(HttpResponse response) {
  sent_ = Sent::kStreamHead;
  if (options_.finish) options_.finish(request_, response);
  if (!knows_chunks_) keeps_alive_ = false;  // the end of the connection ends the body
  std::string head = head_of(response, knows_chunks_ ? "Transfer-Encoding: chunked\r\n" : "");
  if (co_await write_all(std::move(head))) {
    co_await write(response.body);
  }
}

asio::awaitable<bool> HttpConnection::write(std::string_view piece) {
  if (request_.method == "HEAD" || piece.empty()) co_return !is_gone_;
  std::string data(piece);
  if (knows_chunks_) data = fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
  co_return co_await write_all(std::move(data));
}

// Most answers fit in what the socket takes at once.
asio::awaitable<bool> HttpConnection::write_all(std::string data) {
  std::string_view rest = data;
  while (!rest.empty() && !is_gone_) {
    error_code ec = asio::error::would_block;
    size_t size = 0;
    if (!tls_) size = socket_.write_some(asio::buffer(rest), ec);
    if (ec == asio::error::would_block) {
      watch(options_.write_timeout);
      auto write = on_stream(
          [&](auto& stream) { return stream.async_write_some(asio::buffer(rest), kAwait); });
      std::tie(ec, size) = co_await std::move(write);
      watchdog_.expires_at(Clock::time_point::max());
    }
    rest.remove_prefix(size);
    if (ec) is_gone_ = true;
  }
  co_return !is_gone_;
}

asio::awaitable<bool> HttpConnection::wait(
    const std::function<void(std::function<void()> wake)>& wait,
    std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const uint64_t round = ++wait_round_;
  is_woken_ = false;
  // Whoever wakes may be the last to know of the connection, which ends on a thread of its own, and
  // of the server, whose context must be there until the connection's thread has been told.
  wait([gate = shared_->gate, connection = weak_from_this(), round] {
    const std::lock_guard lock(gate->mutex);
    auto self = gate->is_closed ? nullptr : connection.lock();
    if (self == nullptr) return;
    const auto executor = self->socket_.get_executor();
    asio::post(executor, [self = std::move(self), round] {
      if (round != self->wait_round_) return;
      self->is_woken_ = true;
      self->timer_.cancel();
    });
  });
  while (!is_woken_ && !is_gone_ && Clock::now() < deadline) {
    co_await sleep_until(deadline);
  }
  co_return is_woken_ || is_gone_;
}

void serve_connection(std::shared_ptr<HttpShared> shared, StreamSocket socket, std::string peer) {
  std::make_shared<HttpConnection>(std::move(shared), std::move(socket), std::move(peer))->start();
}

bool end_an_idle_connection(HttpShared& shared) {
  std::shared_ptr<HttpConnection> ended;  // its last use takes the lock
  const std::unique_lock lock(shared.mutex);
  while (!ended) {
    HttpConnection* idlest = nullptr;
    int64_t since = std::numeric_limits<int64_t>::max();
    for (const auto& [connection, weak] : shared.connections) {
      const int64_t time = connection->idle_since();
      if (time <= 0 || time >= since) continue;
      idlest = connection;
      since = time;
    }
    if (idlest == nullptr) return false;
    if (!idlest->end_if_idle_since(since)) continue;  // a request came
    ended = shared.connections.at(idlest).lock();
  }
  ended->end(false);
  return true;
}

void end_connections(HttpShared& shared, bool at_once) {
  std::vector<std::shared_ptr<HttpConnection>> open;  // the last use of one takes the lock
  {
    const std::lock_guard lock(shared.mutex);
    for (const auto& [connection, weak] : shared.connections) open.push_back(weak.lock());
  }
  for (const auto& one : open) {
    if (one) one->end(at_once);
  }
}

}  // namespace nanovllm::server
