// HTTP/1.1 for handlers that know nothing of sockets.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/api_error.h"

namespace nanovllm::server {

namespace asio = boost::asio;

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method = {};
  std::string path = {};   // decoded, without query and --root-path
  std::string query = {};  // behind '?', as it came
  HttpHeaders headers = {};
  std::string body = {};
  std::string peer = {};  // address and port, or the socket's path
  std::string id = {};    // x-request-id, or one made here

  // The first header of a name, whatever its case; empty = none.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers = {};
  std::string body = {};
  std::optional<ErrorWords> error = {};  // that the body tells
};

// One request and its answer. All calls on the coroutine's executor, one at a time.
//
// g++ 12 destroys some arguments of `co_await f(...)` twice: aggregates in braces, `a ? b : c` of
// class type, and lambdas that capture anything but references or numbers. Give such things a name
// first: a response that a function made or a variable holds is fine.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual const HttpRequest& request() const = 0;
  // The request's body, which is not kept: an answer may take long.
  virtual std::string take_body() = 0;
  // The whole answer. Once, and not beside begin_stream().
  virtual asio::awaitable<void> send(HttpResponse response) = 0;
  // The head of an answer that comes in pieces (`response.body` is the first).
  virtual asio::awaitable<void> begin_stream(HttpResponse response) = 0;
  // Waits while the client reads slowly. False once it is gone.
  virtual asio::awaitable<bool> write(std::string_view piece) = 0;
  // Waits for a stream's events or for the client: `wait` is given a function that ends the wait
  // from any thread. Returns false at the timeout; throws nothing. is_gone() tells whether the
  // client left meanwhile, which ends the wait too.
  virtual asio::awaitable<bool> wait(const std::function<void(std::function<void()> wake)>& wait,
                                     std::chrono::milliseconds timeout) = 0;
  virtual bool is_gone() const = 0;
  // Whether an answer may come as a stream of events.
  virtual bool takes_streams() const { return true; }
  // What the request draws by where it names no seed; nothing = the order in which requests come.
  virtual std::optional<int64_t> seed() const { return {}; }
};

using HttpHandler = std::function<asio::awaitable<void>(HttpExchange& exchange)>;

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                                // 0 = any free one
  std::string uds = {};                           // path of a Unix socket, instead of host and port
  std::string root_path = {};                     // prefix that a proxy leaves on
  std::vector<std::string> api_keys = {};         // none = everybody may
  std::vector<std::string> open_paths = {};       // that want no key
  std::vector<std::string> allowed_origins = {};  // "*" = all
  std::string ssl_keyfile = {}, ssl_certfile = {};  // both or none
  int64_t max_body_bytes = int64_t{32} << 20;
  int64_t max_header_bytes = int64_t{64} << 10;
  int64_t max_url_bytes = int64_t{8} << 10;
  // An idle connection is closed for one over it; where all are busy, that one gets a 503. There
  // are fewer where the process may not open as many descriptors.
  int max_connections = 4096;
  int num_other_descriptors = 64;                   // that this process may need beside them
  std::chrono::milliseconds idle_timeout{75'000};   // between requests, and of a head or body
  std::chrono::milliseconds write_timeout{60'000};  // of a client that reads nothing
  // Called by any thread before an answer is sent, for what the API of a path adds to its head, and
  // for its form of errors. The path is empty where the request's head has a fault; null = nothing.
  std::function<void(const HttpRequest& request, HttpResponse& response)> finish = {};
  // Called by any thread with a line without its end; null = none.
  std::function<void(const std::string& line)> access_log = {};
  bool access_log_json = false;
};

// Listens from its constructor on; threads that run `context` do the work, a handler's steps too.
// Its destructor cuts all connections off, and handlers that are still under way see is_gone():
// what they use must outlive them, that is the threads or num_connections() > 0. Throws Error(kIo)
// in a sentence where the address can't be had.
class HttpServer {
 public:
  virtual ~HttpServer() = default;
  virtual int port() const = 0;
  virtual int max_connections() const = 0;
  // Takes no new connections, ends those that have no request, and the others after their answer.
  virtual void stop_accepting() = 0;
  virtual int num_connections() const = 0;
};

std::unique_ptr<HttpServer> make_http_server(asio::io_context& context, HttpOptions options,
                                             HttpHandler handler);

// The error that vLLM answers: {"error": {message, type, param, code}}. The type is the one that
// goes with the status unless it is given.
HttpResponse error_response(int status, const std::string& message, const std::string& param = "",
                            const std::string& type = "", const std::string& code = "");

}  // namespace nanovllm::server
