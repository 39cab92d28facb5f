#include "text/decode_steps.h"

#include <algorithm>
#include <utility>

#include "text/byte_alphabet.h"
#include "text/utf8.h"

namespace nanovllm::text {

void AppendStep::part(std::string_view text) {
  if (after_token_ && spaces_) out_.push_back(' ');
  after_token_ = false;
  out_.append(text);
}

void FuseStep::finish() {
  next_.end_token();
  next_.finish();
}

void ByteLevelStep::token(std::string_view text) {
  append_spelled_bytes(bytes_, text);
  flush();
}

void ByteLevelStep::end_token() {
  append_spelled_bytes(bytes_, spelling_);
  spelling_.clear();
  flush();
}

void ByteLevelStep::flush() {
  const size_t valid = find_invalid_utf8(bytes_);
  if (valid == bytes_.size()) {
    next_.part(bytes_);
    bytes_.clear();
    return;
  }
  text_.assign(bytes_, 0, valid);
  size_t done = valid;
  while (done < bytes_.size()) {
    const Utf8Step step = classify_utf8(bytes_.data() + done, bytes_.size() - done);
    if (step.kind == Utf8Kind::kIncomplete) break;
    if (step.kind == Utf8Kind::kValid) {
      text_.append(bytes_, done, static_cast<size_t>(step.length));
    } else {
      text_.append(kReplacement);
    }
    done += static_cast<size_t>(step.length);
  }
  bytes_.erase(0, done);
  if (!text_.empty()) next_.part(text_);
}

void ByteLevelStep::end_prompt() {
  end_token();
  next_.end_prompt();
}

void ByteLevelStep::finish() {
  if (!bytes_.empty()) next_.part(kReplacement);  // flush() leaves one cut-off character at most
  bytes_.clear();
  FuseStep::finish();
}

namespace {

// How many bytes at the end begin a character.
size_t cut_off_bytes(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Step step = classify_utf8(bytes.data(), bytes.size());
    if (step.kind == Utf8Kind::kIncomplete) break;
    bytes.remove_prefix(static_cast<size_t>(step.length));
  }
  return bytes.size();
}

}  // namespace

void ByteFallbackStep::part(std::string_view text) {
  if (!ordinary_ && start_.size() + text.size() <= 6) {
    start_.append(text);
    return;
  }
  if (!ordinary_) {
    ordinary_ = true;
    flush();
    next_.part(start_);
    start_.clear();
  }
  next_.part(text);
}

void ByteFallbackStep::end_token() {
  if (ordinary_) {
    ordinary_ = false;
    next_.end_token();
    return;
  }
  token(start_);
  start_.clear();
}

void ByteFallbackStep::token(std::string_view text) {
  if (const int byte = byte_of(text); byte >= 0) {
    bytes_.push_back(static_cast<char>(byte));
    return;
  }
  flush();
  next_.token(text);
}

void ByteFallbackStep::flush() {
  const bool broken = std::exchange(broken_, false);
  if (bytes_.empty()) return;
  if (!broken && find_invalid_utf8(bytes_) == bytes_.size()) {
    next_.token(bytes_);
  } else {
    for (size_t i = 0; i < bytes_.size(); ++i) next_.token(kReplacement);
  }
  bytes_.clear();
}

// A run of the prompt's ends here, so that it is not shown again with the bytes that follow.
void ByteFallbackStep::end_prompt() {
  if (!start_.empty()) {
    ordinary_ = true;
    next_.part(start_);
    start_.clear();
  }
  const size_t whole = bytes_.size() - cut_off_bytes(bytes_);
  std::string cut_off = bytes_.substr(whole);
  bytes_.resize(whole);
  const bool broken = broken_ || find_invalid_utf8(bytes_) != whole;
  flush();
  broken_ = broken;  // the run goes on, and none of it is text
  bytes_ = std::move(cut_off);
  next_.end_prompt();
}

void ByteFallbackStep::finish() {
  flush();
  next_.finish();
}

void ReplaceLiteralStep::part(std::string_view text) {
  held_.append(text);
  std::string_view rest = held_;
  for (size_t at; (at = rest.find(literal_)) != rest.npos;) {
    if (at > 0) next_.part(rest.substr(0, at));
    next_.part(content_);
    rest.remove_prefix(at + literal_.size());
  }
  size_t keep = std::min(rest.size(), literal_.size() - 1);
  while (keep > 0 && !rest.ends_with(std::string_view(literal_).substr(0, keep))) --keep;
  if (rest.size() > keep) next_.part(rest.substr(0, rest.size() - keep));
  held_.erase(0, held_.size() - keep);
}

void ReplaceLiteralStep::release() {
  if (!held_.empty()) next_.part(held_);
  held_.clear();
}

void ReplaceLiteralStep::end_token() {
  release();
  next_.end_token();
}

void ReplaceLiteralStep::end_prompt() {
  release();
  next_.end_prompt();
}

std::string ReplaceRegexStep::take_replaced() {
  std::vector<Section> sections;
  pattern_.cut(token_, sections);
  std::string replaced;
  for (const Section& section : sections) {
    if (section.is_match) {
      replaced.append(content_);
    } else {
      replaced.append(token_, section.begin, section.end - section.begin);
    }
  }
  token_.clear();
  return replaced;
}

void ReplaceRegexStep::end_prompt() {
  if (!token_.empty()) next_.part(take_replaced());
  next_.end_prompt();
}

void StripStep::part(std::string_view text) {
  while (cut_ < start_ && text.starts_with(content_)) {
    text.remove_prefix(content_.size());
    ++cut_;
  }
  if (text.empty()) return;
  cut_ = start_;
  next_.part(text);
}

void StripStep::end_token() {
  cut_ = 0;
  next_.end_token();
}

void MetaspaceStep::part(std::string_view text) {
  text_.clear();
  for (size_t at; (at = text.find(replacement_)) != text.npos;) {
    text_.append(text.substr(0, at));
    if (!drop_) text_.push_back(' ');
    text.remove_prefix(at + replacement_.size());
  }
  text_.append(text);
  if (!text_.empty()) next_.part(text_);
}

void MetaspaceStep::end_token() {
  drop_ = false;
  next_.end_token();
}

}  // namespace nanovllm::text
