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
  // Calls finish() and prints its error.
  ~TraceWriter() override;
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  void on_phase(uint64_t request_id, int index, Phase from, Phase to,
                Clock::time_point now) noexcept override;
  void on_step(Clock::time_point begin, Clock::time_point end, const StepStats& stats,
               std::span<const ScheduledRequest> scheduled) noexcept override;

  // Writes what is still buffered (during the run events are written whenever they are 64 KiB). The
  // first call throws Error(kIo) if anything could not be written, also because memory ran out.
  bool finish() override;

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
  int64_t end_ = 0;     // where the closing bracket is in the file, bytes
  std::string buffer_;  // events not written yet
  bool first_ = true;
  int error_ = 0;  // errno of the first failure; nothing is written after it
  bool finished_ = false;
  const Clock::time_point begin_ = Clock::now();
};

// Throws Error(kInvalidArgument) where the file is one of the model's.
void check_trace_file(const std::string& path, const std::string& model);

}  // namespace nanovllm
