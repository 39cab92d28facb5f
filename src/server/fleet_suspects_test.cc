// Fleets of two engines of which one ends again and again, or comes back as something else.
#include <array>
#include <atomic>
#include <thread>

#include "base/check.h"
#include "server/fleet_testing.h"

namespace nanovllm::server {
namespace {

using namespace std::chrono_literals;

// Plays the engines of a fleet, which do what a test says.
class Stage {
 public:
  explicit Stage(int num_engines) : engines_(static_cast<size_t>(num_engines)) {}

  EngineStarter starter() {
    return [this](const EngineStart& start, EngineListener listener) {
      const std::lock_guard lock(mutex_);
      Actor& engine = engines_[static_cast<size_t>(start.index)];
      if (engine.is_lost) throw_error(ErrorCode::kInternal, "The GPU fell off.");
      engine.listener = std::move(listener);
      engine.aboard.clear();
      ++engine.num_starts;
      return std::make_unique<Client>(*this, start.index);
    };
  }
  // Waits until an engine was started so often, and lets it be loaded.
  void load(int index, int num_starts = 1, const std::string& device = "cpu (2 threads)") {
    until([&] { return engines_[static_cast<size_t>(index)].num_starts == num_starts; });
    EngineHello hello;
    hello.info.device = device;
    hello.info.kvcache_block_size = 4;
    listener(index).on_ready(hello);
  }
  void die(int index, bool for_ever = false) {
    {
      const std::lock_guard lock(mutex_);
      engines_[static_cast<size_t>(index)].is_lost = for_ever;
      engines_[static_cast<size_t>(index)].aboard.clear();
    }
    listener(index).on_death(ErrorCode::kInternal, "It died.");
  }
  // Ends what runs on an engine with a prompt of this first token.
  void end(int index, int prompt) {
    RequestEnd end{.finish_reason = FinishReason::kStop, .last = true};
    {
      const std::lock_guard lock(mutex_);
      auto& aboard = engines_[static_cast<size_t>(index)].aboard;
      ASSERT_TRUE(aboard.contains(prompt));
      end.id = aboard.at(prompt);
      aboard.erase(prompt);
    }
    listener(index).on_events({end});
  }
  // The first tokens of the prompts of what runs on an engine.
  std::vector<int> aboard(int index) {
    const std::lock_guard lock(mutex_);
    std::vector<int> prompts;
    for (const auto& [prompt, id] : engines_[static_cast<size_t>(index)].aboard) {
      prompts.push_back(prompt);
    }
    return prompts;
  }
  int num_kills(int index) {
    const std::lock_guard lock(mutex_);
    return engines_[static_cast<size_t>(index)].num_kills;
  }

 private:
  struct Actor {
    EngineListener listener;
    std::map<int, uint64_t> aboard;  // ids by the first token of their prompts
    int num_starts = 0, num_kills = 0;
    bool is_lost = false;
  };
  class Client final : public EngineClient {
   public:
    Client(Stage& stage, int index) : stage_(stage), index_(static_cast<size_t>(index)) {}
    void submit(const EngineCommand& command) override {
      const std::lock_guard lock(stage_.mutex_);
      auto& aboard = stage_.engines_[index_].aboard;
      if (const auto* add = std::get_if<AddRequest>(&command)) {
        aboard.emplace(add->prompt_token_ids.at(0), add->id);
      } else if (const auto* abort = std::get_if<AbortRequest>(&command)) {
        std::erase_if(aboard, [&](const auto& entry) { return entry.second == abort->id; });
      }
    }
    void kill() noexcept override {
      const std::lock_guard lock(stage_.mutex_);
      ++stage_.engines_[index_].num_kills;
    }

   private:
    Stage& stage_;
    const size_t index_;
  };

  EngineListener listener(int index) {
    const std::lock_guard lock(mutex_);
    return engines_[static_cast<size_t>(index)].listener;
  }
  void until(const std::function<bool()>& condition) {
    for (int i = 0; i < 60'000; ++i) {
      {
        const std::lock_guard lock(mutex_);
        if (condition()) return;
      }
      std::this_thread::sleep_for(1ms);
    }
    ADD_FAILURE() << "it does not happen";
  }

  std::mutex mutex_;  // guards what follows
  std::vector<Actor> engines_;
};

using Prompts = std::vector<int>;

// 20 was aboard at two deaths, and the engine that is left has others to do, without end.
TEST(FleetSuspects, HaveTheirTurnHoweverBusyTheLastEngineIs) {
  Stage stage(2);
  std::atomic<bool> is_lost = false;
  const auto fleet = make_fleet({.num_engines = 2}, stage.starter(),
                                {.on_message = [&](const std::string& sentence) {
                                  if (sentence.starts_with("The GPU fell off.")) is_lost = true;
                                }});
  stage.load(0);
  stage.load(1);
  fleet->wait_ready();
  const auto add = [&](int prompt) { return fleet->add(request_of({prompt}, greedy(10))); };
  const auto filler = add(10);
  const auto suspect = add(20);
  ASSERT_EQ(stage.aboard(0), Prompts{10});
  ASSERT_EQ(stage.aboard(1), Prompts{20});
  stage.die(1);
  EXPECT_EQ(stage.aboard(0), (Prompts{10, 20}));
  stage.load(1, 2);
  const auto busy = add(30);
  EXPECT_EQ(stage.aboard(1), Prompts{30});
  stage.die(0, /*for_ever=*/true);
  EXPECT_EQ(stage.aboard(1), (Prompts{10, 30}));
  while (!is_lost) std::this_thread::sleep_for(1ms);  // until then it may come back
  const auto late = add(40);
  EXPECT_EQ(stage.aboard(1), (Prompts{10, 30}));  // it would be there before 20
  stage.end(1, 30);
  EXPECT_EQ(stage.aboard(1), Prompts{10});
  stage.end(1, 10);
  EXPECT_EQ(stage.aboard(1), Prompts{20});
  stage.end(1, 20);
  EXPECT_EQ(stage.aboard(1), Prompts{40});
  EXPECT_TRUE(read(*suspect).error.empty());
}

// One of two workers finds its GPUs taken: whichever is loaded first, nothing is served.
TEST(FleetDevices, AreOfOneKindOrThereIsNoFleet) {
  const std::array<std::string, 2> devices = {"cpu (avx2, 2 threads)",
                                              "cuda (NVIDIA H100, 132 SMs, 79 GiB)"};
  for (const int first : {0, 1}) {
    Stage stage(2);
    const auto fleet = make_fleet({.num_engines = 2}, stage.starter());
    stage.load(first, 1, devices[0]);
    stage.load(1 - first, 1, devices[1]);
    try {
      fleet->wait_ready();
      ADD_FAILURE() << "it is ready";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_EQ(
          error.what(),
          fmt::format(
              "Worker {} would compute on cuda (NVIDIA H100, 132 SMs, 79 GiB), but others on cpu "
              "(avx2, 2 threads): there is no GPU for each of them; take a smaller "
              "--data-parallel-size, or --device cpu.",
              1 - first));
    }
  }
}

TEST(FleetDevices, NeedNotHaveOneNumberOfThreads) {
  Stage stage(2);
  const auto fleet = make_fleet({.num_engines = 2}, stage.starter());
  stage.load(0, 1, "cpu (avx2, 2 threads)");
  EXPECT_EQ(fleet->status().num_ready, 1);
  stage.load(1, 1, "2 x cpu (avx2, 1 thread)");
  fleet->wait_ready();
  EXPECT_EQ(fleet->status().num_ready, 2);
}

TEST(FleetDevices, StayOfOneKindWhenAnEngineComesBack) {
  Stage stage(2);
  const auto fleet = make_fleet({.num_engines = 2}, stage.starter());
  for (const int index : {0, 1}) stage.load(index, 1, "cuda (NVIDIA H100, 132 SMs, 79 GiB)");
  fleet->wait_ready();
  const auto stream = fleet->add(request_of({5}, greedy(10)));
  stage.die(0);
  stage.load(0, 2, "cpu (avx2, 2 threads)");
  EXPECT_EQ(stage.num_kills(0), 1);
  EXPECT_EQ(fleet->status().num_ready, 1);
  EXPECT_EQ(stage.aboard(0), Prompts{});
  EXPECT_EQ(stage.aboard(1), Prompts{5});
  stage.die(0);  // as it was told to
  stage.load(0, 3, "cuda (NVIDIA H100, 132 SMs, 79 GiB)");
  EXPECT_EQ(fleet->status().num_ready, 2);
}

// Both engines end of it, and run those that were aboard one at a time.
TEST(FleetSuspects, AreFoundAmongTwoEngines) {
  const auto fleet = make_fleet(
      {.num_engines = 2},
      fake_workers({"--deadly-id", "49", "--num-kvcache-blocks", "1000", "--step-us", "1000"}));
  fleet->wait_ready();
  SamplingParams harmless = greedy(60);
  harmless.stop_token_ids = {49};
  harmless.min_tokens = 60;
  std::vector<std::shared_ptr<RequestStream>> streams;
  for (int i = 0; i < 51; ++i) {
    const Ids prompt = i == 25 ? Ids{1, 2, 49} : Ids{i % 49, i / 49, 3, 4, i % 7};
    streams.push_back(fleet->add(request_of(prompt, harmless)));
  }
  for (int i = 0; i < 51; ++i) {
    SCOPED_TRACE(i);
    const Seen seen = read(*streams[static_cast<size_t>(i)]);
    EXPECT_EQ(seen.code, i == 25 ? ErrorCode::kInternal : ErrorCode());
    EXPECT_EQ(seen.error.empty(), i != 25) << seen.error;
    if (i != 25) {
      EXPECT_EQ(seen.num_tokens(), 60u);
    }
  }
  EXPECT_EQ(fleet->status().num_streams, 0);
  EXPECT_EQ(fleet->status().num_restarts, 3);
  EXPECT_EQ(read(*fleet->add(request_of({1, 2}, harmless))).num_tokens(), 60u);
}

// Both engines run suspects alone, and somebody kills them then.
TEST(FleetSuspects, SurviveKillsWhileTheyRunAlone) {
  const auto fleet = make_fleet(
      {.num_engines = 2},
      fake_workers({"--deadly-id", "49", "--num-kvcache-blocks", "1000", "--step-us", "3000"}));
  fleet->wait_ready();
  SamplingParams harmless = greedy(30);
  harmless.stop_token_ids = {49};
  harmless.min_tokens = 30;
  std::vector<std::shared_ptr<RequestStream>> streams;
  for (int i = 0; i < 21; ++i) {
    streams.push_back(fleet->add(request_of(i == 10 ? Ids{1, 2, 49} : Ids{i, 3, 4}, harmless)));
  }
  for (int kill = 0; kill < 3; ++kill) {
    const int before = fleet->status().num_restarts;
    while (fleet->status().num_streams > 0 && fleet->status().num_restarts < before + 2) {
      std::this_thread::sleep_for(1ms);
    }
    while (fleet->status().num_ready == 0) std::this_thread::sleep_for(1ms);
    signal_workers(SIGKILL);
  }
  for (int i = 0; i < 21; ++i) {
    SCOPED_TRACE(i);
    const Seen seen = read(*streams[static_cast<size_t>(i)]);
    EXPECT_EQ(seen.error.empty(), i != 10) << seen.error;
    EXPECT_EQ(seen.num_tokens(), i == 10 ? 0u : 30u);
  }
  EXPECT_EQ(fleet->status().num_streams, 0);
}

}  // namespace
}  // namespace nanovllm::server
