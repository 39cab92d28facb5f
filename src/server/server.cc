#include "server/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/signals.h"
#include "io/file.h"
#include "io/gguf.h"
#include "server/api_server.h"
#include "server/load_model.h"
#include "server/log.h"
#include "server/routes.h"

namespace nanovllm::server {

namespace {

using Clock = std::chrono::steady_clock;

// How long answers that are complete may take to reach their clients at the end.
constexpr std::chrono::seconds kFlushTime{5};

// Descriptors that are no connection's: of the process, and of each worker (a socket, what waits
// for it, and those of its successor).
constexpr int kOwnDescriptors = 40, kDescriptorsOfWorker = 10;

HttpOptions http_options(const ServeOptions& options) {
  HttpOptions http = options.http;
  http.open_paths = open_paths();
  http.finish = finish_answer;
  http.num_other_descriptors =
      kOwnDescriptors + kDescriptorsOfWorker * std::max(options.fleet.num_engines, 1);
  return http;
}

// Not by nohup, say.
bool heeds_hangup() {
  struct sigaction before = {};
  return ::sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN;
}

// SIGHUP comes twice, and may do so when its handler is gone: that must not be the exit status.
void block_hangup() {
  sigset_t hangup;
  ::sigemptyset(&hangup);
  ::sigaddset(&hangup, SIGHUP);
  ::pthread_sigmask(SIG_BLOCK, &hangup, nullptr);
}

// The front process. It has threads that serve HTTP, one that loads, and in the end one that ends
// it.
class Front {
 public:
  explicit Front(ServeOptions options);
  int run();

 private:
  void load() noexcept;
  void announce() const;
  void announce_ready(const EngineInfo& info) const;
  void await_signal();
  void give_up(const std::string& why);
  void begin_end(std::chrono::milliseconds timeout);
  void end(std::chrono::milliseconds timeout) noexcept;

  const Clock::time_point start_ = Clock::now();
  const ServeOptions options_;
  Metrics metrics_;
  // What coroutines that are cut off in the end hold streams of.
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<ApiServer> api_;
  asio::io_context context_;
  asio::signal_set signals_;
  std::unique_ptr<HttpServer> http_;
  ModelTexts texts_;
  std::thread loader_, ender_;
  std::exception_ptr fault_;  // what ends it, told by whoever set ending_
  std::atomic<bool> ending_ = false;
};

Front::Front(ServeOptions options)
    : options_(std::move(options)),
      metrics_(name_of_model(options_), options_.fleet.num_engines),
      context_(options_.num_io_threads),
      signals_(context_, SIGINT, SIGTERM) {
  // First: where there is no address to be had, no worker is started in vain.
  http_ = make_http_server(context_, http_options(options_),
                           [this](HttpExchange& exchange) { return api_->handle(exchange); });
  FleetObserver observer = metrics_.observer();
  observer.on_message = [](const std::string& text) { print_log("{}", text); };
  observer.on_unready = [this](const std::string& why) {
    asio::post(context_, [this, why] { give_up(why); });
  };
  if (heeds_hangup()) signals_.add(SIGHUP);
  fleet_ = make_fleet(options_.fleet, worker_starter(options_.worker_arguments), observer);
  api_ = std::make_unique<ApiServer>(options_, *fleet_, metrics_);
}

int Front::run() {
  announce();
  await_signal();
  std::vector<std::thread> threads;
  {
    const SignalsBlocked in_threads;
    loader_ = std::thread([this] { load(); });
    for (int i = 1; i < options_.num_io_threads; ++i) {
      threads.emplace_back([this] { context_.run(); });
    }
  }
  context_.run();
  block_hangup();
  for (std::thread& thread : threads) thread.join();
  loader_.join();
  api_->stop();  // long texts may still be read, by the tokenizer and for coroutines that end below
  if (ender_.joinable()) ender_.join();
  fleet_->shut_down(std::chrono::milliseconds(0));  // on_unready() needs the context
  if (fault_) std::rethrow_exception(fault_);
  return 0;
}

void Front::announce() const {
  const HttpOptions& http = options_.http;
  const bool tls = !http.ssl_certfile.empty();
  if (!http.uds.empty()) {
    print_log("listening on {}", http.uds);
  } else {
    const bool v6 = http.host.find(':') != std::string::npos;
    print_log("listening on {}://{}:{}{}", tls ? "https" : "http",
              v6 ? "[" + http.host + "]" : http.host, http_->port(), http.root_path);
  }
  const bool loopback = !http.uds.empty() || http.host.starts_with("127.") || http.host == "::1" ||
                        http.host == "localhost";
  if (!loopback && http.api_keys.empty()) {
    print_log("warning: everybody who reaches {} may use the model: no --api-key is set",
              http.host);
  }
  if (http_->max_connections() < http.max_connections) {
    print_log(
        "warning: there may be {} connections, not {}, as this process may not open more "
        "descriptors; raise ulimit -n (LimitNOFILE of a systemd unit)",
        http_->max_connections(), http.max_connections);
  }
}

// Where there are several workers, of the one that takes the longest requests.
void Front::announce_ready(const EngineInfo& info) const {
  const FleetStatus status = fleet_->status();
  std::string workers;
  if (status.num_engines > 1) {
    const bool all = status.num_ready == status.num_engines;
    workers = fmt::format(", {}{} workers, each",
                          all ? "" : fmt::format("{} of ", status.num_ready), status.num_engines);
  }
  print_log("ready: {}{} on {}, max_model_len {}, {} tokens of KV cache, {:.2f} s after the start",
            name_of_model(options_), workers, info.device, info.max_model_len,
            info.num_kvcache_tokens(),
            std::chrono::duration<double>(Clock::now() - start_).count());
}

// Engine and text side by side.
void Front::load() noexcept {
  try {
    texts_ = load_texts(options_);
    const EngineHello& hello = fleet_->wait_ready();
    metrics_.begin(hello.info, options_.engine);
    api_->set_model(served_model(options_, texts_, hello));
    print_log("{}", hello.info.sizing);
    announce_ready(hello.info);
  } catch (...) {
    if (!ending_.exchange(true)) fault_ = std::current_exception();
    context_.stop();
  }
}

// The first signal ends it with grace, the second one at once; but a terminal that goes sends
// SIGHUP by itself and by its shell.
void Front::await_signal() {
  signals_.async_wait([this](const boost::system::error_code& error, int signal) {
    if (error) return;
    await_signal();
    if (ending_.exchange(true)) {
      if (signal == SIGHUP) return;
      std::_Exit(128 + signal);  // the workers' sockets close, which ends them
    }
    print_log("shutting down: running requests have {} s to end; again to end at once",
              std::chrono::duration<double>(options_.shutdown_timeout).count());
    begin_end(options_.shutdown_timeout);
  });
}

// Whoever watches over the service may start it again, where there is memory or a GPU that works.
void Front::give_up(const std::string& why) {
  if (ending_.exchange(true)) return;
  fault_ = std::make_exception_ptr(Error(ErrorCode::kUnavailable, why));
  begin_end(std::chrono::milliseconds(0));
}

// Once.
void Front::begin_end(std::chrono::milliseconds timeout) {
  api_->drain();
  const SignalsBlocked in_thread;
  ender_ = std::thread([this, timeout] { end(timeout); });
}

void Front::end(std::chrono::milliseconds timeout) noexcept {
  try {
    fleet_->shut_down(timeout);
    http_->stop_accepting();
    const auto deadline = Clock::now() + kFlushTime;
    while (http_->num_connections() > 0 && Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  } catch (const std::exception& error) {
    print_log("while shutting down: {}", error.what());
  }
  context_.stop();
}

}  // namespace

int serve(ServeOptions options) {
  if (!find_gguf(options.model)) check_is_folder(options.model);
  keep_little_freed_memory();
  return Front(std::move(options)).run();
}

}  // namespace nanovllm::server
