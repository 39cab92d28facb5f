// A Chrome/Perfetto trace of a run (JSON array format): steps and what they batched, block usage,
// and each request's life as one track.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/observer.h"

namespace nanovllm {

// The file is valid JSON whenever nothing is being written: each flush writes over the closing
// bracket of the one before, so what a killed process leaves can still be opened.
class TraceWriter : public EngineObserver {
 public:
  // Throws Error(kIo) when the file can't be created.
  explicit TraceWriter(std::string path);
  // finish(), but prints what that would throw.
  ~TraceWriter() override;
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  void on_phase(uint64_t request_id, int index, Phase from, Phase to,
                Clock::time_point now) noexcept override;
  void on_step(Clock::time_point begin, Clock::time_point end, const StepStats& stats,
               std::span<const ScheduledRequest> scheduled) noexcept override;

  // Writes what is left. Throws Error(kIo), once, when something could not be written, be it for
  // lack of memory.
  void finish() override;

 private:
  template <typename Append>
  void write(const Append& append) noexcept;
  void append_phase(const std::string& id, Phase from, Phase to, Clock::time_point now);
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
