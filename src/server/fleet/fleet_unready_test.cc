// Fleets without an engine that is ready, and with engines that come back smaller than they were.
#include <atomic>
#include <thread>

#include "base/check.h"
#include "server/fleet/fleet_stage.h"
#include "server/fleet/fleet_testing.h"

namespace nanovllm::server {
namespace {

using namespace std::chrono_literals;

using Prompts = std::vector<int>;

const std::string kCpu = "cpu (2 threads)";

Ids prompt(int first, int length) {
  Ids ids(static_cast<size_t>(length), 1);
  ids[0] = first;
  return ids;
}

TEST(FleetUnready, StartsWithWhatFitsAfterThreeTries) {
  Stage stage(1);
  const auto fleet = make_fleet({}, stage.starter());
  stage.load(0, 1, kCpu, 100);
  for (int num_starts = 1; num_starts <= 4; ++num_starts) {
    stage.die(0);
    stage.wait_started(0, num_starts + 1);
  }
  EXPECT_EQ(stage.num_blocks(0), (std::vector<int>{-1, 100, 100, 100, -1}));
  stage.load(0, 5, kCpu, 30);
  stage.die(0);  // and the next one is as large as the last one was
  stage.load(0, 6, kCpu, 30);
  EXPECT_EQ(stage.num_blocks(0).back(), 30);
}

TEST(FleetUnready, TellsObserversOfEachStartAndOfWhatIsLoaded) {
  Stage stage(2);
  std::mutex mutex;
  std::vector<std::pair<int, int>> loaded;  // engine, blocks
  std::vector<int> restarted;
  FleetObserver observer;
  observer.on_ready = [&](int engine, const EngineLimits& limits) {
    const std::lock_guard lock(mutex);
    loaded.emplace_back(engine, limits.num_kvcache_blocks);
  };
  observer.on_restart = [&](int engine) {
    const std::lock_guard lock(mutex);
    restarted.push_back(engine);
  };
  const auto fleet = make_fleet({.num_engines = 2}, stage.starter(), observer);
  stage.load(0, 1, kCpu, 100);
  stage.load(1, 1, kCpu, 90);
  fleet->wait_ready();
  stage.die(1);
  stage.load(1, 2, kCpu, 30);
  const std::lock_guard lock(mutex);
  EXPECT_EQ(loaded, (std::vector<std::pair<int, int>>{{0, 100}, {1, 90}, {1, 30}}));
  EXPECT_EQ(restarted, std::vector{1});
}

// Blocks of 4 tokens: 20 of them hold 80, and the last token of a request needs no room.
TEST(FleetUnready, EndsWhatCanNotFitAnyMore) {
  Stage stage(1);
  std::mutex mutex;
  std::vector<std::string> said;
  const auto fleet = make_fleet({}, stage.starter(), {.on_message = [&](const std::string& text) {
                                  const std::lock_guard lock(mutex);
                                  said.push_back(text);
                                }});
  stage.load(0, 1, kCpu, 100);
  fleet->wait_ready();
  EXPECT_EQ(fleet->status().limits.max_num_tokens(), 401);
  const auto just = fleet->add(request_of(prompt(1, 60), greedy(21)));
  const auto too_long = fleet->add(request_of(prompt(2, 60), greedy(22)));
  const auto endless = fleet->add(request_of(prompt(3, 80), greedy(kAsManyAsFit)));
  const auto endless_too_long = fleet->add(request_of(prompt(4, 78), greedy(kAsManyAsFit)));
  stage.tell(0, 4, 3);
  stage.die(0);
  EXPECT_EQ(fleet->status().limits.max_num_tokens(), 401);
  stage.load(0, 2, kCpu, 20);
  EXPECT_EQ(fleet->status().limits.max_num_tokens(), 81);
  EXPECT_EQ(stage.aboard(0), (Prompts{1, 3}));
  const Seen seen = read(*too_long);
  EXPECT_EQ(seen.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(seen.error,
            "The request can't fit any more: it may come to 82 tokens, prompt and output together, "
            "but workers came back with less memory and take 81; ask for fewer.");
  EXPECT_EQ(read(*endless_too_long).code, ErrorCode::kInvalidArgument);
  const std::lock_guard lock(mutex);
  EXPECT_EQ(said.back(),
            "Worker 0 is ready again; requests may have 81 tokens now, prompt and output together, "
            "not 401.");
}

TEST(FleetUnready, SendsLongRequestsToTheEngineThatIsStillLarge) {
  Stage stage(2);
  const auto fleet = make_fleet({.num_engines = 2}, stage.starter());
  for (const int index : {0, 1}) stage.load(index, 1, kCpu, 100);
  fleet->wait_ready();
  stage.die(0);
  stage.load(0, 2, kCpu, 20);
  EXPECT_EQ(fleet->status().limits.max_num_tokens(), 401);
  std::vector<std::shared_ptr<RequestStream>> streams;
  for (int i = 0; i < 3; ++i) {
    streams.push_back(fleet->add(request_of(prompt(i, 100), greedy(10))));
    streams.push_back(fleet->add(request_of(prompt(10 + i, 10), greedy(10))));
  }
  EXPECT_EQ(stage.aboard(0), (Prompts{10, 11, 12}));
  EXPECT_EQ(stage.aboard(1), (Prompts{0, 1, 2}));
  stage.die(1);
  EXPECT_EQ(stage.aboard(0), (Prompts{10, 11, 12}));  // the long ones wait: it comes back
  stage.load(1, 2, kCpu, 100);
  EXPECT_EQ(stage.aboard(1), (Prompts{0, 1, 2}));
}

TEST(FleetUnready, SendsAwayWhoWasShownNothing) {
  Stage stage(1);
  const auto fleet = make_fleet({.unready_patience = 2s}, stage.starter());
  stage.load(0);
  fleet->wait_ready();
  const auto shown = fleet->add(request_of({1}, greedy(10)));
  const auto told = fleet->add(request_of({2}, greedy(10)));
  stage.tell(0, 1);
  stage.die(0, false, ErrorCode::kUnavailable);  // soon back: all go on
  EXPECT_THROW(fleet->add(request_of({3}, greedy(10))), Error);
  stage.load(0, 2);
  stage.tell(0, 1, 4);
  EXPECT_EQ(fleet->status().num_streams, 2);
  const auto died_at = std::chrono::steady_clock::now();
  stage.die(0);
  const Seen seen = read(*told);
  EXPECT_GE(std::chrono::steady_clock::now() - died_at, 2s);
  EXPECT_EQ(seen.code, ErrorCode::kUnavailable);
  EXPECT_EQ(seen.error, "No worker is ready; try again later. It died.");
  EXPECT_EQ(fleet->status().num_streams, 1);
  stage.load(0, 3);
  EXPECT_EQ(stage.aboard(0), Prompts{1});
  stage.end(0, 1);
  EXPECT_EQ(read(*shown).error, "");
}

// Kills from outside say nothing of the next start.
TEST(FleetUnready, SendsThemAwayAtOnceWhereNotEvenASmallerOneStarts) {
  Stage stage(1);
  const auto fleet = make_fleet({.unready_patience = 1h}, stage.starter());
  stage.load(0);
  fleet->wait_ready();
  const auto shown = fleet->add(request_of({1}, greedy(10)));
  const auto told = fleet->add(request_of({2}, greedy(10)));
  stage.tell(0, 1);
  stage.die(0);
  int num_starts = 1;
  for (const ErrorCode code : {ErrorCode::kOutOfMemory, ErrorCode::kUnavailable,
                               ErrorCode::kOutOfMemory, ErrorCode::kInternal}) {
    stage.wait_started(0, ++num_starts);
    stage.die(0, false, code);
  }
  stage.wait_started(0, ++num_starts);
  EXPECT_EQ(fleet->status().num_streams, 2);
  stage.die(0);
  EXPECT_EQ(read(*told).code, ErrorCode::kUnavailable);
  EXPECT_EQ(fleet->status().num_streams, 1);
}

TEST(FleetUnready, IsToldWhenItLastsTooLong) {
  for (const bool was_ready : {false, true}) {
    Stage stage(1);
    std::atomic<int> num_told = 0;
    std::string why;
    const auto begin = std::chrono::steady_clock::now();
    std::atomic<std::chrono::steady_clock::duration> told_after{};
    const auto fleet = make_fleet({.worker_start_timeout = 300ms}, stage.starter(),
                                  {.on_unready = [&](const std::string& text) {
                                    why = text;
                                    told_after = std::chrono::steady_clock::now() - begin;
                                    ++num_told;
                                  }});
    stage.wait_started(0, 1);
    if (was_ready) {
      stage.load(0);
      std::this_thread::sleep_for(400ms);  // who is ready has no time to keep
      EXPECT_EQ(num_told, 0);
      stage.die(0);
    }
    while (num_told == 0) std::this_thread::sleep_for(1ms);
    EXPECT_GE(told_after.load(), was_ready ? 700ms : 300ms);
    std::this_thread::sleep_for(400ms);
    EXPECT_EQ(num_told, 1);
    EXPECT_EQ(why, was_ready ? "No worker was ready for 0.3 s: It died. Where loading takes "
                               "longer, raise --worker-start-timeout."
                             : "No worker was ready for 0.3 s: The model is being loaded. Where "
                               "loading takes longer, raise --worker-start-timeout.");
  }
}

// Loading that advances takes its time, however long.
TEST(FleetUnready, LastsAsLongAsALoadAdvances) {
  Stage stage(1);
  std::atomic<int> num_told = 0;
  const auto fleet = make_fleet({.worker_start_timeout = 500ms}, stage.starter(),
                                {.on_unready = [&](const std::string&) { ++num_told; }});
  stage.wait_started(0, 1);
  for (int i = 0; i < 60; ++i) {
    stage.advance(0);
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_EQ(num_told, 0);
  stage.load(0);
  std::this_thread::sleep_for(600ms);
  EXPECT_EQ(num_told, 0);
}

// The waits between the starts grow from 0.1 s to twice the one before.
TEST(FleetUnready, IsToldOfLoadsThatAdvanceAndDieAgainAndAgain) {
  Stage stage(1);
  std::atomic<int> num_told = 0;
  const auto fleet = make_fleet({.worker_start_timeout = 2s}, stage.starter(),
                                {.on_unready = [&](const std::string&) { ++num_told; }});
  int num_starts = 0;
  while (num_told == 0 && num_starts < 20) {
    stage.wait_started(0, ++num_starts);
    for (int i = 0; i < 15; ++i) {
      stage.advance(0);
      std::this_thread::sleep_for(20ms);
    }
    stage.advance(0);
    stage.die(0);
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_LE(num_starts, 5);
}

TEST(FleetUnready, StartsAnEngineAgainWhoseLoadingStandsStillBesideOneThatIsReady) {
  Stage stage(2);
  std::atomic<int> num_told = 0;
  const auto fleet = make_fleet({.num_engines = 2, .worker_start_timeout = 500ms}, stage.starter(),
                                {.on_unready = [&](const std::string&) { ++num_told; }});
  stage.load(0);
  stage.wait_started(1, 1);
  for (int i = 0; i < 40; ++i) {
    stage.advance(1);
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_EQ(stage.num_kills(1), 0);
  while (stage.num_kills(1) == 0) std::this_thread::sleep_for(1ms);
  stage.die(1);
  stage.load(1, 2);
  fleet->wait_ready();
  std::this_thread::sleep_for(600ms);
  EXPECT_EQ(stage.num_kills(1), 1);
  EXPECT_EQ(stage.num_kills(0), 0);
  EXPECT_EQ(num_told, 0);
}

TEST(FleetUnready, SendsWhatHasNoEndToTheLargestEngineThatIsReady) {
  Stage stage(2);
  const auto fleet = make_fleet({.num_engines = 2}, stage.starter());
  stage.load(0, 1, kCpu, 20);
  stage.load(1, 1, kCpu, 100);
  EXPECT_EQ(fleet->wait_ready().info.max_num_tokens(), 401);  // as it is told in the log
  EXPECT_EQ(fleet->status().limits.max_num_tokens(), 401);
  std::vector<std::shared_ptr<RequestStream>> streams;
  for (int i = 0; i < 3; ++i) {
    streams.push_back(fleet->add(request_of(prompt(i, 10), greedy(kAsManyAsFit))));
  }
  EXPECT_EQ(stage.aboard(0), Prompts());
  EXPECT_EQ(stage.aboard(1), (Prompts{0, 1, 2}));
  stage.die(1);
  EXPECT_EQ(stage.aboard(0), (Prompts{0, 1, 2}));
}

TEST(FleetSize, IsLimited) {
  for (const int size : {-1, 0, 65}) {
    try {
      make_fleet({.num_engines = size}, [](const EngineStart&, EngineListener) {
        ADD_FAILURE() << "it starts";
        return nullptr;
      });
      ADD_FAILURE() << size;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(error.what(),
                fmt::format("data_parallel_size must be from 1 to 64, got {}.", size));
    }
  }
  Stage stage(64);
  const auto fleet = make_fleet({.num_engines = 64}, stage.starter());
  for (int i = 0; i < 64; ++i) stage.load(i);
  const auto stream = fleet->add(request_of(prompt(1, 20), greedy(10)));
  int num_aboard = 0;
  for (int i = 0; i < 64; ++i) num_aboard += static_cast<int>(stage.aboard(i).size());
  EXPECT_EQ(num_aboard, 1);
}

}  // namespace
}  // namespace nanovllm::server
