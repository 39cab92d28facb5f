// A server to ask and a client that sends any bytes, for tests.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "server/http/http_server.h"

namespace nanovllm::server::http_testing {

using namespace std::chrono_literals;

// Long enough for a loaded machine under a sanitizer; nothing that works waits as long.
inline constexpr std::chrono::seconds kPatience{60};

// Whether `condition` comes true.
inline bool comes_true(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

// What the test server's handler counts.
struct Seen {
  std::atomic<int> gone = 0;       // clients that left while they were waited for
  std::atomic<int> cut = 0;        // streams that ended before their last piece
  std::atomic<int> whole = 0;      // streams that did not
  std::atomic<int64_t> bytes = 0;  // written by /endless
};

class TestServer {
 public:
  // With one thread things happen in the order in which clients ask for them.
  explicit TestServer(HttpOptions options = {}, int num_threads = 2) {
    if (options.uds.empty() && options.port == HttpOptions().port) options.port = 0;
    server_ = make_http_server(context_, std::move(options),
                               [this](HttpExchange& exchange) { return handle(exchange); });
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { context_.run(); });
  }
  ~TestServer() {
    server_.reset();
    guard_.reset();
    for (std::thread& thread : threads_) thread.join();
  }
  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  HttpServer& operator*() { return *server_; }
  HttpServer* operator->() { return server_.get(); }
  bool is_empty_soon() {
    return comes_true([&] { return server_->num_connections() == 0; });
  }

  Seen seen = {};

 private:
  asio::awaitable<void> handle(HttpExchange& exchange);
  asio::awaitable<void> stream(HttpExchange& exchange, int count);
  asio::awaitable<void> endless(HttpExchange& exchange);

  asio::io_context context_;
  asio::executor_work_guard<asio::io_context::executor_type> guard_{context_.get_executor()};
  std::unique_ptr<HttpServer> server_;
  std::vector<std::thread> threads_;
};

inline HttpResponse text(std::string body) {
  return {.content_type = "text/plain", .body = std::move(body)};
}

// "piece 0;piece 1;...", each woken by another thread's timer.
inline asio::awaitable<void> TestServer::stream(HttpExchange& exchange, int count) {
  co_await exchange.begin_stream(text("begin;"));
  for (int i = 0; i < count; ++i) {
    std::thread waker;
    const bool is_woken = co_await exchange.wait(
        [&](std::function<void()> wake) {
          waker = std::thread([wake = std::move(wake)] { wake(); });
        },
        kPatience);
    waker.join();
    EXPECT_TRUE(is_woken);
    if (exchange.is_gone() || !co_await exchange.write("piece " + std::to_string(i) + ";")) {
      ++seen.cut;
      co_return;
    }
  }
  ++seen.whole;
}

inline asio::awaitable<void> TestServer::endless(HttpExchange& exchange) {
  const std::string piece(size_t{64} << 10, 'x');
  co_await exchange.begin_stream(text(""));
  while (co_await exchange.write(piece)) seen.bytes += static_cast<int64_t>(piece.size());
  ++seen.cut;
}

inline asio::awaitable<void> TestServer::handle(HttpExchange& exchange) {
  const HttpRequest& request = exchange.request();
  const std::string& path = request.path;
  if (path == "/hello") {
    co_await exchange.send(text("hello"));
  } else if (path == "/echo") {
    co_await exchange.send(text(request.body));
  } else if (path == "/show") {
    co_await exchange.send(
        text(request.method + "|" + path + "|" + request.query + "|" + request.peer));
  } else if (path == "/stream") {
    const int count = request.query.empty() ? 3 : std::stoi(request.query);
    co_await stream(exchange, count);
  } else if (path == "/endless") {
    co_await endless(exchange);
  } else if (path == "/wait") {
    while (!exchange.is_gone()) {
      co_await exchange.wait([](const std::function<void()>& /*wake*/) {}, kPatience);
    }
    ++seen.gone;
  } else if (path == "/timeout") {
    const bool is_woken = co_await exchange.wait([](const std::function<void()>&) {}, 20ms);
    const std::string end = is_woken ? "woken" : "timeout";
    co_await exchange.send(text(end));
  } else if (path == "/throw") {
    throw std::runtime_error("thrown \"here\"");
  } else if (path == "/throw-late") {
    co_await exchange.begin_stream(text("begin;"));
    throw std::runtime_error("thrown late");
  } else if (path != "/nothing") {
    co_await exchange.send(error_response(404, "no " + path));
  }
}

struct Answer {
  int status = 0;
  std::string head = {};  // without its empty line
  std::string body = {};  // of what came, in chunks or not

  bool has(std::string_view text) const { return head.find(text) != std::string::npos; }
};

// A blocking connection.
class Client {
 public:
  explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connect(reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  explicit Client(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    connect(reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  ~Client() { close(); }
  Client(Client&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)),
        is_connected_(other.is_connected_),
        input_(std::move(other.input_)) {}
  Client& operator=(Client&& other) noexcept {
    std::swap(socket_, other.socket_);
    std::swap(is_connected_, other.is_connected_);
    std::swap(input_, other.input_);
    return *this;
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  int socket() const { return socket_; }
  bool is_connected() const { return is_connected_; }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  // What a server that closed no longer takes is lost.
  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  // More of what the server sent into `input`; false = it closed the connection, or sent nothing.
  bool receive(std::chrono::milliseconds patience = kPatience) {
    pollfd one = {.fd = socket_, .events = POLLIN, .revents = 0};
    if (::poll(&one, 1, static_cast<int>(patience.count())) != 1) {
      timed_out_ = true;
      return false;
    }
    std::string piece(size_t{64} << 10, '\0');
    const ssize_t size = ::recv(socket_, piece.data(), piece.size(), 0);
    if (size <= 0) return false;
    input_.append(piece, 0, static_cast<size_t>(size));
    return true;
  }
  size_t num_received() const { return input_.size(); }
  // Whether the server closes the connection after it sent nothing more.
  bool is_closed() { return input_.empty() && !receive() && !timed_out_; }
  // Everything up to the end of the connection.
  std::string rest() {
    while (receive()) {
    }
    EXPECT_FALSE(timed_out_);
    return std::exchange(input_, "");
  }
  bool wait_for(std::string_view text) {
    while (input_.find(text) == std::string::npos) {
      if (!receive()) return false;
    }
    return true;
  }
  Answer answer(bool of_head = false);
  Answer ask(std::string_view bytes) {
    send(bytes);
    return answer();
  }

 private:
  void connect(const sockaddr* address, socklen_t size) {
    is_connected_ = ::connect(socket_, address, size) == 0;
  }
  std::string take(size_t size) {
    while (input_.size() < size && receive()) {
    }
    std::string taken = input_.substr(0, size);
    input_.erase(0, size);
    return taken;
  }
  std::string take_line() {
    if (!wait_for("\r\n")) return std::exchange(input_, "");
    return take(input_.find("\r\n") + 2);
  }

  int socket_;
  bool is_connected_ = false;
  bool timed_out_ = false;
  std::string input_ = {};
};

inline Answer Client::answer(bool of_head) {
  Answer answer;
  if (!wait_for("\r\n\r\n")) return answer;
  answer.head = take(input_.find("\r\n\r\n") + 4);
  EXPECT_TRUE(answer.head.starts_with("HTTP/1.1 ")) << answer.head;
  answer.status = std::stoi(answer.head.substr(9));
  if (of_head) return answer;
  const size_t length = answer.head.find("Content-Length: ");
  if (length != std::string::npos) {
    answer.body = take(std::stoul(answer.head.substr(length + 16)));
  } else if (answer.has("Transfer-Encoding: chunked")) {
    for (;;) {
      const std::string line = take_line();
      if (line.empty()) return answer;  // cut short
      const size_t size = std::stoul(line, nullptr, 16);
      const std::string piece = take(size + 2);
      if (size == 0) break;
      answer.body += piece.substr(0, size);
    }
  } else if (answer.status >= 200) {
    answer.body = rest();
  }
  return answer;
}

inline std::string get(const std::string& path, const std::string& headers = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n";
}
inline std::string post(const std::string& path, const std::string& body,
                        const std::string& headers = "Content-Type: application/json\r\n") {
  return "POST " + path +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         headers + "\r\n" + body;
}

}  // namespace nanovllm::server::http_testing
