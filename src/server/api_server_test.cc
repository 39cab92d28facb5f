#include "server/api_server.h"

#include <atomic>

#include "server/fleet_testing.h"
#include "server/http_testing.h"
#include "server/protocol_testing.h"

namespace nanovllm::server {
namespace {

// Another exchange, of which it counts the waits.
class CountingExchange final : public HttpExchange {
 public:
  CountingExchange(HttpExchange& exchange, std::atomic<int>& num_waits)
      : exchange_(exchange), num_waits_(num_waits) {}
  const HttpRequest& request() const override { return exchange_.request(); }
  asio::awaitable<void> send(HttpResponse response) override {
    return exchange_.send(std::move(response));
  }
  asio::awaitable<void> begin_stream(HttpResponse response) override {
    return exchange_.begin_stream(std::move(response));
  }
  asio::awaitable<bool> write(std::string_view piece) override { return exchange_.write(piece); }
  asio::awaitable<bool> wait(const std::function<void(std::function<void()> wake)>& wait,
                             std::chrono::milliseconds timeout) override {
    ++num_waits_;
    return exchange_.wait(wait, timeout);
  }
  bool is_gone() const override { return exchange_.is_gone(); }

 private:
  HttpExchange& exchange_;
  std::atomic<int>& num_waits_;
};

// The second prompt runs when the first one is over, which must wake nobody any more.
TEST(ApiServer, SleepsWhileOneOfItsPromptsIsOver) {
  const LetterModel model;
  Metrics metrics("letters", 1);
  const auto fleet = make_fleet({}, thread_starter([](const EngineStart&) {
                                  FakeEngine engine = make_fake_engine(
                                      {.num_blocks = 100, .max_num_seqs = 1}, alphabet());
                                  engine.runner->step_time = std::chrono::milliseconds(2);
                                  return LLMEngine(std::move(engine.core));
                                }));
  fleet->wait_ready();
  const ServeOptions options;
  ApiServer api(options, *fleet, metrics);
  api.set_model(std::shared_ptr<const ServedModel>(std::shared_ptr<void>(), &model.served));
  std::atomic<int> num_waits = 0;
  asio::io_context context;
  HttpOptions http;
  http.port = 0;
  auto server = make_http_server(context, http, [&](HttpExchange& one) -> asio::awaitable<void> {
    CountingExchange counting(one, num_waits);
    co_await api.handle(counting);
  });
  std::thread thread([&] { context.run(); });
  http_testing::Client client(server->port());
  const auto answer = client.ask(http_testing::post(
      "/v1/completions",
      R"({"prompt": ["ab", "cd"], "max_tokens": 60, "ignore_eos": true, "temperature": 0})"));
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_NE(answer.body.find("\"completion_tokens\":120"), std::string::npos) << answer.body;
  EXPECT_LE(num_waits, 130);  // one a step, and a few
  client.close();
  server.reset();
  thread.join();
}

}  // namespace
}  // namespace nanovllm::server
