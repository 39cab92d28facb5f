#include "server/batch/local_server.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <thread>
#include <utility>

#include "base/signals.h"
#include "server/api_server.h"
#include "server/freed_memory.h"
#include "server/http/http_rules.h"
#include "server/load_model.h"
#include "server/routes.h"

namespace nanovllm::server {

namespace {

constexpr auto kQuietly = asio::as_tuple(asio::use_awaitable);
constexpr int kTryLater = 503;
constexpr std::chrono::milliseconds kRetryPause{500};
// Of a request that is refused for now although an engine is ready: memory may be short.
constexpr int kMostTries = 10;

}  // namespace

// A request without a client: its answer is kept. All on the context's one thread but `wake`.
class LocalExchange final : public HttpExchange,
                            public std::enable_shared_from_this<LocalExchange> {
 public:
  LocalExchange(asio::io_context& context, const LocalRequest& request)
      : context_(context), timer_(context), seed_(request.seed) {
    request_ = {.method = "POST", .path = request.url, .body = request.body};
    request_.id = make_request_id();
  }

  const HttpRequest& request() const override { return request_; }
  const HttpResponse& answer() const { return answer_; }
  std::string take_body() override { return std::exchange(request_.body, {}); }
  bool takes_streams() const override { return false; }
  std::optional<int64_t> seed() const override { return seed_; }

  asio::awaitable<void> send(HttpResponse response) override {
    keep(std::move(response));
    co_return;
  }
  asio::awaitable<void> begin_stream(HttpResponse response) override {
    keep(std::move(response));
    co_return;
  }
  asio::awaitable<bool> write(std::string_view piece) override {
    answer_.body += piece;
    co_return true;
  }
  asio::awaitable<bool> wait(const std::function<void(std::function<void()> wake)>& wait,
                             std::chrono::milliseconds timeout) override {
    const uint64_t round = ++wait_round_;
    is_woken_ = false;
    timer_.expires_after(timeout);
    wait([weak = weak_from_this(), round] {
      auto self = weak.lock();
      if (self == nullptr) return;
      asio::io_context& context = self->context_;
      asio::post(context, [self = std::move(self), round] {
        if (round != self->wait_round_) return;
        self->is_woken_ = true;
        self->timer_.cancel();
      });
    });
    co_await timer_.async_wait(kQuietly);
    co_return is_woken_;
  }
  bool is_gone() const override { return false; }

 private:
  void keep(HttpResponse response) {
    answer_ = std::move(response);
    finish_answer(request_, answer_);
  }

  asio::io_context& context_;
  asio::steady_timer timer_;
  const int64_t seed_;
  HttpRequest request_ = {};
  HttpResponse answer_ = {};
  uint64_t wait_round_ = 0;
  bool is_woken_ = false;
};

namespace {

class LocalServerImpl final : public LocalServer {
 public:
  LocalServerImpl(ServeOptions options, EngineStarter starter, LocalObserver observer);
  ~LocalServerImpl() override;
  LocalServerImpl(const LocalServerImpl&) = delete;
  LocalServerImpl& operator=(const LocalServerImpl&) = delete;
  void ask(LocalRequest request, Done done) override;

 private:
  FleetObserver fleet_observer();
  void load() noexcept;
  asio::awaitable<void> answer(LocalRequest request, Done done);

  const ServeOptions options_;
  const LocalObserver observer_;
  Metrics metrics_;  // nobody reads them
  // What coroutines that are cut off in the end hold streams of.
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<ApiServer> api_;
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  ModelTexts texts_;
  std::thread thread_, loader_;
};

ServeOptions with_patience(ServeOptions options, const LocalObserver& observer) {
  options.fleet.max_num_queued = std::numeric_limits<int>::max();  // who asks has the bound
  options.fleet.unready_patience = options.fleet.worker_start_timeout;
  options.on_note = observer.on_message;
  return options;
}

LocalServerImpl::LocalServerImpl(ServeOptions options, EngineStarter starter,
                                 LocalObserver observer)
    : options_(with_patience(std::move(options), observer)),
      observer_(std::move(observer)),
      metrics_(name_of_model(options_), options_.fleet.num_engines) {
  keep_little_freed_memory();
  const SignalsBlocked in_threads;
  fleet_ = make_fleet(options_.fleet, std::move(starter), fleet_observer());
  api_ = std::make_unique<ApiServer>(options_, *fleet_, metrics_);
  thread_ = std::thread([this] { context_.run(); });
  loader_ = std::thread([this] { load(); });
}

LocalServerImpl::~LocalServerImpl() {
  context_.stop();
  thread_.join();
  api_->drain();
  fleet_->shut_down(std::chrono::milliseconds(0));  // which ends the loading too
  loader_.join();
  api_->stop();
}

FleetObserver LocalServerImpl::fleet_observer() {
  FleetObserver observer;
  observer.on_step = [this](int, const StepStats& stats) { observer_.on_step(stats); };
  observer.on_message = observer_.on_message;
  observer.on_unready = [this](const std::string& why) {
    observer_.on_lost(std::make_exception_ptr(Error(ErrorCode::kUnavailable, why)));
  };
  return observer;
}

void LocalServerImpl::load() noexcept {
  try {
    texts_ = load_texts(options_);
    const EngineHello& hello = fleet_->wait_ready();
    api_->set_model(served_model(options_, texts_, hello));
    observer_.on_ready();
  } catch (...) {
    observer_.on_lost(std::current_exception());
  }
}

void LocalServerImpl::ask(LocalRequest request, Done done) {
  asio::post(context_, [this, request = std::move(request), done = std::move(done)]() mutable {
    asio::co_spawn(context_, answer(std::move(request), std::move(done)), asio::detached);
  });
}

asio::awaitable<void> LocalServerImpl::answer(LocalRequest request, Done done) {
  std::shared_ptr<LocalExchange> exchange;
  for (int tries = 0; tries < kMostTries;) {
    exchange = std::make_shared<LocalExchange>(context_, request);
    std::string fault;
    try {
      co_await api_->handle(*exchange);
    } catch (const std::exception& error) {
      fault = error.what();
    }
    if (!fault.empty()) {
      HttpResponse response = error_response(500, fault);
      co_await exchange->send(std::move(response));
    }
    if (exchange->answer().status != kTryLater) break;
    if (fleet_->status().num_ready > 0) ++tries;
    asio::steady_timer pause(context_, kRetryPause);
    co_await pause.async_wait(kQuietly);
  }
  done(exchange->request().id, exchange->answer());
}

}  // namespace

std::unique_ptr<LocalServer> LocalServer::start(ServeOptions options, EngineStarter starter,
                                                LocalObserver observer) {
  return std::make_unique<LocalServerImpl>(std::move(options), std::move(starter),
                                           std::move(observer));
}

}  // namespace nanovllm::server
