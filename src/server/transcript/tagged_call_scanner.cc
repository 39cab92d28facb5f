// Calls that write each argument between tags. Values of strings come out as they come in; others
// when they are whole, for only then their type shows.
#include <algorithm>
#include <array>

#include "server/transcript/call_scanners.h"

namespace nanovllm::server {
namespace {

class TaggedCallScanner final : public CallScanner {
 public:
  TaggedCallScanner(const TaggedSyntax& syntax, const ToolTypes* types)
      : syntax_(syntax), types_(types) {
    // Models forget the end of a value now and then: the beginning of a line is taken for one too.
    if (syntax.values_have_own_lines) {
      own_line_close_.append("\n").append(syntax.value_close);
      own_line_key_.append("\n").append(syntax.key_open);
      own_line_end_.append("\n").append(syntax.close);
    }
  }

  void close() override {
    const bool is_between =
        !name_.empty() && text_.empty() && (step_ == Step::kName || step_ == Step::kBetween);
    if (is_between && (is_call_ || syntax_.close.empty())) end();
  }

 private:
  enum class Step { kBegin, kName, kBetween, kKey, kValueOpen, kValue };

  bool take(char byte) override;
  bool take_name(char byte);
  bool take_between(char byte);
  bool take_key(char byte);
  bool take_value(char byte);
  // Adds the byte to the beginning of `tag` in text_. false: it is none.
  bool takes_tag(char byte, std::string_view tag);
  void go_to(Step step) {
    step_ = step;
    text_.clear();
  }
  void begin_value();
  void add_to_value(char byte);
  void end_value();
  void end();
  bool break_off();  // returns false

  const TaggedSyntax& syntax_;
  const ToolTypes* types_;  // null = nothing is known of them
  std::string own_line_close_ = {}, own_line_key_ = {}, own_line_end_ = {};
  Step step_ = Step::kBegin;
  std::string text_ = {};  // what may become a tag, or the key
  std::string key_ = {};
  bool arguments_begun_ = false;
  std::string value_ = {};          // where it is not a string
  unsigned types_of_value_ = 0;     // ValueType
  bool may_be_line_break_ = false;  // the next byte, of no value's own
};

bool TaggedCallScanner::take(char byte) {
  switch (step_) {
    case Step::kBegin:
      if (text_.empty() && is_json_blank(byte)) return true;
      if (syntax_.name_open.empty()) {
        go_to(Step::kName);
        return take_name(byte);
      }
      if (!takes_tag(byte, syntax_.name_open)) return stop();
      if (text_ == syntax_.name_open) go_to(Step::kName);
      return true;
    case Step::kName:
      return take_name(byte);
    case Step::kBetween:
      return take_between(byte);
    case Step::kKey:
      return take_key(byte);
    case Step::kValueOpen:
      if (text_.empty() && is_json_blank(byte)) return true;
      if (!takes_tag(byte, syntax_.value_open)) return break_off();
      if (text_ == syntax_.value_open) begin_value();
      return true;
    case Step::kValue:
      return take_value(byte);
  }
  return false;
}

bool TaggedCallScanner::takes_tag(char byte, std::string_view tag) {
  if (text_.size() >= tag.size() || tag[text_.size()] != byte) return false;
  text_ += byte;
  return true;
}

bool TaggedCallScanner::take_name(char byte) {
  if (is_call_name_byte(byte)) {
    name_ += byte;
    return true;
  }
  if (name_.empty()) return stop();
  if (syntax_.name_close.empty()) {
    go_to(Step::kBetween);
    return take_between(byte);
  }
  if (!takes_tag(byte, syntax_.name_close)) return stop();
  if (text_ == syntax_.name_close) go_to(Step::kBetween);
  return true;
}

bool TaggedCallScanner::take_between(char byte) {
  if (text_.empty() && is_json_blank(byte)) return true;
  text_ += byte;
  if (text_ == syntax_.key_open) {
    is_call_ = true;
    go_to(Step::kKey);
  } else if (!syntax_.close.empty() && text_ == syntax_.close) {
    end();
  } else if (!syntax_.key_open.starts_with(text_) && !syntax_.close.starts_with(text_)) {
    return break_off();
  }
  return true;
}

bool TaggedCallScanner::take_key(char byte) {
  text_ += byte;
  if (!text_.ends_with(syntax_.key_close)) return true;
  key_ = text_.substr(0, text_.size() - syntax_.key_close.size());
  if (syntax_.value_open.empty()) {
    begin_value();
  } else {
    go_to(Step::kValueOpen);
  }
  return true;
}

void TaggedCallScanner::begin_value() {
  go_to(Step::kValue);
  types_of_value_ = types_ != nullptr ? types_->types_of(name_, key_) : kStringValue;
  arguments_ += arguments_begun_ ? ", \"" : "{\"";
  arguments_begun_ = true;
  for (const char byte : key_) arguments_ += json_escaped(byte);
  arguments_ += types_of_value_ == kStringValue ? "\": \"" : "\": ";
  value_.clear();
  may_be_line_break_ = syntax_.values_have_own_lines;
}

bool TaggedCallScanner::take_value(char byte) {
  if (std::exchange(may_be_line_break_, false) && byte == '\n') return true;
  text_ += byte;
  const std::array<std::string_view, 4> ends = {syntax_.value_close, own_line_close_, own_line_key_,
                                                own_line_end_};
  const auto may_become = [&](std::string_view tag) { return tag.starts_with(text_); };
  while (!text_.empty() && std::ranges::none_of(ends, may_become)) {
    add_to_value(text_.front());
    text_.erase(0, 1);
  }
  if (text_.empty() || std::ranges::find(ends, text_) == ends.end()) return true;
  end_value();
  if (text_ == own_line_end_) {
    end();
  } else {
    go_to(text_ == own_line_key_ ? Step::kKey : Step::kBetween);
  }
  return true;
}

void TaggedCallScanner::add_to_value(char byte) {
  if (types_of_value_ == kStringValue) {
    arguments_ += json_escaped(byte);
  } else {
    value_ += byte;
  }
}

void TaggedCallScanner::end_value() {
  arguments_ += types_of_value_ == kStringValue ? "\"" : typed_json(value_, types_of_value_);
}

void TaggedCallScanner::end() {
  arguments_ += arguments_begun_ ? "}" : "{}";
  is_call_ = true;
  stop();
}

// Something else has come between arguments: those that are whole are all.
bool TaggedCallScanner::break_off() {
  if (is_call_) {
    end();
  } else {
    stop();
  }
  return false;
}

}  // namespace

std::unique_ptr<CallScanner> make_tagged_scanner(const TaggedSyntax& syntax,
                                                 const ToolTypes* types) {
  return std::make_unique<TaggedCallScanner>(syntax, types);
}

}  // namespace nanovllm::server
