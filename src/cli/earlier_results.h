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
  // Whether the answer may be one to this request. The tokens are not known of all.
  bool may_answer(int64_t index, const std::optional<std::string>& custom_id,
                  std::optional<size_t> num_prompt_tokens) const;
  // Takes out of the file what is no answer: the torn line, and what a Ctrl-C cut short. Whoever
  // is killed meanwhile leaves the file as it was. `lock` is the file's, whichever it is then.
  // Throws Error(kIo).
  void tidy(OutputLock& lock) const;

 private:
  struct Answer {
    size_t custom_id = 0;  // its hash; 0 = none
    std::optional<uint32_t> num_prompt_tokens = {};
  };

  bool add(const nlohmann::json& result);

  const std::string path_;
  std::unordered_map<int64_t, Answer> answered_;  // by index
  int64_t num_failed_ = 0;
  int64_t last_index_ = -1;
  std::vector<bool> kept_;  // which of the file's lines are answers
};

}  // namespace nanovllm::cli
