// A Chrome/Perfetto trace of a run (JSON array format): steps and what they batched, block usage,
// and each request's life as one track.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "engine/request.h"

namespace nanovllm {

// The file is valid JSON whenever nothing is being written: each flush writes over the closing
// bracket of the one before, so what a killed process leaves can still be opened.
class TraceWriter {
 public:
  // Throws Error(kIo) when the file can't be created.
  explicit TraceWriter(std::string path);
  // finish(), but prints what that would throw.
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Ends the completion's phase and begins the next one; kNone ends its life.
  void enter_phase(Completion& completion, Phase phase) noexcept;
  void add_step(Clock::time_point begin, Clock::time_point end, const StepStats& stats,
                std::span<const ScheduledRequest> scheduled) noexcept;

  // Writes what is left. Throws Error(kIo), once, when something could not be written, be it for
  // lack of memory.
  void finish();

 private:
  template <typename Append>
  void write(const Append& append) noexcept;
  void append_phase(const Completion& completion, Phase last, Phase phase);
  void append_step(Clock::time_point begin, Clock::time_point end, const StepStats& stats,
                   std::span<const ScheduledRequest> scheduled);
  int64_t microseconds(Clock::time_point time) const;
  void begin_event();
  void flush();
  void fail(int error) noexcept;

  const std::string path_;
  int file_ = -1;
  int64_t end_ = 0;     // bytes in the file before its closing bracket
  std::string buffer_;  // events not written yet
  bool first_ = true;
  int error_ = 0;  // errno's, to be told in the end; nothing is written after it
  bool finished_ = false;
  const Clock::time_point begin_ = Clock::now();
};

}  // namespace nanovllm
