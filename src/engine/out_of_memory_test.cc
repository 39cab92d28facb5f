// What the engine is after an allocation that failed, whichever it was: this program's operator new
// fails when it is told to.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

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

TEST(OutOfMemory, EndsTheTraceAndNotTheRequests) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("nanovllm_scarcity_" + std::to_string(::getpid()) + ".json");
  bool has_failed = true;
  for (int64_t n = 0; has_failed; ++n) {
    const RequestContext context{};
    Request request(0, "", prompt_of(3), greedy(1), context);
    TraceWriter trace(path.string());
    Scarcity scarcity(n);
    scarcity.run([&] {
      for (int i = 0; i < 1000; ++i) {
        trace.enter_phase(*request.completions()[0], i % 2 == 0 ? Phase::kDecode : Phase::kNone);
      }
    });
    has_failed = scarcity.has_failed();
    EXPECT_EQ(request.completions()[0]->phase, Phase::kNone);
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

}  // namespace
}  // namespace nanovllm
