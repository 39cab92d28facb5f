// What a fleet is to those who add requests, as long as its engines are well.
#include "server/fleet/fleet.h"

#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "base/check.h"
#include "server/fleet/fleet_testing.h"
#include "server/fleet/worker.h"
#include "server/metrics.h"

namespace nanovllm::server {
namespace {

using namespace std::chrono_literals;

EngineStarter fake_threads(const FakeEngineOptions& options = {},
                           std::chrono::microseconds step_time = {}) {
  return thread_starter([=](const EngineStart&) {
    FakeEngine engine = make_fake_engine(options, alphabet());
    engine.runner->step_time = step_time;
    return LLMEngine(std::move(engine.core));
  });
}

ErrorCode code_thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorCode::kInternal;
}

// Also where the seed is not the default: answers are those without a server.
TEST(Fleet, DrawsWhatItsEnginesWouldDraw) {
  FakeEngine alone = make_fake_engine({.seed = 5}, alphabet());
  for (int i = 0; i < 3; ++i) alone.core->add_request(Ids{1, 2, i}, random(20));
  auto expected = run(*alone.core);
  for (const EngineStarter& starter : {fake_threads(), fake_workers()}) {
    const auto fleet = make_fleet({.seed = 5}, starter);
    for (int i = 0; i < 3; ++i) {
      const Seen seen = read(*fleet->add(request_of({1, 2, i}, random(20))));
      const CompletionOutput& output = expected.at(static_cast<uint64_t>(i)).outputs[0];
      EXPECT_EQ(seen.completions.at(0).token_ids, output.token_ids);
      EXPECT_EQ(seen.completions.at(0).text, output.text);
    }
  }
}

TEST(Fleet, SaysWhatKeepsTheFirstWorkerFromLoading) {
  const auto fleet = make_fleet({}, worker_starter({"fails", "There is no room."}, kWorkerDriver));
  try {
    fleet->wait_ready();
    ADD_FAILURE() << "it loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_STREQ(error.what(), "There is no room.");
  }
  EXPECT_EQ(fleet->status().num_ready, 0);
  const auto no_binary = make_fleet({}, worker_starter({}, "/nowhere/nanovllm"));
  EXPECT_EQ(code_thrown_by([&] { no_binary->wait_ready(); }), ErrorCode::kInternal);
  const auto no_engine = make_fleet({}, [](const EngineStart&, EngineListener) {
    throw_error(ErrorCode::kUnsupported, "Not here.");
    return nullptr;
  });
  EXPECT_EQ(code_thrown_by([&] { no_engine->wait_ready(); }), ErrorCode::kUnsupported);
}

TEST(Worker, HasTheGpusBehindThoseOfTheWorkersBeforeIt) {
  EngineConfig config;
  config.first_gpu = 2;
  config.tensor_parallel_size = 4;
  EXPECT_EQ(config_of_worker(0, config).first_gpu, 2);
  EXPECT_EQ(config_of_worker(1, config).first_gpu, 6);
  EXPECT_EQ(config_of_worker(3, config).first_gpu, 14);
  EXPECT_EQ(config_of_worker(3, config).tensor_parallel_size, 4);
}

TEST(Fleet, TellsWhatAWorkerSaysOfItself) {
  const auto fleet = make_fleet({}, worker_starter({"model", kDemoModel}, kWorkerDriver));
  EXPECT_EQ(fleet->status().why.empty(), fleet->status().num_ready > 0);
  const EngineHello& hello = fleet->wait_ready();
  EXPECT_EQ(hello.model_dir, kDemoModel);
  EXPECT_EQ(hello.info.device_type, "cpu");
  EXPECT_EQ(hello.info.num_kvcache_blocks, 512);
  EXPECT_EQ(hello.info.max_model_len, 512);
  EXPECT_EQ(fleet->status().num_ready, 1);
}

TEST(Fleet, PassesOnWhatARequestIsRefusedFor) {
  for (const EngineStarter& starter : {fake_threads(), fake_workers()}) {
    const auto fleet = make_fleet({}, starter);
    const Seen seen = read(*fleet->add(request_of({77}, greedy(5))));
    EXPECT_EQ(seen.code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(seen.error, "Token id 77 is out of vocabulary; the model knows 0 to 49.");
    EXPECT_EQ(read(*fleet->add(request_of({7}, greedy(5)))).num_tokens(), 5u);
    EXPECT_EQ(fleet->status().num_restarts, 0);
  }
}

TEST(Fleet, BoundsWhatWaitsForItsFirstToken) {
  const auto fleet = make_fleet({.max_num_queued = 3}, fake_threads({.max_num_seqs = 1}, 20ms));
  std::vector<std::shared_ptr<RequestStream>> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(fleet->add(request_of({1}, greedy(100))));
  EXPECT_THROW(fleet->add(request_of({1}, greedy(1))), QueueFull);
  EXPECT_EQ(fleet->status().num_queued, 3);
  Seen seen;
  read_until(*streams[0], seen, [](const Seen& s) { return s.num_tokens() > 0; });
  EXPECT_EQ(fleet->status().num_queued, 2);
  streams.push_back(fleet->add(request_of({1}, greedy(1))));
  EXPECT_THROW(fleet->add(request_of({1}, greedy(1))), QueueFull);
  streams.pop_back();
  streams.push_back(fleet->add(request_of({1}, greedy(1))));
}

TEST(Fleet, EndsWhatNobodyWantsAnyMore) {
  std::mutex mutex;
  StepStats last;
  std::vector<RequestEnd> ends;
  const auto fleet = make_fleet({}, fake_threads({.max_num_seqs = 2}, 1ms),
                                {.on_step =
                                     [&](int, const StepStats& stats) {
                                       const std::lock_guard lock(mutex);
                                       last = stats;
                                     },
                                 .on_end =
                                     [&](int, const AddRequest&, const RequestEnd& end, bool) {
                                       const std::lock_guard lock(mutex);
                                       ends.push_back(end);
                                     }});
  SamplingParams two = random(150);
  two.n = 2;
  const auto kept = fleet->add(request_of({1, 2}, two));
  kept->on_ready([] { ADD_FAILURE() << "called after it was cancelled"; });
  kept->cancel();
  EXPECT_TRUE(kept->take().empty());
  kept->on_ready([] { ADD_FAILURE() << "called after it was cancelled"; });
  fleet->add(request_of({1, 2}, two));  // nobody keeps it
  EXPECT_EQ(fleet->status().num_streams, 0);
  EXPECT_EQ(read(*fleet->add(request_of({1, 3}, greedy(10)))).num_tokens(), 10u);
  const std::lock_guard lock(mutex);
  EXPECT_EQ(last.num_running, 1);
  EXPECT_EQ(last.num_waiting, 0);
  ASSERT_EQ(ends.size(), 5u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(ends[i].id, i / 2);
    EXPECT_EQ(ends[i].index, static_cast<int>(i % 2));
    EXPECT_EQ(ends[i].last, i % 2 == 1);
    EXPECT_EQ(ends[i].finish_reason, FinishReason::kAbort);
  }
}

// By way of metrics, of requests that end, are refused and are cancelled.
TEST(Fleet, TellsWhatMetricsCount) {
  Metrics metrics("demo", 1);
  const auto fleet = make_fleet({}, fake_threads({}, 1ms), metrics.observer());
  metrics.begin(fleet->wait_ready().info, {});
  SamplingParams two = random(20);
  two.n = 2;
  two.ignore_eos = true;
  EXPECT_EQ(read(*fleet->add(request_of({1, 2, 3}, two))).num_tokens(), 40u);
  EXPECT_FALSE(read(*fleet->add(request_of({1'000'000}, two))).error.empty());
  const auto cancelled = fleet->add(request_of({1, 2, 3}, random(150)));
  Seen seen;
  read_until(*cancelled, seen, [](const Seen& so_far) { return so_far.num_tokens() > 0; });
  cancelled->cancel();
  EXPECT_EQ(read(*fleet->add(request_of({4}, two))).num_tokens(), 40u);
  fleet->shut_down(10s);
  const std::string text = metrics.text();
  for (
      const char* line : {
          R"(vllm:request_success_total{engine="0",finished_reason="length",model_name="demo"} 4)",
          R"(vllm:request_success_total{engine="0",finished_reason="abort",model_name="demo"} 1)",
          R"(vllm:request_success_total{engine="0",finished_reason="error",model_name="demo"} 2)",
          R"(vllm:time_to_first_token_seconds_count{engine="0",model_name="demo"} 5)",
          R"(vllm:request_params_n_count{engine="0",model_name="demo"} 4)",
          R"(vllm:request_max_num_generation_tokens_bucket{engine="0",model_name="demo",le="+Inf"} 4)",
          R"(vllm:num_requests_running{engine="0",model_name="demo"} 0)",
          R"(vllm:kv_cache_usage_perc{engine="0",model_name="demo"} 0)",
      }) {
    EXPECT_NE(text.find(std::string(line) + "\n"), std::string::npos) << line << "\n" << text;
  }
}

TEST(Fleet, SendsEqualBeginningsToTheEngineThatHasThem) {
  const auto fleet = make_fleet({.num_engines = 3}, fake_workers());
  while (fleet->status().num_ready < 3) std::this_thread::sleep_for(5ms);
  for (int i = 0; i < 5; ++i) {
    const auto stream = fleet->add(request_of({1, 2, 3, 4, 5, 6, 7, 8, i}, greedy(4)));
    int num_cached = -1;
    Seen seen;
    while (!seen.over) {
      ASSERT_TRUE(wait_for_events(*stream, 60s));
      for (EngineEvent& event : stream->take()) {
        if (const auto* end = std::get_if<RequestEnd>(&event)) num_cached = end->num_cached_tokens;
        seen.add(std::move(event));
      }
    }
    EXPECT_EQ(num_cached, i == 0 ? 0 : 8);
  }
}

TEST(Fleet, LetsRequestsEndBeforeItShutsDown) {
  const auto fleet = make_fleet({}, fake_workers({"--step-us", "1000"}));
  const auto stream = fleet->add(request_of({1, 2}, greedy(50)));
  std::thread shutting([&] { fleet->shut_down(60s); });
  while (true) {  // until it has begun
    try {
      fleet->add(request_of({1}, greedy(1)));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
      break;
    }
  }
  EXPECT_EQ(read(*stream).num_tokens(), 50u);
  shutting.join();
  EXPECT_EQ(fleet->status().num_ready, 0);
  EXPECT_TRUE(worker_pids().empty());
}

TEST(Fleet, EndsWhatIsLeftAtTheDeadline) {
  const auto fleet = make_fleet({}, fake_threads({}, 40ms));
  const auto stream = fleet->add(request_of({1, 2}, greedy(190)));
  std::thread shutting([&] { fleet->shut_down(1h); });
  Seen seen;
  read_until(*stream, seen, [](const Seen& s) { return s.num_tokens() > 3; });
  fleet->shut_down(50ms);
  shutting.join();
  seen = read(*stream, seen);
  EXPECT_EQ(seen.code, ErrorCode::kUnavailable);
  EXPECT_EQ(seen.error, "The server was shut down before the request could end.");
}

TEST(Fleet, LeavesNothingBehind) {
  const auto num_open = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = num_open();
  std::shared_ptr<RequestStream> stream;
  {
    const auto fleet = make_fleet({.num_engines = 2}, fake_workers({"--step-us", "1000"}));
    stream = fleet->add(request_of({1, 2}, greedy(100)));
    Seen seen;
    for (size_t i = 1; i < 4; ++i) {
      read_until(*stream, seen, [&](const Seen& s) { return s.num_tokens() > 10 * i; });
      signal_workers(SIGKILL);
    }
    EXPECT_EQ(read(*stream, seen).num_tokens(), 100u);
  }
  EXPECT_EQ(num_open(), before);
  EXPECT_TRUE(worker_pids().empty());
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);  // no child is left to wait for
  EXPECT_TRUE(stream->take().empty());             // outlives the fleet
}

TEST(Worker, InheritsNothingButItsSocket) {
  const int not_for_it = ::dup(STDERR_FILENO);
  const auto fleet = make_fleet({}, fake_workers());
  fleet->wait_ready();
  const pid_t pid = worker_pids().at(0);
  std::vector<std::string> open;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    open.push_back(entry.path().filename());
  }
  std::ranges::sort(open);
  EXPECT_EQ(open, (std::vector<std::string>{"0", "1", "2", "3"}));
  EXPECT_EQ(::getpgid(pid), pid);  // no business of the terminal's
  ::close(not_for_it);
}

TEST(Worker, LeavesSignalsOfTheServiceToItsFront) {
  const auto fleet = make_fleet({}, fake_workers({"--step-us", "1000"}));
  const auto stream = fleet->add(request_of({1, 2}, greedy(50)));
  Seen seen;
  read_until(*stream, seen, [](const Seen& s) { return s.num_tokens() > 3; });
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) EXPECT_EQ(signal_workers(signal), 1);
  EXPECT_EQ(read(*stream, seen).num_tokens(), 50u);
  EXPECT_EQ(fleet->status().num_restarts, 0);
}

TEST(Worker, EndsWithItsFront) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t front = ::fork();
  if (front == 0) {
    const auto fleet = make_fleet({}, fake_workers({"--step-us", "1000"}));
    fleet->wait_ready();
    const pid_t worker = worker_pids().at(0);
    (void)!::write(ends[1], &worker, sizeof worker);
    ::raise(SIGKILL);
  }
  pid_t worker = 0;
  ASSERT_EQ(::read(ends[0], &worker, sizeof worker), std::ssize(std::string(sizeof worker, 0)));
  ::waitpid(front, nullptr, 0);
  const std::string status = "/proc/" + std::to_string(worker) + "/status";
  const auto is_alive = [&] {
    std::ifstream file(status);
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("State:")) return line.find('Z') == std::string::npos;
    }
    return false;
  };
  for (int i = 0; i < 1000 && is_alive(); ++i) std::this_thread::sleep_for(10ms);
  EXPECT_FALSE(is_alive());
  for (const int end : ends) ::close(end);
}

}  // namespace
}  // namespace nanovllm::server
