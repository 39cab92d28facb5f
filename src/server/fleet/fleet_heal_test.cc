// Streams that go on when workers die.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "base/check.h"
#include "base/testing.h"
#include "server/fleet/fleet_testing.h"

namespace nanovllm::server {
namespace {

using namespace std::chrono_literals;

// Each draws in its own way; together they use whatever a cut might disturb.
SamplingParams demo_params(uint32_t seed) {
  std::mt19937 rng(seed);
  SamplingParams params;
  params.max_tokens = 48;
  params.ignore_eos = true;
  params.temperature = seed % 4 == 0 ? 0 : 0.9;
  params.seed = rng();
  if (seed % 2 == 0) params.logprobs = 2;
  if (seed % 3 == 0) params.repetition_penalty = 1.2;
  if (seed % 5 == 0) params.presence_penalty = 0.5;
  if (seed % 4 == 1) params.n = 3;
  if (seed % 4 == 2) params.stop = {"the ", "a l"};
  if (seed % 6 == 3) params.prompt_logprobs = 1;
  if (seed % 7 == 1) params.ignore_eos = false;
  return params;
}

// While no worker is ready, nothing is taken.
std::shared_ptr<RequestStream> add_when_ready(Fleet& fleet, const AddRequest& request) {
  while (true) {
    try {
      return fleet.add(request);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
      std::this_thread::sleep_for(1ms);
    }
  }
}

// The first day's question: whatever the token at which the worker is killed, its user sees what
// one worker would have shown.
TEST(FleetHeals, ShowsTheSameWhereverItsWorkerIsKilled) {
  const auto fleet = make_fleet({}, worker_starter({"model", kDemoModel}, kWorkerDriver));
  fleet->wait_ready();
  std::mt19937 rng(7);
  const int num_requests = test::full_or_reduced(50, 10);
  int num_cuts = 0, num_stops = 0;
  std::chrono::nanoseconds slowest{};
  for (int i = 0; i < num_requests; ++i) {
    SCOPED_TRACE(i);
    const AddRequest request = request_of({5, 9, 12, 40, 7, i + 1}, demo_params(i));
    const Seen expected = read(*add_when_ready(*fleet, request));
    EXPECT_EQ(expected.error, "");
    const auto stream = add_when_ready(*fleet, request);
    Seen seen;
    const size_t cut = 1 + rng() % expected.num_tokens();
    read_until(*stream, seen, [&](const Seen& s) { return s.num_tokens() >= cut; });
    num_cuts += seen.over ? 0 : 1;
    signal_workers(SIGKILL);
    const auto killed_at = std::chrono::steady_clock::now();
    read_until(*stream, seen, [&](const Seen& s) { return s.num_tokens() > cut; });
    slowest = std::max(slowest, std::chrono::steady_clock::now() - killed_at);
    EXPECT_EQ(read(*stream, seen), expected);
    for (const auto& [index, completion] : expected.completions) {
      num_stops += std::holds_alternative<std::string>(completion.stop_reason) ? 1 : 0;
    }
  }
  RecordProperty("milliseconds_from_kill_to_token", static_cast<int>(slowest / 1ms));
  EXPECT_GT(num_cuts, num_requests / 2);
  EXPECT_GT(fleet->status().num_restarts, num_requests / 2);
  EXPECT_GT(num_stops, 0);
}

// Never draws the id that is deadly in some tests.
SamplingParams harmless(int max_tokens) {
  SamplingParams params = greedy(max_tokens);
  params.stop_token_ids = {49};
  params.min_tokens = max_tokens;
  return params;
}

Ids prompt_number(int i) { return {i % 49, i / 49, 3, 4, 5, i % 7}; }

// What a fleet that nothing happens to gives, on a thread.
std::vector<Seen> undisturbed(const std::vector<AddRequest>& requests) {
  const auto fleet =
      make_fleet({}, thread_starter([](const EngineStart&) {
                   return LLMEngine(make_fake_engine({.num_blocks = 1000}, alphabet()).core);
                 }));
  std::vector<std::shared_ptr<RequestStream>> streams;
  for (const AddRequest& request : requests) streams.push_back(fleet->add(request));
  std::vector<Seen> seen;
  for (const auto& stream : streams) seen.push_back(read(*stream));
  return seen;
}

TEST(FleetHeals, KeepsTwoHundredStreamsThroughTenKills) {
  std::vector<AddRequest> requests;
  for (int i = 0; i < 200; ++i) {
    requests.push_back(request_of(prompt_number(i), i % 2 == 0 ? greedy(80) : random(80)));
    requests.back().params.logprobs = 1;
    if (i % 10 == 1) requests.back().params.n = 2;
    if (i % 4 == 3) requests.back().params.stop = {"ab", "c"};
  }
  const std::vector<Seen> expected = undisturbed(requests);
  std::mutex mutex;
  int num_ends = 0;
  const auto fleet =
      make_fleet({}, fake_workers({"--num-kvcache-blocks", "1000", "--step-us", "2000"}),
                 {.on_end = [&](int, const AddRequest&, const RequestEnd&, bool) {
                   const std::lock_guard lock(mutex);
                   ++num_ends;
                 }});
  fleet->wait_ready();
  std::vector<std::shared_ptr<RequestStream>> streams;
  for (const AddRequest& request : requests) streams.push_back(fleet->add(request));
  std::mt19937 rng(3);
  int num_kills = 0;
  while (num_kills < 10 && fleet->status().num_streams > 0) {
    while (fleet->status().num_ready == 0) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + rng() % 80));
    const int before = fleet->status().num_restarts;
    num_kills += signal_workers(SIGKILL);
    while (fleet->status().num_restarts == before) std::this_thread::sleep_for(1ms);
  }
  size_t num_completions = 0;
  for (size_t i = 0; i < streams.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(read(*streams[i]), expected[i]);
    num_completions += expected[i].completions.size();
  }
  EXPECT_EQ(num_kills, 10);
  EXPECT_GE(fleet->status().num_restarts, num_kills);
  EXPECT_EQ(fleet->status().num_streams, 0);
  EXPECT_EQ(fleet->status().num_queued, 0);
  const std::lock_guard lock(mutex);
  EXPECT_EQ(num_ends, static_cast<int>(num_completions));
}

TEST(FleetHeals, GivesUpOnlyTheRequestThatEndsItsWorker) {
  std::mutex mutex;
  int num_deaths = 0;
  const auto fleet = make_fleet(
      {}, fake_workers({"--deadly-id", "49", "--num-kvcache-blocks", "1000", "--step-us", "1000"}),
      {.on_message = [&](const std::string& sentence) {
        const std::lock_guard lock(mutex);
        num_deaths += sentence.find("SIGABRT") != std::string::npos ? 1 : 0;
      }});
  fleet->wait_ready();
  std::vector<std::shared_ptr<RequestStream>> streams;
  for (int i = 0; i < 51; ++i) {
    const Ids prompt = i == 25 ? Ids{1, 2, 49} : prompt_number(i);
    streams.push_back(fleet->add(request_of(prompt, harmless(100))));
  }
  for (int i = 0; i < 51; ++i) {
    SCOPED_TRACE(i);
    const Seen seen = read(*streams[static_cast<size_t>(i)]);
    if (i == 25) {
      EXPECT_EQ(seen.code, ErrorCode::kInternal);
      EXPECT_EQ(seen.error,
                "The request was given up because workers end when they run it. Worker 0 was ended "
                "by SIGABRT.");
    } else {
      EXPECT_EQ(seen.error, "");
      EXPECT_EQ(seen.num_tokens(), 100u);
    }
  }
  EXPECT_EQ(fleet->status().num_restarts, 4);
  const std::lock_guard lock(mutex);
  EXPECT_EQ(num_deaths, 4);
}

TEST(FleetHeals, FindsTheRequestThatTurnsDeadlyOnItsWay) {
  // Its greedy output holds the deadly id, somewhere in the middle.
  Ids prompt;
  size_t deadly_at = 0;
  for (int i = 0; deadly_at < 10; ++i) {
    prompt = {i, 3, 3};
    const Ids output = greedy_tokens(prompt, 60);
    const auto found = std::ranges::find(output, 49) - output.begin();
    deadly_at = found == 60 ? 0 : static_cast<size_t>(found);
  }
  const auto fleet = make_fleet({}, fake_workers({"--deadly-id", "49", "--step-us", "1000"}));
  const auto deadly = fleet->add(request_of(prompt, greedy(60)));
  const auto good = fleet->add(request_of({1, 2}, harmless(150)));
  const Seen seen = read(*deadly);
  EXPECT_EQ(seen.code, ErrorCode::kInternal);
  EXPECT_NE(seen.error, "");
  const Ids output = greedy_tokens(prompt, 60);
  const Ids shown = seen.completions.at(0).token_ids;
  EXPECT_LE(shown.size(), deadly_at + 1);
  EXPECT_EQ(shown, Ids(output.begin(), output.begin() + std::ssize(shown)));
  EXPECT_EQ(read(*good).num_tokens(), 150u);
  EXPECT_LE(fleet->status().num_restarts, 6);
}

TEST(FleetHeals, KillsAWorkerThatGivesNoSign) {
  const auto timeout = test::full_or_reduced(500ms, 3000ms);
  const auto fleet = make_fleet({.worker_timeout = timeout}, fake_workers({"--step-us", "2000"}));
  fleet->wait_ready();
  std::this_thread::sleep_for(timeout + 200ms);  // who has nothing to do need not say so
  const auto stream = fleet->add(request_of({1, 2, 3}, greedy(100)));
  Seen seen;
  read_until(*stream, seen, [](const Seen& s) { return s.num_tokens() > 5; });
  EXPECT_EQ(fleet->status().num_restarts, 0);
  EXPECT_EQ(signal_workers(SIGSTOP), 1);
  seen = read(*stream, seen);
  EXPECT_EQ(seen.error, "");
  EXPECT_EQ(seen.completions.at(0).token_ids, greedy_tokens({1, 2, 3}, 100));
  EXPECT_EQ(fleet->status().num_restarts, 1);
}

// As one does that computes long prompts on a slow CPU.
TEST(FleetHeals, LetsAStepTakeLongerThanItWaitsAsLongAsItGetsOn) {
  const auto timeout = test::full_or_reduced(500ms, 2000ms);
  const std::string step_us = std::to_string(std::chrono::microseconds(3 * timeout).count());
  const auto fleet = make_fleet({.worker_timeout = timeout},
                                fake_workers({"--step-us", step_us, "--pieces-of-step", "30"}));
  const auto start = std::chrono::steady_clock::now();
  const Seen seen = read(*fleet->add(request_of({1, 2, 3}, greedy(2))));
  EXPECT_GT(std::chrono::steady_clock::now() - start, 5 * timeout);
  EXPECT_EQ(seen.error, "");
  EXPECT_EQ(seen.completions.at(0).token_ids, greedy_tokens({1, 2, 3}, 2));
  EXPECT_EQ(fleet->status().num_restarts, 0);
}

TEST(FleetHeals, KillsAWorkerWhoseStepStandsStill) {
  const auto fleet =
      make_fleet({.worker_timeout = 500ms}, fake_workers({"--step-us", "600000000"}));
  const Seen seen = read(*fleet->add(request_of({1, 2, 3}, greedy(2))));
  EXPECT_EQ(seen.error,
            "The request was given up because workers end when they run it. Worker 0 made no "
            "progress for 0.5 s.");
  EXPECT_GE(fleet->status().num_restarts, 2);
}

// Whether the worker's thread of this name has something to do now.
bool is_running(pid_t worker, const std::string& thread) {
  for (const auto& task :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", worker))) {
    std::ifstream file(task.path() / "stat");
    std::string id, name, state;
    if (file >> id >> name >> state && name == "(" + thread + ")") return state == "R";
  }
  return false;
}

TEST(FleetHeals, AnswersWhereItsWorkerIsKilledWhileAGrammarIsCompiled) {
  const auto fleet = make_fleet({}, worker_starter({"model", kDemoModel}, kWorkerDriver));
  fleet->wait_ready();
  // One that was compiled before it could be seen, as a busy machine may have it, says nothing.
  for (char first = 'a'; first <= 'z' && fleet->status().num_restarts == 0; ++first) {
    AddRequest request = request_of({5, 9, 12, 40, 7}, greedy(5));
    request.params.structured_outputs.emplace().regex = slow_regex(first);
    const auto stream = add_when_ready(*fleet, request);
    const pid_t worker = worker_pids().at(0);
    while (!wait_for_events(*stream, 1ms)) {
      if (!is_running(worker, "grammars")) continue;
      ::kill(worker, SIGKILL);
      break;
    }
    const Seen seen = read(*stream);
    EXPECT_EQ(seen.error, "");
    ASSERT_GT(seen.num_tokens(), 0u);
    EXPECT_EQ(seen.completions.at(0).text[0], first);
    EXPECT_EQ(seen, read(*add_when_ready(*fleet, request)));
  }
  EXPECT_EQ(fleet->status().num_restarts, 1);
}

TEST(FleetHeals, HearsOfProgressWhileAnEngineLoads) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<uint64_t> counts;  // told before it was ready
  bool ready = false;
  const auto client = fake_workers({"--pieces-of-load", "25"})(
      {}, {.on_ready =
               [&](const EngineHello&) {
                 const std::lock_guard lock(mutex);
                 ready = true;
                 changed.notify_all();
               },
           .on_events = [](const std::vector<EngineEvent>&) {},
           .on_progress =
               [&](EngineProgress progress) {
                 const std::lock_guard lock(mutex);
                 if (!ready) counts.push_back(progress.count);
               },
           .on_death = [](ErrorCode, const std::string& error) { ADD_FAILURE() << error; }});
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, 60s, [&] { return ready; }));
  EXPECT_GE(counts.size(), 2u);
  EXPECT_TRUE(std::ranges::adjacent_find(counts, std::greater_equal()) ==
              counts.end());  // none is told twice
}

// Every worker's device fails at its 30th step: each brings the streams some way.
TEST(FleetHeals, GoesOnWithAnotherWorkerWhereTheDeviceFails) {
  std::mutex mutex;
  std::string first;
  const auto fleet = make_fleet({}, fake_workers({"--fail-at-step", "30"}),
                                {.on_message = [&](const std::string& sentence) {
                                  const std::lock_guard lock(mutex);
                                  if (first.empty()) first = sentence;
                                }});
  const auto one = fleet->add(request_of({1, 2, 3}, greedy(100)));
  const auto two = fleet->add(request_of({4, 5, 6}, greedy(100)));
  EXPECT_EQ(read(*one).completions.at(0).token_ids, greedy_tokens({1, 2, 3}, 100));
  EXPECT_EQ(read(*two).completions.at(0).token_ids, greedy_tokens({4, 5, 6}, 100));
  EXPECT_GE(fleet->status().num_restarts, 3);
  const std::lock_guard lock(mutex);
  EXPECT_EQ(first, "The device is on fire. It is started again; 2 requests on it will go on.");
}

// The one that is killed never comes back.
TEST(FleetHeals, MovesRequestsToAnotherEngine) {
  std::map<int, EngineClient*> clients;
  std::atomic<bool> is_loaded = false;  // engine 0
  const auto load = [&](const EngineStart& start) {
    if (start.index == 0 && is_loaded.exchange(true)) {
      throw_error(ErrorCode::kInternal, "The GPU fell off.");
    }
    FakeEngine engine = make_fake_engine();
    engine.runner->step_time = 2ms;
    return LLMEngine(std::move(engine.core));
  };
  const auto starter = [&, threads = thread_starter(load)](const EngineStart& start,
                                                           EngineListener listener) {
    auto client = threads(start, std::move(listener));
    clients.emplace(start.index, client.get());
    return client;
  };
  const auto fleet = make_fleet({.num_engines = 2}, starter);
  while (fleet->status().num_ready < 2) std::this_thread::sleep_for(1ms);
  std::vector<std::shared_ptr<RequestStream>> streams;
  for (int i = 0; i < 8; ++i) streams.push_back(fleet->add(request_of({i, 2, 3}, greedy(60))));
  Seen first;
  read_until(*streams[0], first, [](const Seen& s) { return s.num_tokens() > 5; });
  clients.at(0)->kill();
  for (int i = 0; i < 8; ++i) {
    const Seen seen = read(*streams[static_cast<size_t>(i)], i == 0 ? first : Seen());
    EXPECT_EQ(seen.completions.at(0).token_ids, greedy_tokens({i, 2, 3}, 60));
  }
  EXPECT_EQ(fleet->status().num_ready, 1);
  EXPECT_GE(fleet->status().num_restarts, 1);
}

TEST(FleetHeals, WaitsLongerAndLongerForWhatKeepsAWorkerFromLoading) {
  std::mutex mutex;
  std::vector<std::chrono::steady_clock::time_point> starts;
  std::vector<int> blocks;
  bool may_load = false;
  EngineClient* first = nullptr;
  const auto load = [&](const EngineStart& start) {
    const std::lock_guard lock(mutex);
    starts.push_back(std::chrono::steady_clock::now());
    blocks.push_back(start.num_kvcache_blocks);
    if (starts.size() > 1 && (starts.size() < 6 || !may_load)) {
      throw_error(ErrorCode::kOutOfMemory, "The last one's memory is not free yet.");
    }
    FakeEngine engine = make_fake_engine({.num_blocks = 77});
    engine.runner->step_time = 1ms;
    return LLMEngine(std::move(engine.core));
  };
  const auto starter = [&, threads = thread_starter(load)](const EngineStart& start,
                                                           EngineListener listener) {
    auto client = threads(start, std::move(listener));
    if (first == nullptr) first = client.get();
    return client;
  };
  const auto fleet = make_fleet({}, starter);
  EXPECT_EQ(fleet->wait_ready().info.num_kvcache_blocks, 77);
  const auto since = fleet->status().since;
  const auto stream = fleet->add(request_of({1, 2, 3}, greedy(50)));
  Seen seen;
  read_until(*stream, seen, [](const Seen& s) { return s.num_tokens() > 5; });
  first->kill();
  while (fleet->status().why != "The last one's memory is not free yet.") {
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(fleet->status().num_ready, 0);
  EXPECT_GT(fleet->status().since, since);
  try {
    fleet->add(request_of({1}, greedy(1)));
    ADD_FAILURE() << "it is taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_STREQ(error.what(),
                 "No worker is ready; try again later. The last one's memory is not free yet.");
  }
  {
    const std::lock_guard lock(mutex);
    may_load = true;
  }
  EXPECT_EQ(read(*stream, seen).completions.at(0).token_ids, greedy_tokens({1, 2, 3}, 50));
  EXPECT_EQ(fleet->status().num_ready, 1);
  const std::lock_guard lock(mutex);
  ASSERT_GE(starts.size(), 6u);
  EXPECT_EQ(fleet->status().num_restarts, std::ssize(starts) - 1);
  EXPECT_EQ(blocks[0], -1);
  for (size_t i = 1; i < 6; ++i) EXPECT_EQ(blocks[i], i <= 3 ? 77 : -1);
  for (size_t i = 2; i < 6; ++i) EXPECT_GE(starts[i] - starts[i - 1], 100ms * (1 << (i - 2)));
}

}  // namespace
}  // namespace nanovllm::server
