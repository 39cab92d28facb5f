// What the soak knows of the requests it has added, and what must hold of every output.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "soak_workload.h"

namespace nanovllm {

// A finding: the sentence that the soak ends with.
struct SoakFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct SoakEntry {
  SoakRequest request;
  // What it gave the first time, where this is a repetition that must give the same.
  std::shared_ptr<const RequestOutput> expected;
  int64_t added_at = 0;       // step
  int64_t scheduled_at = -1;  // last step that computed some of it; -1 = none yet
  bool aborted = false;
  bool shown = false;
  RequestOutput total;              // all outputs so far, put together
  std::vector<size_t> num_checked;  // tokens of each completion
};

// Every method throws SoakFailure when something does not hold.
class SoakLedger {
 public:
  explicit SoakLedger(const SoakLimits& limits) : limits_(limits) {}

  void add(uint64_t id, SoakEntry entry);
  // Its last output must come with the next step.
  void abort(uint64_t id);
  // Takes what the step of this number gave. Returns those that ended.
  std::vector<SoakEntry> receive(int64_t step, std::vector<RequestOutput> outputs);
  void note_schedule(int64_t step, const std::vector<ScheduledRequest>& scheduled);

  const std::map<uint64_t, SoakEntry>& live() const { return live_; }  // by arrival
  int64_t longest_at_head() const { return longest_at_head_; }         // steps

 private:
  void take(SoakEntry& entry, RequestOutput output) const;
  void merge(SoakEntry& entry, RequestOutput output) const;
  void check(SoakEntry& entry) const;
  void check_prompt_logprobs(const SoakEntry& entry) const;
  void check_repeated(const SoakEntry& entry) const;
  void check_tokens(SoakEntry& entry, const CompletionOutput& completion) const;
  void check_length(const SoakEntry& entry, const CompletionOutput& completion) const;
  void check_end(const SoakEntry& entry, const CompletionOutput& completion) const;
  void check_logprobs(const PositionLogprobs& logprobs, int count, int32_t chosen) const;
  void check_patience(int64_t step);

  const SoakLimits limits_;
  std::map<uint64_t, SoakEntry> live_;
  uint64_t head_ = 0;  // the oldest live request
  int64_t head_since_ = 0;
  int64_t longest_at_head_ = 0;
};

}  // namespace nanovllm
