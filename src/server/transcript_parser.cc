#include "server/transcript_parser.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "server/call_scanner.h"

namespace nanovllm::server {
namespace {

constexpr std::string_view kThink = "<think>", kEndThink = "</think>";

struct ReasoningFormat {
  std::string_view name;
  bool ends_at_call;  // without a closing tag
};

constexpr ReasoningFormat kReasoningFormats[] = {{"qwen3", true}, {"deepseek_r1", false}};

struct ToolFormat {
  std::string_view name;
  std::string_view open_tag;
  std::string_view close_tag = {};  // empty = none
  bool is_special = true;           // the tags are special tokens of some models
  bool keeps_tags = false;          // around what is no call: then they are text
  bool begins_answer = false;       // a call needs no tag where the answer begins with it
  bool is_mistral = false;          // [TOOL_CALLS] [{...}, ...] or [TOOL_CALLS]f{...}
  CallSyntax syntax = {};
};

constexpr ToolFormat kToolFormats[] = {
    {.name = "hermes", .open_tag = "<tool_call>", .close_tag = "</tool_call>", .keeps_tags = true},
    {.name = "llama3_json",
     .open_tag = "<|python_tag|>",
     .is_special = false,  // vLLM lets the tag be skipped: the answer begins with the call then
     .begins_answer = true,
     .syntax = {.takes_parameters = true}},
    {.name = "mistral",
     .open_tag = "[TOOL_CALLS]",
     .is_mistral = true,
     .syntax = {.lenient_arguments = true}},
};

// Null for the empty name.
template <typename Formats>
auto* find_transcript_format(const Formats& formats, const std::string& name, const char* flag) {
  const auto* found = std::ranges::find(formats, name, [](const auto& it) { return it.name; });
  if (found != std::end(formats)) return found;
  if (!name.empty())
    throw_error(ErrorCode::kInvalidArgument, "{}: \"{}\" is not known", flag, name);
  return decltype(found){nullptr};
}

template <typename Formats>
std::vector<std::string> format_names(const Formats& formats) {
  std::vector<std::string> names;
  for (const auto& format : formats) names.emplace_back(format.name);
  return names;
}

// Reasoning is the rule: vLLM takes text for such from the start, tag or not, unless the turn that
// the prompt has begun has closed it.
bool is_reasoning_open(std::string_view prompt) {
  const std::string_view turn = last_turn(prompt);
  const size_t closed = turn.rfind(kEndThink);
  const size_t opened = turn.rfind(kThink);
  return closed == turn.npos || (opened != turn.npos && opened > closed);
}

class TagParser : public TranscriptParser {
 public:
  TagParser(const ReasoningFormat* reasoning, const ToolFormat* tools, std::string_view prompt)
      : reasoning_(reasoning), tools_(tools) {
    if (reasoning_ && is_reasoning_open(prompt)) {
      mode_ = Mode::kReasoning;
    } else {
      begin_content();
    }
  }

  TranscriptDelta append(std::string_view text) override {
    // In small pieces, as some searches look at all that is there and take the least of it.
    constexpr size_t kPiece = 512;  // bytes
    for (; !text.empty(); text.remove_prefix(std::min(kPiece, text.size()))) {
      pending_ += text.substr(0, kPiece);
      while (advance()) {
      }
      pending_.erase(0, std::exchange(taken_, 0));
    }
    return std::exchange(delta_, {});
  }

  TranscriptDelta finish() override {
    if (mode_ == Mode::kReasoning) delta_.reasoning += pending_;
    if (mode_ == Mode::kContent) show(pending_);
    if (mode_ == Mode::kCall) {
      hold(scanner_.read(rest()));
      if (scanner_.is_call()) show_call();
    }
    if (in_call() && !is_shown_) show_no_call(rest());
    pending_.clear();
    if (num_calls_ == 0) delta_.content += std::exchange(blanks_, {});
    return std::exchange(delta_, {});
  }

 private:
  enum class Mode {
    kReasoning,
    kContent,
    kOpened,   // behind [TOOL_CALLS]
    kCall,     // in {...} or f{...}
    kBetween,  // behind a call, or in the brackets around several
  };

  struct Found {
    std::string_view before = {};  // the first tag, or what may become one
    int tag = -1;                  // -1 = none yet
  };

  std::string_view rest() const { return std::string_view(pending_).substr(taken_); }
  bool in_call() const { return mode_ >= Mode::kOpened; }

  // Of tags none of which begins with another one; empty ones are passed over.
  Found find(std::initializer_list<std::string_view> tags) const {
    const std::string_view text = rest();
    for (size_t at = 0; at < text.size(); ++at) {
      const std::string_view here = text.substr(at);
      for (size_t i = 0; i < tags.size(); ++i) {
        const std::string_view tag = tags.begin()[i];
        if (tag.empty() || here.front() != tag.front()) continue;
        if (here.starts_with(tag)) return {text.substr(0, at), static_cast<int>(i)};
        if (tag.starts_with(here)) return {text.substr(0, at)};
      }
    }
    return {text};
  }

  // Takes what can be told apart now; false: nothing more before more comes.
  bool advance() {
    switch (mode_) {
      case Mode::kReasoning:
        return advance_reasoning();
      case Mode::kContent:
        return advance_content();
      case Mode::kOpened:
        return advance_opened();
      case Mode::kCall:
        return advance_call();
      case Mode::kBetween:
        return advance_between();
    }
    return false;
  }

  bool advance_reasoning() {
    const bool may_call = tools_ && reasoning_->ends_at_call;
    const std::string_view call = may_call ? tools_->open_tag : "";
    const Found found = find({kThink, kEndThink, call});
    delta_.reasoning += found.before;
    taken_ += found.before.size();
    if (found.tag == 0) taken_ += kThink.size();
    if (found.tag == 1) taken_ += kEndThink.size();
    if (found.tag > 0) begin_content();
    return found.tag >= 0;
  }

  void begin_content() {
    mode_ = Mode::kContent;
    if (tools_ && tools_->begins_answer) begin_call("");
  }

  bool advance_content() {
    // Some models close their reasoning twice.
    const Found found = find({reasoning_ ? kEndThink : "", tools_ ? tools_->open_tag : ""});
    show(found.before);
    taken_ += found.before.size();
    if (found.tag == 0) taken_ += kEndThink.size();
    if (found.tag == 1) take_open_tag();
    return found.tag >= 0;
  }

  void take_open_tag() {
    taken_ += tools_->open_tag.size();
    begin_call(tools_->keeps_tags ? tools_->open_tag : "");
    if (tools_->is_mistral) mode_ = Mode::kOpened;
  }

  void begin_call(std::string_view shown_if_none) {
    mode_ = Mode::kCall;
    is_shown_ = in_brackets_ = false;
    held_ = shown_if_none;
    scanner_ = CallScanner(tools_->syntax);
  }

  bool advance_opened() {
    const Found found = find({tools_->open_tag});
    const size_t at = found.before.find_first_not_of(kJsonBlanks);
    hold(std::min(at, found.before.size()));
    if (at == std::string_view::npos) {
      if (found.tag < 0) return false;
      if (num_calls_ > 0) held_.clear();
      show_no_call("");
      return true;
    }
    mode_ = Mode::kCall;
    if (found.before[at] == '[') {
      hold(1);
      in_brackets_ = true;
      mode_ = Mode::kBetween;
    } else if (found.before[at] != '{') {
      CallSyntax syntax = tools_->syntax;
      syntax.is_bare = true;
      scanner_ = CallScanner(syntax);
    }
    return true;
  }

  bool advance_call() {
    const Found found = find({tools_->open_tag, tools_->close_tag});
    const size_t taken = scanner_.read(found.before);
    const bool is_all = taken == found.before.size();
    hold(taken);
    if (scanner_.is_call()) show_call();
    if (scanner_.is_done()) {
      mode_ = Mode::kBetween;
    } else if (scanner_.is_no_call()) {
      show_no_call("");
    } else if (is_all && found.tag >= 0) {  // breaks off
      const bool closes = found.tag == 1;
      if (is_shown_) {
        mode_ = Mode::kBetween;
      } else {
        show_no_call(closes && tools_->keeps_tags ? tools_->close_tag : "");
      }
      if (closes) taken_ += tools_->close_tag.size();
    } else {
      return false;
    }
    return true;
  }

  bool advance_between() {
    const bool may_follow = tools_->begins_answer || in_brackets_;
    const Found found = find({tools_->open_tag, may_follow ? "{" : "", in_brackets_ ? "]" : ""});
    if (!is_shown_) {  // the first one in brackets
      const size_t at = found.before.find_first_not_of(kJsonBlanks);
      if (at != std::string_view::npos || found.tag == 0 || found.tag == 2) {
        hold(found.tag == 2 && at == found.before.npos ? found.before.size() + 1
                                                       : std::min(at, found.before.size()));
        show_no_call("");
        return true;
      }
      hold(found.before.size());
    } else {
      taken_ += found.before.size();
    }
    if (found.tag == 0) take_open_tag();
    if (found.tag == 1) {
      const bool in_brackets = in_brackets_;
      const std::string held = std::exchange(held_, {});
      begin_call(held);
      in_brackets_ = in_brackets;
    }
    if (found.tag == 2) {
      ++taken_;
      in_brackets_ = false;
    }
    return found.tag >= 0;
  }

  // Takes bytes that are shown as content if they turn out to be no call.
  void hold(size_t size) {
    if (!is_shown_) held_ += rest().substr(0, size);
    taken_ += size;
  }

  void show_call() {
    if (!is_shown_) {
      delta_.tool_calls.push_back({num_calls_++, scanner_.name()});
      is_shown_ = true;
      held_.clear();
      blanks_.clear();
    }
    std::string arguments = scanner_.take_arguments();
    if (arguments.empty()) return;
    if (delta_.tool_calls.empty() || delta_.tool_calls.back().index != num_calls_ - 1) {
      delta_.tool_calls.push_back({num_calls_ - 1});
    }
    delta_.tool_calls.back().arguments += arguments;
  }

  void show_no_call(std::string_view more) {
    const std::string text = std::exchange(held_, {}).append(more);
    in_brackets_ = false;
    is_shown_ = true;
    if (num_calls_ == 0) {
      mode_ = Mode::kContent;
      show(text);
    } else {
      mode_ = Mode::kBetween;
      delta_.content += text;
    }
  }

  // Blanks alone are no content where calls follow, and nothing is that follows a call.
  void show(std::string_view text) {
    if (num_calls_ > 0) return;
    blanks_ += text;
    has_content_ = has_content_ || text.find_first_not_of(kJsonBlanks) != text.npos;
    if (has_content_) delta_.content += std::exchange(blanks_, {});
  }

  const ReasoningFormat* reasoning_;
  const ToolFormat* tools_;
  Mode mode_ = Mode::kContent;
  std::string pending_ = {};  // text that is not told apart yet; the first taken_ bytes are
  size_t taken_ = 0;          // bytes
  std::string blanks_ = {};   // before the content
  bool has_content_ = false;  // that is not blank
  std::string held_ = {};     // content if it is no call
  bool is_shown_ = true;      // held_ is, as a call or content
  bool in_brackets_ = false;  // [{...}, {...}]
  int num_calls_ = 0;
  CallScanner scanner_{CallSyntax{}};
  TranscriptDelta delta_ = {};
};

struct Template {
  std::string_view text;
  bool has(std::string_view part) const { return text.find(part) != text.npos; }

  // Whose generation prompt opens the reasoning, or leaves that to the model. Where only an option
  // does so, taking all text for reasoning would be wrong without it.
  const char* reasoning_parser() const {
    if (!has(kEndThink)) return "";
    if (has("enable_thinking is false") || has("enable_thinking is not defined")) return "qwen3";
    const bool opens = has("<think>\\n'") || has("<think>\n'") || has("<think>\n\"");
    const bool is_option = has("if enable_thinking") || has("enable_thinking is");
    return !is_option && (opens || has("<｜Assistant｜>")) ? "deepseek_r1" : "";
  }

  const char* tool_call_parser() const {
    if (has("[TOOL_CALLS]")) return "mistral";
    // Others put XML or lists between the tags.
    if (has("<function=") || has("<arg_key>") || has("<tool_calls>")) return "";
    if (has("<tool_call>")) return "hermes";
    return has("<|eot_id|>") && has("\"parameters\":") ? "llama3_json" : "";
  }
};

}  // namespace

std::vector<std::string> reasoning_parsers() { return format_names(kReasoningFormats); }

std::vector<std::string> tool_call_parsers() { return format_names(kToolFormats); }

TranscriptFormat transcript_format_of(std::string_view chat_template) {
  const Template given = {chat_template};
  return {given.reasoning_parser(), given.tool_call_parser()};
}

std::string_view last_turn(std::string_view prompt) {
  size_t turn = 0;
  for (const std::string_view begin : {"<|im_start|>", "<|end_header_id|>", "<｜Assistant｜>"}) {
    if (const size_t at = prompt.rfind(begin); at != prompt.npos) turn = std::max(turn, at);
  }
  return prompt.substr(turn);
}

bool needs_special_tokens(const TranscriptFormat& format, bool with_tools) {
  const auto has_special_tags = [&](const ToolFormat& tools) {
    return tools.name == format.tool_call_parser && tools.is_special;
  };
  return !format.reasoning_parser.empty() ||
         (with_tools && std::ranges::any_of(kToolFormats, has_special_tags));
}

std::unique_ptr<TranscriptParser> make_transcript_parser(const TranscriptFormat& format,
                                                         std::string_view prompt, bool with_tools) {
  const auto* reasoning =
      find_transcript_format(kReasoningFormats, format.reasoning_parser, "--reasoning-parser");
  const auto* tools =
      find_transcript_format(kToolFormats, format.tool_call_parser, "--tool-call-parser");
  return std::make_unique<TagParser>(reasoning, with_tools ? tools : nullptr, prompt);
}

}  // namespace nanovllm::server
