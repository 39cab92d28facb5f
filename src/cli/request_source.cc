#include "cli/request_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/message.h"

namespace nanovllm::cli {
namespace {

constexpr const char* kChangedInput =
    "give the input that the earlier run had, or another --output for this one";

}  // namespace

RequestSource::RequestSource(const std::vector<std::string>& prompts, const std::string& input,
                             const EarlierResults& earlier, const SamplingParams& defaults)
    : prompts_(prompts), input_(input), earlier_(earlier), defaults_(defaults) {
  if (input.empty()) return;
  lines_.emplace(input);
  num_lines_ = lines_->count();
  if (num_lines_) check_count(*num_lines_);
}

void RequestSource::check_count(int64_t num_requests) const {
  if (earlier_.last_index() < num_requests) return;
  throw_error(ErrorCode::kIo, "cannot resume: {} has {}, and the results are of {} or more; {}",
              input_name(), counted(num_requests, "request"), earlier_.last_index() + 1,
              kChangedInput);
}

std::string RequestSource::input_name() const { return input_ == "-" ? "standard input" : input_; }

std::optional<RequestLine> RequestSource::next_prompt() {
  at_end_ = index_ + 1 >= static_cast<int64_t>(prompts_.size());
  if (at_end_) return {};
  return RequestLine{prompts_[static_cast<size_t>(++index_)], defaults_};
}

std::optional<RequestLine> RequestSource::next(bool wait) {
  if (!lines_) return next_prompt();
  using Next = InputLines::Next;
  std::string line;
  Next state;
  while ((state = lines_->next(line, wait)) == Next::kLine || state == Next::kTooLong) {
    ++line_number_;
    const bool blank = line.find_first_not_of(InputLines::kBlanks) == std::string::npos;
    if (state == Next::kLine && blank) continue;
    ++index_;
    custom_id_.reset();
    if (state == Next::kTooLong) {
      throw_error(ErrorCode::kInvalidArgument, "the line is longer than {} MiB",
                  InputLines::kMaxLineBytes >> 20);
    }
    return parse(line);
  }
  at_end_ = state == Next::kEnd;
  if (at_end_) check_count(index_ + 1);
  return {};
}

RequestLine RequestSource::parse(const std::string& line) {
  try {
    RequestLine request = parse_request_line(line, defaults_, line_number_);
    custom_id_ = request.custom_id;
    return request;
  } catch (const Error&) {
    custom_id_ = custom_id_of(line);
    throw;
  }
}

std::string RequestSource::place() const {
  if (!lines_) return fmt::format("prompt {}", index_ + 1);
  return fmt::format("{}:{}", input_name(), line_number_);
}

int64_t RequestSource::total() const {
  return lines_ ? std::max<int64_t>(0, num_lines_.value_or(0) - earlier_.size())
                : static_cast<int64_t>(prompts_.size());
}

void RequestSource::check_answered() const {
  if (earlier_.may_answer(index_, custom_id_)) return;
  throw_error(ErrorCode::kIo, "cannot resume: {} is not the request that the result {} answers; {}",
              place(), index_, kChangedInput);
}

}  // namespace nanovllm::cli
