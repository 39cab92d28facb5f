// Fleets of two engines of which one ends again and again, or comes back as something else.
#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <thread>

#include "base/check.h"
#include "server/fleet/fleet_stage.h"
#include "server/fleet/fleet_testing.h"

namespace nanovllm::server {
namespace {

using namespace std::chrono_literals;

using Prompts = std::vector<int>;

// Two deaths together, by whatever, then two alone.
TEST(FleetSuspects, EndWithTheSecondDeathAlone) {
  for (const ErrorCode code : {ErrorCode::kInternal, ErrorCode::kUnavailable}) {
    Stage stage(1);
    const auto fleet = make_fleet({}, stage.starter());
    stage.load(0);
    const auto one = fleet->add(request_of({1}, greedy(10)));
    const auto two = fleet->add(request_of({2}, greedy(10)));
    int num_starts = 1;
    const auto die = [&] {
      stage.die(0, false, code);
      stage.load(0, ++num_starts);
    };
    EXPECT_EQ(stage.aboard(0), (Prompts{1, 2}));
    die();
    EXPECT_EQ(stage.aboard(0), (Prompts{1, 2}));
    die();
    EXPECT_EQ(stage.aboard(0), Prompts{1});
    die();
    EXPECT_EQ(stage.aboard(0), Prompts{2});  // who died once alone comes last
    stage.tell(0, 2, 3);
    EXPECT_EQ(stage.aboard(0), Prompts{2});
    stage.tell(0, 2);
    EXPECT_EQ(stage.aboard(0), Prompts{1});
    EXPECT_TRUE(one->take().empty());
    die();
    const Seen seen = read(*one);
    EXPECT_EQ(seen.code, ErrorCode::kInternal);
    EXPECT_EQ(seen.error,
              "The request was given up because workers end when they run it. It died.");
    EXPECT_EQ(stage.aboard(0), Prompts{2});
    stage.end(0, 2);
    EXPECT_EQ(read(*two).error, "");
  }
}

TEST(FleetSuspects, AreNoneWhileEachGetsFourDeltas) {
  Stage stage(1);
  const auto fleet = make_fleet({}, stage.starter());
  stage.load(0);
  SamplingParams two = greedy(10);
  two.n = 2;
  const auto three = fleet->add(request_of({3}, greedy(10)));
  const auto four = fleet->add(request_of({4}, greedy(10)));
  const auto pair = fleet->add(request_of({5}, two));
  const auto half = fleet->add(request_of({6}, two));
  for (int num_starts = 1; num_starts < 3; ++num_starts) {
    ASSERT_EQ(stage.aboard(0), (Prompts{3, 4, 5, 6}));
    stage.tell(0, 3, 3);
    stage.tell(0, 4, 4);
    for (const int completion : {0, 1}) stage.tell(0, 5, 4, completion);
    stage.tell(0, 6, 5, 0);
    stage.tell(0, 6, 3, 1);
    stage.die(0);
    stage.load(0, num_starts + 1);
  }
  EXPECT_EQ(stage.aboard(0), Prompts{3});
  stage.end(0, 3);
  EXPECT_EQ(stage.aboard(0), Prompts{6});
  stage.tell(0, 6, 4, 1);
  EXPECT_EQ(stage.aboard(0), Prompts{6});
  stage.end(0, 6, 0, /*last=*/false);  // the other one has its four
  EXPECT_EQ(stage.aboard(0), (Prompts{4, 5, 6}));
}

// Random deltas, ends and deaths, beside the rule.
TEST(FleetSuspects, AreThoseOfTheRule) {
  struct Request {
    std::shared_ptr<RequestStream> stream;
    std::vector<int> num_deltas = {};  // [n]
    std::vector<bool> ended = {};      // [n]
    int num_deaths = 0;
    bool over = false;

    bool is_proven() const {
      for (size_t i = 0; i < ended.size(); ++i) {
        if (!ended[i] && num_deltas[i] < 4) return false;
      }
      return true;
    }
  };
  int num_given_up = 0, num_ended = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    const auto pick = [&](int count) { return static_cast<int>(rng() % count); };
    Stage stage(1);
    const auto fleet = make_fleet({}, stage.starter());
    stage.load(0);
    std::vector<Request> requests;
    for (int i = 0; i < 5; ++i) {
      SamplingParams params = greedy(100);
      params.n = 1 + pick(2);
      const auto n = static_cast<size_t>(params.n);
      requests.push_back({.stream = fleet->add(request_of({i}, params)),
                          .num_deltas = std::vector<int>(n),
                          .ended = std::vector<bool>(n)});
    }
    Prompts before = stage.aboard(0);
    int num_starts = 1;
    while (!before.empty() && num_starts < 8) {
      const int prompt = before[static_cast<size_t>(pick(static_cast<int>(before.size())))];
      Request& chosen = requests[static_cast<size_t>(prompt)];
      const auto completion = static_cast<size_t>(pick(static_cast<int>(chosen.ended.size())));
      const int what = pick(16);
      if (what == 0) {
        for (const int one : before) {
          Request& request = requests[static_cast<size_t>(one)];
          if (!request.is_proven()) ++request.num_deaths;
          request.over = request.num_deaths == 4;
          num_given_up += request.over ? 1 : 0;
          std::ranges::fill(request.num_deltas, 0);
        }
        stage.compute(0);
        stage.die(0, false, pick(2) == 0 ? ErrorCode::kInternal : ErrorCode::kUnavailable);
        stage.load(0, ++num_starts);
      } else if (what == 1 && !chosen.ended[completion]) {
        chosen.ended[completion] = true;
        chosen.over = std::ranges::find(chosen.ended, false) == chosen.ended.end();
        num_ended += chosen.over ? 1 : 0;
        stage.end(0, prompt, static_cast<int>(completion), chosen.over);
      } else if (what > 1) {
        if (!chosen.ended[completion]) ++chosen.num_deltas[completion];
        stage.tell(0, prompt, 1, static_cast<int>(completion));
      }
      if (!chosen.over && chosen.is_proven()) chosen.num_deaths = 0;
      const Prompts now = stage.aboard(0);
      Prompts innocent, suspect;
      for (int i = 0; i < std::ssize(requests); ++i) {
        Request& request = requests[static_cast<size_t>(i)];
        if (request.over) continue;
        (request.num_deaths < 2 ? innocent : suspect).push_back(i);
        if (std::ranges::find(now, i) == now.end()) std::ranges::fill(request.num_deltas, 0);
      }
      if (suspect.empty()) {
        ASSERT_EQ(now, innocent);
      } else if (std::ranges::find(innocent, now.at(0)) == innocent.end()) {
        ASSERT_EQ(now.size(), 1u);  // alone
      } else {
        ADD_FAILURE() << "a suspect waits for others";
      }
      before = now;
    }
    for (Request& request : requests) {
      Seen seen;
      for (EngineEvent& event : request.stream->take()) seen.add(std::move(event));
      EXPECT_EQ(seen.over, request.over);
      EXPECT_EQ(seen.error.empty(), !request.over || request.num_deaths < 4) << seen.error;
    }
  }
  EXPECT_GT(num_given_up, 5);
  EXPECT_GT(num_ended, 5);
}

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

// It may be that another one was loaded before, or will be.
TEST(FleetDevices, AreThereForEachWorkerOrThereIsNoFleet) {
  for (const bool other_is_first : {true, false}) {
    Stage stage(2);
    const auto fleet = make_fleet({.num_engines = 2}, stage.starter());
    stage.wait_started(1, 1);
    if (other_is_first) stage.load(0);
    stage.die(1, false, ErrorCode::kUnsupported);
    if (!other_is_first) stage.load(0);
    try {
      fleet->wait_ready();
      ADD_FAILURE() << "it is ready";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_STREQ(error.what(), "It died.");
    }
  }
  Stage stage(2);
  const auto fleet = make_fleet({.num_engines = 2}, stage.starter());
  stage.load(0);
  stage.wait_started(1, 1);
  stage.die(1, false, ErrorCode::kOutOfMemory);  // which may pass
  fleet->wait_ready();
  stage.load(1, 2);
  EXPECT_EQ(fleet->status().num_ready, 2);
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
  EXPECT_EQ(fleet->status().num_restarts, 4);
  EXPECT_EQ(read(*fleet->add(request_of({1, 2}, harmless))).num_tokens(), 60u);
}

// Both engines run suspects alone, and somebody kills them then, once.
TEST(FleetSuspects, SurviveAKillWhileTheyRunAlone) {
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
  while (fleet->status().num_restarts < 2) std::this_thread::sleep_for(1ms);
  while (fleet->status().num_ready == 0) std::this_thread::sleep_for(1ms);
  EXPECT_GT(signal_workers(SIGKILL), 0);
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
