// What an output file of an earlier run of `nanovllm generate` answers.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "cli/output_lock.h"

namespace nanovllm::cli {

// What is no file, or not there, answers nothing.
class EarlierResults {
 public:
  // Throws Error(kIo) where it can't be read, or Error(kCorruptData) where a line but the last one,
  // which a killed run may have torn, is no result.
  explicit EarlierResults(const std::string& path);

  bool answer(int64_t index) const { return answered_.contains(index); }
  int64_t size() const { return static_cast<int64_t>(answered_.size()); }
  // Takes out of the file what is no answer: the torn line, and what a Ctrl-C cut short. Whoever
  // is killed meanwhile leaves the file as it was. `lock` is the file's, whichever it is then.
  // Throws Error(kIo).
  void tidy(OutputLock& lock) const;

 private:
  const std::string path_;
  std::unordered_set<int64_t> answered_;
  std::vector<bool> kept_;  // which of the file's lines are answers
};

}  // namespace nanovllm::cli
