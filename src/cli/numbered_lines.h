// The requests of a file or a pipe as lines with their places.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/earlier_results.h"
#include "cli/input_lines.h"

namespace nanovllm::cli {

// The custom_id of a line, be the rest of it what it may.
using CustomIdReader = std::optional<std::string> (*)(const std::string& line);

// They are read only as far as somebody takes them.
class NumberedLines {
 public:
  // `input` is a file, or "-" for standard input. `earlier` is kept by reference. Throws Error(kIo)
  // when the file can't be opened, or has fewer requests than `earlier` answers.
  NumberedLines(std::string input, const EarlierResults& earlier);

  // The next line with more than blanks, or nothing where there is none yet; it waits a moment for
  // one if `wait`. Throws Error(kInvalidArgument) for a line that is too long; the next call goes
  // on. Throws Error(kIo) at an end that comes before a request that `earlier` answers.
  std::optional<std::string> next(bool wait);
  bool at_end() const { return at_end_; }

  // Of the line that next() gave or refused.
  int64_t index() const { return index_; }              // among those with more than blanks, from 0
  int64_t line_number() const { return line_number_; }  // among all, from 1
  std::string place() const;                            // for messages
  // Whether an earlier run answered it.
  bool is_answered() const { return earlier_.answer(index_); }
  // Throws Error(kIo) where that run must have had another input.
  void check_answered(const std::optional<std::string>& custom_id) const;
  // Does that for all of a file, so that it is told before anything is changed. Lines of a pipe
  // come but once, and are checked when they come.
  static void check_all(const std::string& input, const EarlierResults& earlier,
                        CustomIdReader custom_id_of);

  int64_t total() const;  // without those that are answered; 0 = unknown
  // What a run says that found nothing to answer.
  std::string nothing_to_do() const;

 private:
  void check_count(int64_t num_requests) const;
  std::string name() const;

  const std::string input_;
  const EarlierResults& earlier_;
  InputLines lines_;
  const std::optional<int64_t> num_lines_;  // of a file, that are requests, when it was opened
  bool at_end_ = false;
  int64_t index_ = -1;
  int64_t line_number_ = 0;
};

}  // namespace nanovllm::cli
