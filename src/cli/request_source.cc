#include "cli/request_source.h"

#include <fmt/format.h>

#include "base/check.h"

namespace nanovllm::cli {

RequestSource::RequestSource(const std::vector<std::string>& prompts, const std::string& input,
                             const EarlierResults& earlier, const SamplingParams& defaults)
    : prompts_(prompts), defaults_(defaults) {
  if (input.empty()) return;
  NumberedLines::check_all(input, earlier, custom_id_of);
  lines_.emplace(input, earlier);
}

std::optional<RequestLine> RequestSource::next(bool wait) {
  custom_id_.reset();
  if (lines_) {
    const auto line = lines_->next(wait);
    return line ? std::optional(parse(*line)) : std::nullopt;
  }
  if (++index_ == std::ssize(prompts_)) return {};
  return RequestLine{prompts_[static_cast<size_t>(index_)], defaults_};
}

bool RequestSource::at_end() const {
  return lines_ ? lines_->at_end() : index_ >= std::ssize(prompts_);
}

RequestLine RequestSource::parse(const std::string& line) {
  try {
    RequestLine request = parse_request_line(line, defaults_, lines_->line_number());
    custom_id_ = request.custom_id;
    return request;
  } catch (const Error&) {
    custom_id_ = custom_id_of(line);
    throw;
  }
}

std::string RequestSource::place() const {
  return lines_ ? lines_->place() : fmt::format("prompt {}", index_ + 1);
}

std::string RequestSource::nothing_to_do() const { return lines_ ? lines_->nothing_to_do() : ""; }

int64_t RequestSource::total() const { return lines_ ? lines_->total() : std::ssize(prompts_); }

}  // namespace nanovllm::cli
