#include "cli/numbered_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/message.h"

namespace nanovllm::cli {
namespace {

constexpr const char* kChangedInput =
    "give the input that the earlier run had, or another output for this one";

}  // namespace

NumberedLines::NumberedLines(std::string input, const EarlierResults& earlier)
    : input_(std::move(input)), earlier_(earlier), lines_(input_), num_lines_(lines_.count()) {
  if (num_lines_) check_count(*num_lines_);
}

void NumberedLines::check_count(int64_t num_requests) const {
  if (earlier_.last_index() < num_requests) return;
  throw_error(ErrorCode::kIo, "cannot resume: {} has {}, and the results are of {} or more; {}",
              name(), counted(num_requests, "request"), earlier_.last_index() + 1, kChangedInput);
}

std::string NumberedLines::name() const { return input_ == "-" ? "standard input" : input_; }

std::optional<std::string> NumberedLines::next(bool wait) {
  using Next = InputLines::Next;
  std::string line;
  Next state;
  while ((state = lines_.next(line, wait)) == Next::kLine || state == Next::kTooLong) {
    ++line_number_;
    const bool blank = line.find_first_not_of(InputLines::kBlanks) == std::string::npos;
    if (state == Next::kLine && blank) continue;
    ++index_;
    if (state == Next::kTooLong) {
      throw_error(ErrorCode::kInvalidArgument, "the line is longer than {} MiB",
                  InputLines::kMaxLineBytes >> 20);
    }
    return line;
  }
  at_end_ = state == Next::kEnd;
  if (at_end_) check_count(index_ + 1);
  return {};
}

std::string NumberedLines::place() const { return fmt::format("{}:{}", name(), line_number_); }

void NumberedLines::check_all(const std::string& input, const EarlierResults& earlier,
                              CustomIdReader custom_id_of) {
  std::error_code ignored;
  if (input == "-" || !std::filesystem::is_regular_file(input, ignored)) return;
  NumberedLines lines(input, earlier);
  while (!lines.at_end() && lines.index() < earlier.last_index()) {
    std::optional<std::string> custom_id;
    try {
      const auto line = lines.next(/*wait=*/true);
      if (!line) continue;
      custom_id = custom_id_of(*line);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kIo) throw;
    }
    if (lines.is_answered()) lines.check_answered(custom_id);
  }
}

std::string NumberedLines::nothing_to_do() const {
  return index_ < 0 ? fmt::format("nothing to do: {} has no requests", name())
                    : fmt::format("nothing to do: all requests of {} are answered", name());
}

int64_t NumberedLines::total() const {
  return std::max<int64_t>(0, num_lines_.value_or(0) - earlier_.size());
}

void NumberedLines::check_answered(const std::optional<std::string>& custom_id) const {
  if (earlier_.may_answer(index_, custom_id)) return;
  throw_error(ErrorCode::kIo, "cannot resume: {} is not the request that the result {} answers; {}",
              place(), index_, kChangedInput);
}

}  // namespace nanovllm::cli
