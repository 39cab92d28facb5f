// What an output file of an earlier run of `nanovllm generate` answers.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <unordered_map>
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
  int64_t num_failed() const { return num_failed_; }  // of them, refused or aborted by the engine
  int64_t last_index() const { return last_index_; }  // -1 = none
  // Whether the answer may be one to a request with this custom_id. A refusal may be one to any: of
  // a line that can't be read nobody knows it, and the line may have been mended since.
  bool may_answer(int64_t index, const std::optional<std::string>& custom_id) const;
  // Takes out of the file what is no answer: the torn line, and what a Ctrl-C cut short. Whoever
  // is killed meanwhile leaves the file as it was. `lock` is the file's, whichever it is then.
  // Throws Error(kIo).
  void tidy(OutputLock& lock) const;

 private:
  bool add(const nlohmann::json& result);

  const std::string path_;
  // By index, the hash of its custom_id, which is 0 where there is none; nothing of a refusal.
  std::unordered_map<int64_t, std::optional<size_t>> answered_;
  int64_t num_failed_ = 0;
  int64_t last_index_ = -1;
  std::vector<bool> kept_;  // which of the file's lines are answers
};

}  // namespace nanovllm::cli
