#include "server/transcript/tag_parser.h"

#include <algorithm>
#include <utility>

namespace nanovllm::server {

TagParser::TagParser(const ReasoningFormat* reasoning, const ToolFormat* tools,
                     const TranscriptTags& tags, Begin begin, const ToolTypes* types,
                     bool calls_in_thoughts)
    : reasoning_(reasoning),
      tools_(tools),
      may_call_in_thought_(calls_in_thoughts && tools && reasoning && reasoning->may_call),
      types_(types) {
  const auto tag = [&](std::string_view text) {
    const auto known = tags.ids.find(text);
    return known == tags.ids.end() ? Tag{text} : Tag{text, known->second};
  };
  if (reasoning_) {
    std::ranges::transform(reasoning_->begin_tags, begin_thought_.begin(), tag);
    std::ranges::transform(reasoning_->end_tags, end_thought_.begin(), tag);
    begin_answer_ = tag(reasoning_->begin_answer);
    end_answer_ = tag(reasoning_->end_answer);
    needs_begin_ = reasoning_->needs_begin_tag && begin == Begin::kMayThink;
  }
  if (tools_) {
    open_call_ = tag(tools_->open_tag);
    other_open_ = tag(tools_->other_open);
    close_call_ = tag(tools_->close_tag);
  }
  if (begin == Begin::kContent) {
    begin_content();
  } else {
    mode_ = Mode::kThought;
  }
}

TranscriptDelta TagParser::append(std::string_view text, std::span<const TokenMark> tags) {
  // In small pieces, as some searches look at all that is there and take the least of it.
  constexpr size_t kPiece = 512;  // bytes
  text_.announce(tags);
  for (; !text.empty(); text.remove_prefix(std::min(kPiece, text.size()))) {
    text_.append(text.substr(0, kPiece));
    while (advance()) {
    }
    text_.forget();
  }
  return std::exchange(delta_, {});
}

TranscriptDelta TagParser::finish() {
  if (mode_ == Mode::kCall) {
    hold(scanner_->read(text_.rest()));
    if (scanner_->is_call()) {
      show_call();
      mode_ = Mode::kContent;
    }
  }
  if (mode_ == Mode::kCall || mode_ == Mode::kOpened) show_no_call();
  const std::string_view rest = take(text_.rest().size());
  if (mode_ == Mode::kThought && (has_thought_ || !needs_begin_)) {
    delta_.reasoning += rest;
  } else {
    show(rest);
  }
  end_trial();
  if (num_calls_ == 0 && !has_ended_) delta_.content += blanks_;
  blanks_.clear();
  return std::exchange(delta_, {});
}

bool TagParser::advance() {
  switch (mode_) {
    case Mode::kThought:
      return advance_thought();
    case Mode::kContent:
      return advance_content();
    case Mode::kOpened:
      return advance_opened();
    case Mode::kCall:
      return advance_call();
  }
  return false;
}

bool TagParser::advance_thought() {
  constexpr int kEnd = 3, kOpen = 6;
  const bool may_begin = !has_thought_;
  const Tag none = {};
  const TaggedText::Found found =
      text_.find({may_begin ? begin_thought_[0] : none, may_begin ? begin_thought_[1] : none,
                  may_begin ? begin_thought_[2] : none, end_thought_[0], end_thought_[1],
                  end_thought_[2], may_call_in_thought_ ? open_call_ : none});
  if (!has_thought_) {
    const size_t at = found.before.find_first_not_of(kJsonBlanks);
    const bool is_blank = at == found.before.npos;
    if (needs_begin_) {
      blanks_ += take(std::min(at, found.before.size()));
      if (!is_blank || found.tag >= kEnd) {
        begin_content();
        return true;
      }
      if (found.tag < 0) return false;
      blanks_.clear();
    } else if (!is_blank) {
      delta_.reasoning += take(at);
      has_thought_ = true;
      return true;
    }
  }
  if (has_thought_ || !needs_begin_) delta_.reasoning += take(found.before.size());
  if (found.tag < 0) return false;
  has_thought_ = true;
  if (found.tag < kEnd) {
    take(begin_thought_[static_cast<size_t>(found.tag)].text.size());
  } else if (found.tag < kOpen) {
    take(end_thought_[static_cast<size_t>(found.tag - kEnd)].text.size());
    may_begin_ = true;
    begin_content();
  } else {
    trial_ = Trial::kThought;
    take_open_tag(open_call_);
  }
  return true;
}

void TagParser::begin_content() {
  mode_ = Mode::kContent;
  if (tools_ && tools_->begins_answer) {
    delta_.content += std::exchange(blanks_, {});
    trial_ = Trial::kAnswer;
    begin_call(false);
  }
}

bool TagParser::advance_content() {
  enum { kOpen, kOther, kClose, kEndThought, kNext, kEndBrackets, kBeginAnswer, kEndAnswer };
  const bool is_pythonic = tools_ && tools_->syntax.form == CallForm::kPythonic;
  const Tag none = {};
  const TaggedText::Found found =
      text_.find({open_call_, other_open_, may_close_ ? close_call_ : none, end_tag_on_trial(),
                  may_follow_ && !is_pythonic ? Tag{"{"} : none, in_brackets_ ? Tag{"]"} : none,
                  may_begin_ ? begin_answer_ : none, has_begun_ ? end_answer_ : none});
  if (may_follow_ && trial_ != Trial::kAnswer) {
    const size_t at = found.before.find_first_not_of(separators());
    if (at != found.before.npos) {
      show(take(at));
      if (is_pythonic) {
        begin_call(false);
        return true;
      }
      may_follow_ = in_brackets_ = false;
      return true;
    }
  }
  show(take(found.before.size()));
  switch (found.tag) {
    case kOpen:
    case kOther:
      if (trial_ == Trial::kAnswer) end_trial();
      take_open_tag(found.tag == kOther ? other_open_ : open_call_);
      return true;
    case kClose:
      take(close_call_.text.size());
      may_close_ = may_follow_ = false;
      blanks_.clear();
      return true;
    case kEndThought:
      end_thought_on_trial();
      return true;
    case kNext:
      begin_call(in_brackets_);
      return true;
    case kEndBrackets:
      take(1);
      may_follow_ = in_brackets_ = false;
      blanks_.clear();
      return true;
    case kBeginAnswer:
      if (may_begin_) {
        take(begin_answer_.text.size());
        has_begun_ = true;
      } else {
        show(take(begin_answer_.text.size()));
      }
      may_begin_ = false;
      return true;
    case kEndAnswer:
      // Text behind it shows it, for then it is no end.
      has_content_ = has_begun_ = false;
      has_ended_ = true;
      blanks_ += take(end_answer_.text.size());
      return true;
    default:
      return false;
  }
}

void TagParser::take_open_tag(const Tag& tag) {
  const bool is_call = tools_->other_is_call && tag.text == tools_->other_open;
  begin_call(false);
  if (!is_call) hold_tag(tag);
  if (tools_->may_be_list) mode_ = Mode::kOpened;
}

void TagParser::begin_call(bool in_brackets) {
  mode_ = Mode::kCall;
  is_shown_ = may_follow_ = may_close_ = false;
  in_brackets_ = in_brackets;
  held_.clear();
  scanner_ = make_call_scanner(tools_->syntax, types_);
}

bool TagParser::advance_opened() {
  const TaggedText::Found found = text_.find({open_call_, end_tag_on_trial()});
  const size_t at = found.before.find_first_not_of(kJsonBlanks);
  hold(std::min(at, found.before.size()));
  if (at == found.before.npos) {
    if (found.tag == 0) show_no_call();
    if (found.tag == 1) end_thought_on_trial();
    return found.tag >= 0;
  }
  const char first = found.before[at];
  if (first == '[' && !in_brackets_) {
    hold(1);
    in_brackets_ = true;
  } else if (first == '{') {
    mode_ = Mode::kCall;
  } else if (in_brackets_) {
    show_no_call();
  } else {
    mode_ = Mode::kCall;
    CallSyntax syntax = tools_->syntax;
    syntax.form = CallForm::kBareJson;
    scanner_ = make_call_scanner(syntax, types_);
  }
  return true;
}

bool TagParser::advance_call() {
  enum { kOpen, kClose, kEndThought };
  const bool is_pythonic = tools_->syntax.form == CallForm::kPythonic;
  const TaggedText::Found found = text_.find({open_call_, close_call_, end_tag_on_trial()});
  const size_t taken = scanner_->read(found.before);
  const bool is_all = taken == found.before.size();
  if (is_all && found.tag == kClose) scanner_->close();
  hold(taken);
  if (scanner_->is_call()) show_call();
  if (scanner_->is_no_call()) {
    show_no_call();
  } else if (scanner_->is_done() || (is_all && found.tag >= 0 && is_shown_)) {
    mode_ = Mode::kContent;
    may_close_ = true;
    may_follow_ = scanner_->is_done() && (tools_->begins_answer || in_brackets_ || is_pythonic);
    in_brackets_ = may_follow_ && in_brackets_;
  } else if (is_all && found.tag == kEndThought) {
    end_thought_on_trial();
  } else if (is_all && found.tag >= 0) {
    if (found.tag == kClose) hold_tag(close_call_);
    show_no_call();
  } else {
    return false;
  }
  return true;
}

// All that seemed to be calls was part of the thought.
void TagParser::end_thought_on_trial() {
  delta_.reasoning += undo_trial();
  take(end_thought_[0].text.size());
  begin_content();
}

// Nothing of the answer had been shown when it began.
std::string TagParser::undo_trial() {
  trial_ = Trial::kNone;
  tried_ = {};
  num_calls_ = 0;
  blanks_.clear();
  held_.clear();
  is_shown_ = true;
  has_content_ = in_brackets_ = may_follow_ = may_close_ = false;
  return std::exchange(trial_text_, {});
}

// What it gave is certain.
void TagParser::end_trial() {
  if (std::exchange(trial_, Trial::kNone) == Trial::kNone) return;
  trial_text_.clear();
  delta_.content += tried_.content;
  delta_.tool_calls = std::move(tried_.tool_calls);
  tried_ = {};
}

std::string_view TagParser::take(size_t size) {
  const std::string_view taken = text_.take(size);
  if (trial_ != Trial::kNone) trial_text_ += taken;
  return taken;
}

// Takes bytes that are shown as content if they turn out to be no call.
void TagParser::hold(size_t size) {
  const std::string_view taken = take(size);
  if (!is_shown_) held_ += taken;
}

void TagParser::hold_tag(const Tag& tag) {
  if (tools_->keeps_tags) {
    hold(tag.text.size());
  } else {
    take(tag.text.size());
  }
}

void TagParser::show_call() {
  if (!is_shown_) {
    shown().tool_calls.push_back({num_calls_++, scanner_->name()});
    is_shown_ = true;
    has_content_ = false;
    held_.clear();
    blanks_.clear();
  }
  std::string arguments = scanner_->take_arguments();
  if (arguments.empty()) return;
  std::vector<ToolCallDelta>& calls = shown().tool_calls;
  if (calls.empty() || calls.back().index != num_calls_ - 1) calls.push_back({num_calls_ - 1});
  calls.back().arguments += arguments;
}

void TagParser::show_no_call() {
  mode_ = Mode::kContent;
  is_shown_ = true;
  may_follow_ = in_brackets_ = false;
  const std::string text = std::exchange(held_, {});
  if (trial_ == Trial::kThought && num_calls_ == 0) {
    delta_.reasoning += undo_trial();
    mode_ = Mode::kThought;
  } else if (trial_ == Trial::kAnswer) {
    show(undo_trial());
  } else {
    show(text);
  }
}

// Blanks that stand beside calls alone are no content.
void TagParser::show(std::string_view text) {
  blanks_ += text;
  has_content_ = has_content_ || text.find_first_not_of(separators()) != text.npos;
  if (!has_content_) return;
  may_begin_ = has_ended_ = false;
  shown().content += std::exchange(blanks_, {});
}

std::string_view TagParser::separators() const {
  // Behind the blanks, what stands between calls; a semicolon does not within brackets.
  constexpr std::string_view kAll = " \t\r\n,;";
  static_assert(kAll.starts_with(kJsonBlanks));
  if (!may_follow_) return kJsonBlanks;
  return kAll.substr(0, kAll.size() - (in_brackets_ ? 1 : 0));
}

}  // namespace nanovllm::server
