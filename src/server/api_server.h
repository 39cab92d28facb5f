// The endpoints: from a request of HTTP to the fleet and back.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>
#include <memory>
#include <mutex>
#include <string>

#include "server/fleet.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/protocol.h"
#include "server/server.h"

namespace nanovllm::server {

// Thread-safe. All that it is given outlives it.
class ApiServer {
 public:
  ApiServer(const ServeOptions& options, Fleet& fleet, Metrics& metrics);

  // Requests are refused with status 503 before this, and after drain().
  void set_model(std::shared_ptr<const ServedModel> model);
  void drain() { draining_ = true; }
  // Waits for what is being parsed; once nothing calls handle() or goes on in it.
  void stop();

  asio::awaitable<void> handle(HttpExchange& exchange);

 private:
  struct Generation;

  HttpResponse small_answer(const HttpRequest& request);
  HttpResponse health() const;
  std::shared_ptr<const ServedModel> model() const;
  asio::awaitable<void> generate(HttpExchange& exchange);
  asio::awaitable<void> text_answer(HttpExchange& exchange);
  asio::awaitable<void> run(HttpExchange& exchange, Generation& generation);
  asio::awaitable<void> run_stream(HttpExchange& exchange, Generation& generation);
  void log(const HttpRequest& request, const ApiCall& call) const;

  const ServeOptions& options_;
  Fleet& fleet_;
  Metrics& metrics_;
  std::atomic<bool> draining_ = false;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const ServedModel> model_;  // guarded by mutex_; has the fleet's limits
  asio::thread_pool preparers_;  // templates and tokenizing take long for the threads of HTTP
};

}  // namespace nanovllm::server
