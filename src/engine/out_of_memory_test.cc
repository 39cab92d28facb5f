// What the engine is after an allocation that failed, whichever it was: this program's operator new
// fails when it is told to.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/engine_test_support.h"

namespace {

constexpr int64_t kNever = -1;
thread_local int64_t allocations_to_failure = kNever;

}  // namespace

// Not inlined: GCC would take free() for the wrong counterpart of new.
[[gnu::noinline]] void* operator new(size_t size) {
  if (allocations_to_failure >= 0 && allocations_to_failure-- == 0) throw std::bad_alloc();
  void* const memory = std::malloc(size > 0 ? size : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace nanovllm {
namespace {

// One allocation of all that are made in run() fails: the one behind so many others.
class Scarcity {
 public:
  explicit Scarcity(int64_t num_allocations) : left_(num_allocations) {}

  template <typename Function>
  void run(const Function& function) {
    allocations_to_failure = left_;
    try {
      function();
    } catch (...) {
      left_ = std::exchange(allocations_to_failure, kNever);
      throw;
    }
    left_ = std::exchange(allocations_to_failure, kNever);
  }
  bool has_failed() const { return left_ == kNever; }

 private:
  int64_t left_;
};

TEST(TraceOutOfMemory, EndsAloneAndStaysValid) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("nanovllm_scarcity_" + std::to_string(::getpid()) + ".json");
  bool has_failed = true;
  for (int64_t n = 0; has_failed; ++n) {
    TraceWriter trace(path.string());
    Scarcity scarcity(n);
    scarcity.run([&] {
      for (int i = 0; i < 1000; ++i) {
        const Phase from = i % 2 == 0 ? Phase::kNone : Phase::kDecode;
        const Phase to = i % 2 == 0 ? Phase::kDecode : Phase::kNone;
        trace.on_phase(0, 0, from, to, Clock::now());
      }
    });
    has_failed = scarcity.has_failed();
    if (has_failed) {
      EXPECT_THROW(trace.finish(), Error);
    } else {
      trace.finish();
    }
    std::ifstream file(path);
    EXPECT_EQ(nlohmann::json::parse(file).size() > 2000, !has_failed);
  }
  std::filesystem::remove(path);
}

// What users have of a run: the completions of four requests, one of which is aborted on its way;
// a fifth is discarded.
class ScarceRun {
 public:
  ScarceRun(int depth, StatePoolSize states, Scarcity& scarcity)
      : engine_(make_fake_engine({.num_blocks = 12,
                                  .max_num_batched_tokens = 8,
                                  .pipeline_depth = depth,
                                  .eos_token_ids = {7},
                                  .states = states},
                                 words())),
        scarcity_(scarcity) {
    SamplingParams delta = greedy(6), three = random(5, 3), last_only = random(6, 9);
    delta.logprobs = 1;
    delta.output_kind = RequestOutputKind::kDelta;
    three.n = 3;
    three.stop = {"w1w2w3"};
    last_only.prompt_logprobs = 1;
    last_only.output_kind = RequestOutputKind::kFinalOnly;
    last_only.ignore_eos = false;
    add(10, delta);
    add(5, three);
    add(9, last_only);
    add(6, greedy(40));
    add(7, greedy(40));
    for (int i = 0; i < 300 && !engine_.core->is_finished(); ++i) {
      attempt([&] { receive(engine_.core->step()); });
      if (i == 3) scarcity_.run([&] { engine_.core->abort_request(kAborted); });
      if (i == 4) scarcity_.run([&] { engine_.core->discard_request(kDiscarded); });
      EXPECT_EQ(engine_.core->check_integrity(), "");
    }
    EXPECT_TRUE(engine_.core->is_finished());
    EXPECT_EQ(completions.size(), 6u);
  }

  static constexpr uint64_t kAborted = 3, kDiscarded = 4;
  std::map<std::pair<uint64_t, int>, CompletionOutput> completions;
  int num_errors = 0;

 private:
  template <typename Function>
  bool attempt(const Function& function) {
    try {
      scarcity_.run(function);
      return true;
    } catch (const std::bad_alloc&) {
      ++num_errors;
      return false;
    }
  }

  void add(int length, const SamplingParams& params) {
    const auto add_once = [&] { engine_.core->add_request(prompt_of(length, 2 * length), params); };
    if (!attempt(add_once)) add_once();
  }

  // The caller is out of the engine and has memory.
  void receive(std::vector<RequestOutput> outputs) {
    const int64_t left = std::exchange(allocations_to_failure, kNever);
    for (RequestOutput& output : outputs) {
      for (CompletionOutput& part : output.outputs) {
        CompletionOutput& whole = completions[{output.request_id, part.index}];
        if (output.request_id == 0) {
          part.text = whole.text + part.text;
          part.token_ids.insert(part.token_ids.begin(), whole.token_ids.begin(),
                                whole.token_ids.end());
          part.logprobs.insert(part.logprobs.begin(), whole.logprobs.begin(), whole.logprobs.end());
        }
        whole = std::move(part);
      }
    }
    allocations_to_failure = left;
  }

  FakeEngine engine_;
  Scarcity& scarcity_;
};

class OutOfMemory : public ::testing::TestWithParam<std::tuple<int, StatePoolSize>> {};
INSTANTIATE_TEST_SUITE_P(
    DepthAndStates, OutOfMemory,
    ::testing::Combine(::testing::Values(0, 1),
                       ::testing::Values(StatePoolSize{},
                                         StatePoolSize{
                                             .num_slots = 10, .num_logs = 3, .chunk = 2})),
    [](const auto& test) {
      return std::string(std::get<1>(test.param).num_slots > 0 ? "States" : "NoStates") +
             std::to_string(std::get<0>(test.param));
    });

TEST_P(OutOfMemory, CostsAtMostTheRequestThatFoundNone) {
  Scarcity none(1 << 30);
  const auto [depth, states] = GetParam();
  const auto expected = ScarceRun(depth, states, none).completions;
  bool has_failed = true;
  int64_t n = 0;
  for (; has_failed && !HasFailure(); ++n) {
    SCOPED_TRACE("allocation " + std::to_string(n));
    Scarcity scarcity(n);
    const ScarceRun run(depth, states, scarcity);
    has_failed = scarcity.has_failed();
    EXPECT_LE(run.num_errors, has_failed ? 1 : 0);
    std::set<uint64_t> victims;
    for (const auto& [key, whole] : expected) {
      const CompletionOutput& got = run.completions.at(key);
      if (key.first == ScarceRun::kAborted) continue;
      if (got.finish_reason == FinishReason::kAbort) {
        victims.insert(key.first);
      } else {
        EXPECT_EQ(got.token_ids, whole.token_ids);
        EXPECT_EQ(got.text, whole.text);
        EXPECT_EQ(got.logprobs.size(), whole.logprobs.size());
        EXPECT_EQ(got.finish_reason, whole.finish_reason);
      }
    }
    EXPECT_LE(victims.size(), static_cast<size_t>(run.num_errors));
  }
  EXPECT_GT(n, 400);
}

}  // namespace
}  // namespace nanovllm
