#include "server/api_server.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "server/fleet/fleet_stage.h"
#include "server/fleet/fleet_testing.h"
#include "server/http/http_testing.h"
#include "server/openai/protocol_testing.h"

namespace nanovllm::server {
namespace {

using namespace std::chrono_literals;

// Another exchange, of which it counts the waits.
class CountingExchange final : public HttpExchange {
 public:
  CountingExchange(HttpExchange& exchange, std::atomic<int>& num_waits)
      : exchange_(exchange), num_waits_(num_waits) {}
  const HttpRequest& request() const override { return exchange_.request(); }
  std::string take_body() override { return exchange_.take_body(); }
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

ServeOptions with_silence(std::chrono::milliseconds max_silence) {
  ServeOptions options;
  options.max_silence = max_silence;
  return options;
}

// An ApiServer on a free port, in front of a fleet that is loaded.
class Served {
 public:
  Served(Fleet& fleet, const ServedModel& model, std::atomic<int>& num_waits,
         std::chrono::milliseconds max_silence = ServeOptions().max_silence)
      : options_(with_silence(max_silence)),
        metrics_("letters", 1),
        api_(options_, fleet, metrics_) {
    fleet.wait_ready();
    api_.set_model(std::shared_ptr<const ServedModel>(std::shared_ptr<void>(), &model));
    HttpOptions http;
    http.port = 0;
    server_ = make_http_server(context_, http, [&](HttpExchange& one) -> asio::awaitable<void> {
      CountingExchange counting(one, num_waits);
      co_await api_.handle(counting);
    });
    thread_ = std::thread([this] { context_.run(); });
  }
  ~Served() {
    server_.reset();
    thread_.join();
  }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;
  int port() const { return server_->port(); }

 private:
  const ServeOptions options_;
  Metrics metrics_;
  ApiServer api_;
  asio::io_context context_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

// A worker that does what a test says, loaded, and the server in front of it.
struct Scene {
  explicit Scene(const FleetOptions& options = {},
                 std::chrono::milliseconds max_silence = ServeOptions().max_silence)
      : fleet(make_fleet(options, stage.starter())) {
    stage.load(0);
    server.emplace(*fleet, model.served, num_waits, max_silence);
  }

  const LetterModel model;
  Stage stage{1};
  const std::unique_ptr<Fleet> fleet;
  std::atomic<int> num_waits = 0;
  std::optional<Served> server;
};

// As vLLM's web framework has it.
TEST(ApiServer, TakesTheSlashBehindAPathAway) {
  Scene scene;
  http_testing::Client client(scene.server->port());
  for (const auto& [asked, where] :
       {std::pair{http_testing::get("/v1/models/"), "/v1/models"},
        {http_testing::get("/health/?a=b%20c"), "/health?a=b%20c"},
        {http_testing::get("/app.js/"), "/app.js"},
        {http_testing::get("//"), "/"},
        {http_testing::post("/v1/chat/completions/", "{}"), "/v1/chat/completions"}}) {
    const auto answer = client.ask(asked);
    EXPECT_EQ(answer.status, 307) << asked;
    EXPECT_TRUE(answer.has(fmt::format("Location: {}\r\n", where))) << answer.head;
  }
  for (const char* path : {"/nowhere/", "/v1/", "/v1/models//", "//evil.example/"}) {
    EXPECT_EQ(client.ask(http_testing::get(path)).status, 404) << path;
  }
}

TEST(ApiServer, KnowsTheMethodsOfEachPath) {
  Scene scene;
  http_testing::Client client(scene.server->port());
  for (const char* path : {"/", "/app.js", "/v1/models", "/v1/completions", "/health"}) {
    const auto answer =
        client.ask(fmt::format("DELETE {} HTTP/1.1\r\nHost: localhost\r\n\r\n", path));
    EXPECT_EQ(answer.status, 405) << path;
    EXPECT_TRUE(
        answer.has(path == std::string("/v1/completions") ? "Allow: POST\r\n" : "Allow: GET\r\n"))
        << answer.head;
  }
  EXPECT_EQ(client.ask(http_testing::post("/", "{}")).status, 405);
  EXPECT_EQ(client.ask("DELETE /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 404);
  EXPECT_EQ(client.ask(http_testing::get("/")).status, 200);
}

TEST(ApiServer, KnowsBodiesWhoseAnswersMayBeConstrained) {
  for (const char* field : {"structured_outputs", "response_format", "tool_choice"}) {
    EXPECT_TRUE(may_be_constrained(fmt::format(R"({{"prompt":"a","{}":{{}}}})", field)));
    EXPECT_FALSE(may_be_constrained(fmt::format(R"({{"prompt":"a","{}" : null}})", field)));
  }
  for (const char* body :
       {R"({"text":{"format":{"type":"json_object"}}})", R"({"text":{"format":{"name":"text"}}})",
        R"({"tools":[{"function":{"strict": true}}]})", R"({"tool_choice": "required"})",
        R"({"tool_choice":{"type":"function","function":{"name":"auto"}}})",
        "{\"tool_choice\"\n:\t{ \"type\" : \"any\"}}", R"({"tool_choice": {"type":"tool"}})",
        R"({"tool_choice":"auto","tools":[{"function":{"strict":false}},{"strict":true}]})"}) {
    EXPECT_TRUE(may_be_constrained(body)) << body;
  }
  for (const char* body :
       {R"({"messages":[{"content":"strict response_format"}]})", R"({"tool_choice":"auto"})",
        R"({"tool_choice" : "none"})", "{\"tool_choice\"\n:\t{ \"type\" : \"auto\"}}",
        R"({"tool_choice": {"type":"none"}})", R"({"response_format":{"type":"text"}})",
        R"({"text":{"format": {"type": "text"}}})", R"({"tools":[{"strict":false}]})",
        R"({"tools":[{"parameters":{"properties":{"at":{"format":"date-time"}}}}]})",
        R"({"properties":["strict"]})", R"({"tool_choice)", R"({"tool_choice")"}) {
    EXPECT_FALSE(may_be_constrained(body)) << body;
  }
}

// The second prompt runs when the first one is over, which must wake nobody any more.
TEST(ApiServer, SleepsWhileOneOfItsPromptsIsOver) {
  const LetterModel model;
  const auto fleet = make_fleet({}, thread_starter([](const EngineStart&) {
                                  FakeEngine engine = make_fake_engine(
                                      {.num_blocks = 100, .max_num_seqs = 1}, alphabet());
                                  engine.runner->step_time = std::chrono::milliseconds(2);
                                  return LLMEngine(std::move(engine.core));
                                }));
  std::atomic<int> num_waits = 0;
  const Served server(*fleet, model.served, num_waits);
  http_testing::Client client(server.port());
  const auto answer = client.ask(http_testing::post(
      "/v1/completions",
      R"({"prompt": ["ab", "cd"], "max_tokens": 60, "ignore_eos": true, "temperature": 0})"));
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_NE(answer.body.find("\"completion_tokens\":120"), std::string::npos) << answer.body;
  EXPECT_LE(num_waits, 130);  // one a step, and a few
}

std::string completion(bool stream, int max_tokens) {
  return http_testing::post(
      "/v1/completions",
      fmt::format(R"({{"prompt": "ab", "max_tokens": {}, "stream": {}}})", max_tokens, stream));
}

// Whole or streamed, as nothing of it was sent.
TEST(ApiServer, TellsToTryAgainWhileNoWorkerIsReady) {
  Scene scene({.unready_patience = std::chrono::milliseconds(100)});
  http_testing::Client whole(scene.server->port()), streamed(scene.server->port()),
      later(scene.server->port());
  whole.send(completion(false, 10));
  streamed.send(completion(true, 10));
  ASSERT_TRUE(http_testing::comes_true([&] { return scene.fleet->status().num_streams == 2; }));
  scene.stage.die(0);
  for (http_testing::Client* client : {&whole, &streamed, &later}) {
    const auto answer = client == &later ? later.ask(completion(true, 10)) : client->answer();
    EXPECT_EQ(answer.status, 503);
    EXPECT_TRUE(answer.has("Retry-After: 1\r\n")) << answer.head;
    EXPECT_TRUE(answer.has("Content-Type: application/json\r\n")) << answer.head;
    EXPECT_NE(answer.body.find("No worker is ready; try again later. It died."), std::string::npos)
        << answer.body;
  }
}

// A stream says that it is there, but not before it is clear that it will not be sent away.
TEST(ApiServer, HoldsTheHeadOfAStreamBackWhileNoWorkerIsReady) {
  Scene scene({.unready_patience = 1s}, 300ms);
  http_testing::Client silent(scene.server->port()), refused(scene.server->port());
  silent.send(completion(true, 10));
  EXPECT_TRUE(silent.wait_for(": still here"));
  EXPECT_EQ(silent.answer(/*of_head=*/true).status, 200);
  refused.send(completion(true, 10));
  ASSERT_TRUE(http_testing::comes_true([&] { return scene.fleet->status().num_streams == 2; }));
  scene.stage.die(0);
  const auto answer = refused.answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_TRUE(answer.has("Retry-After: 1\r\n")) << answer.head;
}

TEST(ApiServer, JudgesByWhatTheWorkerCameBackWith) {
  Scene scene;
  http_testing::Client client(scene.server->port());
  const auto len = [&](int length) { return fmt::format("\"max_model_len\":{}", length); };
  const std::string before = client.ask(http_testing::get("/v1/models")).body;
  EXPECT_NE(before.find(len(401)), std::string::npos) << before;  // 100 blocks of 4 tokens, of 1000
  scene.stage.die(0);
  scene.stage.load(0, 2, "cpu (2 threads)", 3, 12);  // 3 blocks of 4 tokens
  const std::string after = client.ask(http_testing::get("/v1/models")).body;
  EXPECT_NE(after.find(len(12)), std::string::npos) << after;
  const auto refused = client.ask(completion(false, 13));
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("max_model_len=12"), std::string::npos) << refused.body;
  client.send(completion(false, 10));
  EXPECT_TRUE(http_testing::comes_true([&] { return scene.fleet->status().num_streams == 1; }));
}

}  // namespace
}  // namespace nanovllm::server
