// How much one rendering may use: steps (time), live bytes (memory), nesting (stack) and output.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>

namespace nanovllm::jinja {

// Thrown while lexing, parsing and rendering. Where it happened is known to whoever catches it: the
// interpreter and the parser keep the position of the node in hand.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure(fmt::format(format, std::forward<Args>(args)...));
}

// A real chat of a thousand messages takes about a million steps, and no template needs more than a
// few dozen levels. Every limit is an error of its own that names the limit.
struct Limits {
  int64_t max_steps = 50'000'000;             // evaluated nodes, and one for every 64 bytes handled
  int64_t max_live_bytes = int64_t{1} << 29;  // of strings and containers, the variables included
  int64_t max_output_bytes = int64_t{1} << 26;
  int max_depth = 1000;  // nested evaluations, macros included
};

// Containers within containers: bounds every recursion over data (printing, comparing, freeing).
inline constexpr int kMaxDataDepth = 500;
// Expressions within expressions and blocks within blocks: bounds every recursion over the
// template.
inline constexpr int kMaxExpressionDepth = 200;
inline constexpr int kMaxBlockDepth = 100;
// Parameters of a macro, named arguments of a call: they are searched one by one.
inline constexpr size_t kMaxNamed = 255;
// Bytes of template source.
inline constexpr size_t kMaxTemplateBytes = size_t{4} << 20;

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  void step() { work(64); }
  // To be called before the work is done, so that a refusal costs nothing.
  void work(size_t bytes) {
    steps_ += static_cast<int64_t>(bytes >> 6);
    if (steps_ > limits_.max_steps || bytes > (size_t{1} << 40)) {
      fail("rendering takes more than the {} steps allowed", limits_.max_steps);
    }
  }
  // Says that `bytes` are about to be allocated; nothing is recorded.
  void expect(size_t bytes) const {
    if (bytes > static_cast<size_t>(limits_.max_live_bytes - live_)) {
      fail("rendering needs more than the {} bytes of memory allowed", limits_.max_live_bytes);
    }
  }
  void allocate(size_t bytes) {
    expect(bytes);
    live_ += static_cast<int64_t>(bytes);
  }
  void release(size_t bytes) noexcept { live_ -= static_cast<int64_t>(bytes); }
  void check_output(size_t bytes) const {
    if (bytes > static_cast<size_t>(limits_.max_output_bytes)) {
      fail("the rendered text is longer than the {} bytes allowed", limits_.max_output_bytes);
    }
  }

 private:
  friend class Nesting;
  const Limits limits_;
  int64_t steps_ = 0;
  int64_t live_ = 0;  // bytes
  int depth_ = 0;
};

// One level of nesting for as long as it lives.
class Nesting {
 public:
  explicit Nesting(Budget& budget) : budget_(budget) {
    if (budget.depth_ >= budget.limits_.max_depth) {
      fail("macros, loops or expressions nest deeper than the {} levels allowed",
           budget.limits_.max_depth);
    }
    ++budget.depth_;
  }
  ~Nesting() { --budget_.depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  Budget& budget_;
};

}  // namespace nanovllm::jinja
