// What an output file of an earlier run answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cli/output_lock.h"

namespace nanovllm::cli {

// A line of one, as far as going on behind it goes.
struct EarlierResult {
  int64_t index = 0;  // of the request that it answers, from 0
  std::optional<std::string> custom_id = {};
  // A refusal may be one to any request: of a line that can't be read nobody knows the custom_id,
  // and the line may have been mended since.
  bool is_to_any = false;
  bool has_failed = false;    // refused, or aborted by the engine
  bool is_cut_short = false;  // by a Ctrl-C: it is none
};
// What a command writes of a request.
struct ResultLines {
  // Nothing where a line is no result.
  std::optional<EarlierResult> (*read)(const std::string& line);
  // How all of them begin, each in one of these ways; # stands for digits.
  std::vector<std::string_view> begins;

  // Whether a run that was killed, or had no more room, may have left this of a result: any of it
  // but its newline.
  bool may_be_torn(const std::string& line) const;
};

// What is no file, or not there, answers nothing.
class EarlierResults {
 public:
  // Throws Error(kIo) where it can't be read, or Error(kCorruptData) where a line is no result, nor
  // the last one and torn: then the file is somebody else's.
  EarlierResults(const std::string& path, const ResultLines& lines);

  bool answer(int64_t index) const { return answered_.contains(index); }
  int64_t size() const { return static_cast<int64_t>(answered_.size()); }
  int64_t num_failed() const { return num_failed_; }  // of them, refused or aborted by the engine
  int64_t last_index() const { return last_index_; }  // -1 = none
  // Whether the answer may be one to a request with this custom_id.
  bool may_answer(int64_t index, const std::optional<std::string>& custom_id) const;
  // Takes out of the file what is no answer: the torn line, and what a Ctrl-C cut short. Whoever
  // is killed meanwhile leaves the file as it was. It needs no room on the disk but where something
  // stands between answers. `lock` is the file's, whichever it is then. Throws Error(kIo).
  void tidy(OutputLock& lock) const;

 private:
  bool add(const EarlierResult& result);

  const std::string path_;
  // By index, the hash of its custom_id, which is 0 where there is none; nothing of a refusal.
  std::unordered_map<int64_t, std::optional<size_t>> answered_;
  int64_t num_failed_ = 0;
  int64_t last_index_ = -1;
  std::vector<bool> kept_;      // which of the file's lines are answers
  int64_t num_first_kept_ = 0;  // lines that are, before the first that is none,
  uintmax_t first_kept_ = 0;    // and their bytes
};

}  // namespace nanovllm::cli
