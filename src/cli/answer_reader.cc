#include "cli/answer_reader.h"

#include <algorithm>
#include <charconv>

#include "base/check.h"

namespace nanovllm::cli {
namespace {

// More than any server needs for a line, a head or the message of an error.
constexpr size_t kMaxBytes = size_t{1} << 20;

[[noreturn]] void fail_answer() { throw_error(ErrorCode::kIo, "the answer is no HTTP/1.1"); }

template <typename T>
T number_in(std::string_view text, int base) {
  T value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, base);
  if (error != std::errc() || rest != end || value < 0) fail_answer();
  return value;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

std::string lowered(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return lower;
}

}  // namespace

void AnswerReader::read(std::string_view bytes) {
  begun_ = begun_ || !bytes.empty();
  buffer_ += bytes;
  while (step()) {
  }
  buffer_.erase(0, begin_);
  begin_ = 0;
  if (part_ != Part::kDone && buffer_.size() > kMaxBytes) fail_answer();
}

void AnswerReader::read_end() {
  if (part_ == Part::kUntilEnd) part_ = Part::kDone;
  keeps_alive_ = false;
  if (part_ != Part::kDone) throw_error(ErrorCode::kIo, "the answer was cut");
}

// Takes the next piece of what was read; false where it needs more.
bool AnswerReader::step() {
  std::string line;
  switch (part_) {
    case Part::kHead: {
      const size_t end = buffer_.find("\r\n\r\n", begin_);
      if (end == std::string::npos) return false;
      parse_head(std::string_view(buffer_).substr(begin_, end - begin_));
      begin_ = end + 4;
      return true;
    }
    case Part::kChunkSize:
      if (!take_line(line)) return false;
      num_left_ = number_in<int64_t>(trimmed(line.substr(0, line.find(';'))), 16);
      part_ = num_left_ == 0 ? Part::kTrailer : Part::kChunk;
      return true;
    case Part::kChunk:
    case Part::kLength:
    case Part::kUntilEnd:
      return take_body();
    case Part::kChunkEnd:
      if (!take_line(line)) return false;
      if (!line.empty()) fail_answer();
      part_ = Part::kChunkSize;
      return true;
    case Part::kTrailer:
      if (!take_line(line)) return false;
      if (line.empty()) part_ = Part::kDone;
      return true;
    case Part::kDone:
      break;
  }
  return false;
}

bool AnswerReader::take_line(std::string& line) {
  const size_t end = buffer_.find("\r\n", begin_);
  if (end == std::string::npos) return false;
  line.assign(buffer_, begin_, end - begin_);
  begin_ = end + 2;
  return true;
}

bool AnswerReader::take_body() {
  const size_t there = buffer_.size() - begin_;
  const bool bounded = part_ != Part::kUntilEnd;
  const size_t count = bounded ? std::min(there, static_cast<size_t>(num_left_)) : there;
  take(std::string_view(buffer_).substr(begin_, count));
  begin_ += count;
  if (!bounded) return false;
  num_left_ -= static_cast<int64_t>(count);
  if (num_left_ > 0) return false;
  part_ = part_ == Part::kChunk ? Part::kChunkEnd : Part::kDone;
  return true;
}

void AnswerReader::parse_head(std::string_view head) {
  const size_t end = std::min(head.find("\r\n"), head.size());
  const std::string_view first = head.substr(0, end);
  if (!first.starts_with("HTTP/1.") || first.size() < 12) fail_answer();
  status_ = number_in<int>(first.substr(9, 3), 10);
  if (status_ < 200) return;  // the answer proper follows
  keeps_alive_ = !first.starts_with("HTTP/1.0");
  part_ = Part::kUntilEnd;
  for (size_t at = end; at < head.size();) {
    const size_t next = std::min(head.find("\r\n", at + 2), head.size());
    parse_header(head.substr(at + 2, next - at - 2));
    at = next;
  }
  if (status_ == 204 || status_ == 304) part_ = Part::kDone;
  if (part_ == Part::kUntilEnd) keeps_alive_ = false;
}

void AnswerReader::parse_header(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == line.npos) fail_answer();
  const std::string name = lowered(line.substr(0, colon));
  const std::string value = lowered(trimmed(line.substr(colon + 1)));
  if (name == "transfer-encoding" && value == "chunked") {
    part_ = Part::kChunkSize;
  } else if (name == "content-length" && part_ != Part::kChunkSize) {
    num_left_ = number_in<int64_t>(value, 10);
    part_ = num_left_ == 0 ? Part::kDone : Part::kLength;
  } else if (name == "connection") {
    keeps_alive_ = value == "keep-alive" || (keeps_alive_ && value != "close");
  } else if (name == "content-type") {
    is_stream_ = status_ == 200 && value.starts_with("text/event-stream");
  }
}

void AnswerReader::take(std::string_view content) {
  if (!is_stream_) {
    body_.append(content.substr(0, kMaxBytes - std::min(body_.size(), kMaxBytes)));
    return;
  }
  for (size_t end; (end = content.find('\n')) != content.npos; content.remove_prefix(end + 1)) {
    line_ += content.substr(0, end);
    if (line_.starts_with("data:")) on_data_(trimmed(std::string_view(line_).substr(5)));
    line_.clear();
  }
  line_ += content;
  if (line_.size() > kMaxBytes) fail_answer();
}

}  // namespace nanovllm::cli
