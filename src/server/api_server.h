// The endpoints: from a request of HTTP to the fleet and back.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "server/fleet/fleet.h"
#include "server/freed_memory.h"
#include "server/http/http_server.h"
#include "server/metrics.h"
#include "server/openai/protocol.h"
#include "server/routes.h"
#include "server/server.h"

namespace nanovllm::server {

// Whether what an answer must follow may have to be compiled, by the fields that this body seems to
// have and how their values begin.
bool may_be_constrained(std::string_view body);

// Thread-safe. All that it is given outlives it.
class ApiServer {
 public:
  ApiServer(const ServeOptions& options, Fleet& fleet, Metrics& metrics);
  ~ApiServer() { stop(); }
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  // Requests are refused with status 503 before this, and after drain().
  void set_model(std::shared_ptr<const ServedModel> model);
  void drain() { draining_ = true; }
  // Waits for what is being parsed; once nothing calls handle() or goes on in it.
  void stop();

  asio::awaitable<void> handle(HttpExchange& exchange);

  // For routes. Throw ApiError where there is no model to work with.
  HttpResponse health() const;
  std::shared_ptr<const ServedModel> model() const;
  HttpResponse tokenizer_info() const;
  const ServeOptions& options() const { return options_; }
  const Metrics& metrics() const { return metrics_; }

 private:
  struct Generation;

  HttpResponse page_answer(const HttpRequest& request) const;
  asio::thread_pool& lane_of(std::string_view body);
  // These return how many bytes came and went.
  asio::awaitable<size_t> generate(HttpExchange& exchange, ParseCall parse);
  asio::awaitable<size_t> text_answer(HttpExchange& exchange, AnswerText body);
  asio::awaitable<size_t> run(HttpExchange& exchange, Generation& generation);
  asio::awaitable<size_t> send_whole(HttpExchange& exchange, ApiCall& call);
  asio::awaitable<void> run_stream(HttpExchange& exchange, Generation& generation);
  void log(const HttpRequest& request, std::string_view body, const ApiCall& call);
  void tell_once(const std::string& note);

  const ServeOptions& options_;
  Fleet& fleet_;
  Metrics& metrics_;
  std::atomic<bool> draining_ = false;
  mutable std::mutex mutex_;
  // These two are guarded by mutex_.
  mutable std::shared_ptr<const ServedModel> model_;  // has the fleet's limits
  std::set<std::string> notes_;                       // that were told
  asio::thread_pool preparers_;  // templates and tokenizing take long for the threads of HTTP
  // One large body at a time, so that they hold up no small one, and their memory has a bound.
  asio::thread_pool large_preparer_{1};
  // Likewise one at a time that may have a grammar compiled, which may take seconds.
  asio::thread_pool compiling_preparer_{1};
  FreedMemory freed_memory_{large_preparer_};
};

}  // namespace nanovllm::server
