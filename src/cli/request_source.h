// Where the requests of `nanovllm generate` come from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/json.h"
#include "cli/earlier_results.h"
#include "cli/numbered_lines.h"

namespace nanovllm::cli {

// Texts of the command line, or the lines of a file that are read only as far as the engine can use
// them.
class RequestSource {
 public:
  // `input` is a file of request lines, "-" for standard input; where it is empty, `prompts` are
  // the requests. All of them and `defaults`, which may still change until the first next(), are
  // kept by reference. Throws Error(kIo) when the file can't be opened, or is not the one whose
  // requests `earlier` answers.
  RequestSource(const std::vector<std::string>& prompts, const std::string& input,
                const EarlierResults& earlier, const SamplingParams& defaults);

  // The next request, or nothing where there is none yet; it waits a moment for one if `wait`.
  // Throws Error for a line that is no request, or too long for one; the next call goes on. Throws
  // Error(kIo) at an end that comes before a request that `earlier` answers.
  std::optional<RequestLine> next(bool wait);
  // Whether an earlier run answered the request that next() gave or refused.
  bool is_answered() const { return lines_ && lines_->is_answered(); }
  // Throws Error(kIo) where that run must have had another input.
  void check_answered() const { lines_->check_answered(custom_id_); }
  bool at_end() const;

  // Of the request that next() gave or refused.
  int64_t index() const { return lines_ ? lines_->index() : index_; }
  const std::optional<std::string>& custom_id() const { return custom_id_; }
  std::string place() const;  // its, for messages
  int64_t total() const;      // without those that are answered; 0 = unknown
  std::string nothing_to_do() const;

 private:
  RequestLine parse(const std::string& line);

  const std::vector<std::string>& prompts_;
  const SamplingParams& defaults_;
  std::optional<NumberedLines> lines_;
  int64_t index_ = -1;  // of a prompt
  std::optional<std::string> custom_id_;
};

}  // namespace nanovllm::cli
