// Interface for code that watches an engine: TraceWriter, and tests.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

#include "nanovllm/llm_engine.h"

namespace nanovllm {

using Clock = std::chrono::steady_clock;

// Where a completion is in its life. kNone: not yet added, or ended.
enum class Phase { kNone, kQueued, kPrefill, kDecode, kPreempted };

// Called on the engine's thread, which waits for it, in chronological order.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void on_phase(uint64_t request_id, int index, Phase from, Phase to,
                        Clock::time_point now) noexcept = 0;
  // A step was collected; `stats` and `scheduled` are LLMEngine's last_step() and last_schedule().
  virtual void on_step(Clock::time_point begin, Clock::time_point end, const StepStats& stats,
                       std::span<const ScheduledRequest> scheduled) noexcept = 0;
  // Writes what is still buffered, and returns whether that was the end: it wants to hear no more.
  // Throws Error if anything could not be written.
  virtual bool finish() { return false; }
};

}  // namespace nanovllm
