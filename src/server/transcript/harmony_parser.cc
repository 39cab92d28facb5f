#include "server/transcript/harmony_parser.h"

#include <algorithm>
#include <utility>

namespace nanovllm::server {
namespace {

enum HarmonyTag { kStart, kChannel, kMessage, kConstrain, kEnd, kReturn, kCall };

// What is longer and no message yet is the text of a model that writes without channels.
constexpr size_t kMaxHeader = 256;  // bytes

// What follows `key` in a header, up to a blank or a tag; empty = nothing does.
std::string_view header_word(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == header.npos) return {};
  header.remove_prefix(at + key.size());
  return header.substr(0, header.find_first_of(" \t\r\n<"));
}

// Tools that gpt-oss was taught to use within its thoughts; a server does not have them.
bool is_builtin_tool(std::string_view recipient) {
  const std::string_view first = recipient.substr(0, recipient.find('.'));
  return first == "python" || first == "browser" || first == "container";
}

}  // namespace

HarmonyParser::HarmonyParser(const TranscriptTags& tags, std::string_view prompt, bool with_tools)
    : with_tools_(with_tools) {
  std::ranges::transform(kHarmonyTags, tags_.begin(), [&](std::string_view text) {
    const auto known = tags.ids.find(text);
    return known == tags.ids.end() ? Tag{text} : Tag{text, known->second};
  });
  // A prompt may end within a message that the answer is to go on with.
  const std::string_view turn =
      prompt.substr(std::min(prompt.rfind(kHarmonyTags[kStart]), prompt.size()));
  const size_t message = turn.find(kHarmonyTags[kMessage]);
  if (message == turn.npos) return;
  header_ = turn.substr(0, message);
  begin_message();
  delta_ = {};
}

TranscriptDelta HarmonyParser::append(std::string_view text, std::span<const TokenMark> tags) {
  text_.announce(tags);
  text_.append(text);
  while (advance()) {
  }
  text_.forget();
  return std::exchange(delta_, {});
}

TranscriptDelta HarmonyParser::finish() {
  const std::string_view rest = text_.take(text_.rest().size());
  if (in_header_) {
    header_ += rest;
    if (!is_header()) end_header();
  } else {
    show(rest);
  }
  end_message();
  return std::exchange(delta_, {});
}

bool HarmonyParser::advance() {
  const TaggedText::Found found =
      text_.find({tags_[0], tags_[1], tags_[2], tags_[3], tags_[4], tags_[5], tags_[6]});
  const std::string_view before = text_.take(found.before.size());
  if (in_header_) {
    header_ += before;
    if (header_.size() > kMaxHeader) end_header();
  } else {
    show(before);
  }
  if (found.tag < 0) return false;
  const std::string_view tag = text_.take(kHarmonyTags[static_cast<size_t>(found.tag)].size());
  switch (found.tag) {
    case kStart:
    case kEnd:
    case kReturn:
    case kCall:
      if (in_header_ && !is_header()) end_header();
      end_message();
      has_role_ = found.tag == kStart;
      return true;
    case kChannel:
      if (in_header_ && !is_header()) end_header();
      if (!in_header_) end_message();
      header_ += tag;
      return true;
    case kMessage:
      if (in_header_) {
        begin_message();
      } else {
        show(tag);
      }
      return true;
    default:
      if (in_header_) {
        header_ += tag;
      } else {
        show(tag);
      }
      return true;
  }
}

void HarmonyParser::begin_message() {
  const std::string_view channel = header_word(header_, kHarmonyTags[kChannel]);
  const std::string_view recipient = header_word(header_, "to=");
  constexpr std::string_view kFunctions = "functions.";
  const bool to_function = recipient.starts_with(kFunctions);
  const bool to_tool = !recipient.empty() && recipient != "assistant";
  const std::string name(recipient.substr(to_function ? kFunctions.size() : 0));
  if (to_tool && !to_function && is_builtin_tool(recipient)) {
    begin_body(Kind::kReasoning);
  } else if (to_tool && with_tools_ && !name.empty()) {
    begin_body(Kind::kCall);
    delta_.tool_calls.push_back({num_calls_++, name});
  } else {
    begin_body(channel == "analysis" && !to_tool ? Kind::kReasoning : Kind::kContent);
  }
}

void HarmonyParser::begin_body(Kind kind) {
  kind_ = kind;
  in_header_ = false;
  is_empty_ = true;
  header_.clear();
}

void HarmonyParser::show(std::string_view text) {
  if (text.empty()) return;
  const bool is_first = std::exchange(is_empty_, false);
  if (kind_ == Kind::kCall) {
    std::vector<ToolCallDelta>& calls = delta_.tool_calls;
    if (calls.empty() || calls.back().index != num_calls_ - 1) calls.push_back({num_calls_ - 1});
    calls.back().arguments += text;
    return;
  }
  const bool is_reasoning = kind_ == Kind::kReasoning;
  std::string& shown = is_reasoning ? delta_.reasoning : delta_.content;
  const bool follows = std::exchange(is_reasoning ? has_reasoning_ : has_content_, true);
  if (is_first && follows) shown += '\n';
  shown += text;
}

void HarmonyParser::end_message() {
  if (!in_header_ && kind_ == Kind::kCall && is_empty_) show("{}");
  in_header_ = true;
  has_role_ = false;
  header_.clear();
}

// A role, a recipient and a channel, or nothing at all.
bool HarmonyParser::is_header() const {
  constexpr std::string_view kRole = "assistant";
  std::string_view text = header_;
  if (has_role_ && text.starts_with(kRole)) text.remove_prefix(kRole.size());
  const size_t at = text.find_first_not_of(" \t\r\n");
  return at == text.npos || text.substr(at).starts_with("to=") ||
         text.find(kHarmonyTags[kChannel]) != text.npos;
}

// No message has come behind it: what is none is the text of one without a channel.
void HarmonyParser::end_header() {
  const std::string text = std::exchange(header_, {});
  begin_body(Kind::kContent);
  show(text);
}

}  // namespace nanovllm::server
