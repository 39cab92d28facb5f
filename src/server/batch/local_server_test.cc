#include "server/batch/local_server.h"

#include <atomic>
#include <future>
#include <mutex>

#include "io/json.h"
#include "server/fleet/fleet_stage.h"
#include "server/http/http_testing.h"
#include "server/openai/protocol.h"

namespace nanovllm::server {
namespace {

using namespace std::chrono_literals;

ServeOptions options_of_demo() {
  ServeOptions options;
  options.model = kDemoModel;
  options.served_model_names = {"demo"};
  options.engine.max_model_len = 256;
  options.engine.max_num_seqs = 16;
  options.engine.kv_cache_memory = int64_t{64} << 20;
  return options;
}

EngineStarter demo_engines() {
  return thread_starter(
      [](const EngineStart&) { return LLMEngine(kDemoModel, options_of_demo().engine); });
}

// A LocalServer, what it told, and its answers.
class Local {
 public:
  Local(const ServeOptions& options, EngineStarter starter) {
    server_ = LocalServer::start(
        options, std::move(starter),
        {.on_ready = [this] { is_ready = true; },
         .on_lost =
             [this](const std::exception_ptr& why) {
               const std::lock_guard lock(mutex_);
               try {
                 std::rethrow_exception(why);
               } catch (const std::exception& error) {
                 lost_ = error.what();
               }
             },
         .on_step = [this](const StepStats& stats) { num_tokens += stats.num_decode_tokens; },
         .on_message =
             [this](const std::string& sentence) {
               const std::lock_guard lock(mutex_);
               messages_.push_back(sentence);
             }});
  }
  bool wait_ready() {
    return http_testing::comes_true([this] { return is_ready.load(); });
  }
  std::future<HttpResponse> ask(const std::string& url, const std::string& body, int64_t seed = 0) {
    const auto answer = std::make_shared<std::promise<HttpResponse>>();
    server_->ask({.url = url, .body = body, .seed = seed},
                 [answer](const std::string& id, const HttpResponse& response) {
                   EXPECT_EQ(id.size(), 32U);
                   answer->set_value(response);
                 });
    return answer->get_future();
  }
  std::string lost() {
    const std::lock_guard lock(mutex_);
    return lost_;
  }
  std::vector<std::string> messages() {
    const std::lock_guard lock(mutex_);
    return messages_;
  }
  void end() { server_.reset(); }

  std::atomic<bool> is_ready = false;
  std::atomic<int> num_tokens = 0;

 private:
  std::mutex mutex_;
  std::string lost_;
  std::vector<std::string> messages_;
  std::unique_ptr<LocalServer> server_;  // the last member: it ends before the others
};

HttpResponse get(std::future<HttpResponse> answer) {
  if (answer.wait_for(60s) != std::future_status::ready) {
    ADD_FAILURE() << "no answer";
    return {};
  }
  return answer.get();
}

std::vector<std::string> texts_of(const HttpResponse& response) {
  EXPECT_EQ(response.status, 200) << response.body;
  std::vector<std::string> texts;
  const Json body = Json::parse(response.body);
  for (const Json& choice : body["choices"]) texts.push_back(choice["text"]);
  EXPECT_FALSE(texts.empty());
  return texts;
}

TEST(LocalServer, AnswersByTheHandlersOfTheServer) {
  Local local(options_of_demo(), demo_engines());
  ASSERT_TRUE(local.wait_ready());
  const HttpResponse whole =
      get(local.ask("/v1/completions", R"({"prompt": "Once", "max_tokens": 5, "temperature": 0})"));
  EXPECT_EQ(Json::parse(whole.body)["usage"]["completion_tokens"], 5) << whole.body;
  EXPECT_EQ(Json::parse(whole.body)["model"], "demo");
  EXPECT_GE(local.num_tokens, 4);
  const HttpResponse tokens = get(local.ask("/tokenize", R"({"prompt": "Once"})"));
  EXPECT_EQ(Json::parse(tokens.body)["count"], Json::parse(tokens.body)["tokens"].size());
  const HttpResponse refused = get(local.ask("/v1/messages", R"({"model": "demo"})"));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(Json::parse(refused.body)["type"], "error") << refused.body;  // Anthropic's form
  EXPECT_FALSE(refused.error->message.empty());
  EXPECT_EQ(get(local.ask("/v1/completions", "nonsense")).status, 400);
}

constexpr const char* kHello = R"("messages": [{"role": "user", "content": "Hello."}])";

// Before any token of it is computed.
TEST(LocalServer, RefusesStreams) {
  Local local(options_of_demo(), demo_engines());
  ASSERT_TRUE(local.wait_ready());
  for (const auto& [url, asked] : {std::pair{"/v1/completions", R"("prompt": "a")"},
                                   {"/v1/chat/completions", kHello},
                                   {"/v1/responses", R"("input": "a")"}}) {
    const HttpResponse answer =
        get(local.ask(url, fmt::format(R"({{{}, "stream": true}})", asked)));
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(Json::parse(answer.body)["error"]["param"], "stream") << answer.body;
  }
  EXPECT_EQ(local.num_tokens, 0);
  EXPECT_EQ(
      get(local.ask("/v1/completions", R"({"prompt": "a", "max_tokens": 1, "stream": false})"))
          .status,
      200);
}

// As long as it is: such an answer is sent in pieces to clients of HTTP.
TEST(LocalServer, KeepsLongAnswersWhole) {
  Local local(options_of_demo(), demo_engines());
  ASSERT_TRUE(local.wait_ready());
  const HttpResponse answer = get(local.ask(
      "/v1/completions",
      R"({"prompt": "Once", "max_tokens": 200, "ignore_eos": true, "logprobs": 20, "n": 3})"));
  EXPECT_GT(answer.body.size(), 3 * kAnswerPiece);
  EXPECT_EQ(Json::parse(answer.body)["usage"]["completion_tokens"], 600);
}

TEST(LocalServer, DrawsByTheSeedThatItIsGiven) {
  Local local(options_of_demo(), demo_engines());
  ASSERT_TRUE(local.wait_ready());
  const char* body = R"({"prompt": ["Once", "Once"], "max_tokens": 20, "temperature": 1})";
  const auto first = texts_of(get(local.ask("/v1/completions", body, 1)));
  const auto other = texts_of(get(local.ask("/v1/completions", body, 2)));
  EXPECT_EQ(texts_of(get(local.ask("/v1/completions", body, 1))), first);
  EXPECT_NE(first, other);
  EXPECT_NE(first[0], first[1]);
  const char* own = R"({"prompt": "Once", "max_tokens": 20, "temperature": 1, "seed": 7})";
  EXPECT_EQ(texts_of(get(local.ask("/v1/completions", own, 1))),
            texts_of(get(local.ask("/v1/completions", own, 2))));
}

TEST(LocalServer, TellsOnceWhatItIgnores) {
  Local local(options_of_demo(), demo_engines());
  ASSERT_TRUE(local.wait_ready());
  for (int i = 0; i < 3; ++i) {
    get(local.ask("/v1/completions", R"({"prompt": "a", "max_tokens": 1, "colour": "red"})"));
  }
  EXPECT_EQ(local.messages(),
            std::vector<std::string>{"what is not known here is ignored: colour"});
}

const char* const kShort = R"({"prompt": [7], "max_tokens": 1})";

// Those that come meanwhile too.
TEST(LocalServer, WaitsForAnEngineThatComesBack) {
  Stage stage(1);
  Local local(options_of_demo(), stage.starter());
  stage.load(0);
  ASSERT_TRUE(local.wait_ready());
  auto before = local.ask("/v1/completions", kShort);
  ASSERT_TRUE(http_testing::comes_true([&] { return stage.aboard(0).size() == 1; }));
  stage.die(0);
  auto meanwhile = local.ask("/v1/completions", R"({"prompt": [8], "max_tokens": 1})");
  EXPECT_EQ(meanwhile.wait_for(700ms), std::future_status::timeout);
  stage.load(0, 2);
  ASSERT_TRUE(http_testing::comes_true([&] { return stage.aboard(0).size() == 2; }));
  for (const int prompt : {7, 8}) {
    stage.tell(0, prompt);
    stage.end(0, prompt);
  }
  EXPECT_EQ(get(std::move(before)).status, 200);
  EXPECT_EQ(get(std::move(meanwhile)).status, 200);
  EXPECT_EQ(local.messages().front(), "It died. It is started again; 1 request on it will go on.");
  EXPECT_EQ(local.lost(), "");
}

TEST(LocalServer, TellsThatNoEngineComesBack) {
  Stage stage(1);
  ServeOptions options = options_of_demo();
  options.fleet.worker_start_timeout = 300ms;
  Local local(options, stage.starter());
  stage.load(0);
  ASSERT_TRUE(local.wait_ready());
  auto asked = local.ask("/v1/completions", kShort);
  ASSERT_TRUE(http_testing::comes_true([&] { return stage.aboard(0).size() == 1; }));
  stage.die(0, /*for_ever=*/true);
  ASSERT_TRUE(http_testing::comes_true([&] { return !local.lost().empty(); }));
  EXPECT_EQ(local.lost().find("No worker was ready for 0.3 s: "), 0U) << local.lost();
  EXPECT_EQ(asked.wait_for(0s), std::future_status::timeout);  // it has no answer
}

TEST(LocalServer, TellsWhyTheModelDoesNotLoad) {
  const auto fails = thread_starter(
      [](const EngineStart&) -> LLMEngine { throw Error(ErrorCode::kIo, "no weights"); });
  Local local(options_of_demo(), fails);
  ASSERT_TRUE(http_testing::comes_true([&] { return !local.lost().empty(); }));
  EXPECT_EQ(local.lost(), "no weights");
  EXPECT_FALSE(local.is_ready);
}

// Neither loading nor what runs holds it up.
TEST(LocalServer, EndsAtOnce) {
  Stage stage(1);
  {
    Local local(options_of_demo(), stage.starter());
    stage.wait_started(0, 1);
  }
  Stage loaded(1);
  std::future<HttpResponse> asked;
  {
    Local local(options_of_demo(), loaded.starter());
    loaded.load(0);
    ASSERT_TRUE(local.wait_ready());
    asked = local.ask("/v1/completions", kShort);
    ASSERT_TRUE(http_testing::comes_true([&] { return loaded.aboard(0).size() == 1; }));
  }
  EXPECT_THROW(asked.get(), std::future_error);  // nobody answers it any more
}

}  // namespace
}  // namespace nanovllm::server
