// What a model says, taken apart as it comes: its reasoning, its answer, and its calls of tools.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/outputs.h"
#include "server/transcript/tool_types.h"

namespace nanovllm {
class Tokenizer;
}

namespace nanovllm::server {

struct ToolCallDelta {
  int index = 0;               // of the call in the message
  std::string name = {};       // with the first delta of a call; empty later
  std::string arguments = {};  // text of JSON as the model wrote it, to be appended
  bool operator==(const ToolCallDelta&) const = default;
};

struct TranscriptDelta {
  std::string reasoning = {};
  std::string content = {};
  std::vector<ToolCallDelta> tool_calls = {};  // at most one of a call
  bool operator==(const TranscriptDelta&) const = default;
};

// Any split of a text into pieces adds up to the same, and none of it is lost: what is no tag and
// no part of a call is reasoning or content. No part of a tag is shown where it is one. The first
// end of a thought is the only one; later tags of thoughts are text, and so are those that open one
// behind its first words. A call is shown from where its name is known and its arguments begin:
// what turns out to be none before is content, as in vLLM; one that breaks off later ends with the
// arguments it has. Blanks that stand beside calls alone are dropped, text behind a call is
// content. Two kinds of calls are shown at the end only, and what follows them is held back until
// then:
// - Those within a thought. They are calls where the thought is never closed behind them, as in
//   vLLM's whole answers, which see all of it; else they are part of it and shown with what ends
//   it. (vLLM's streams show such a call at once, and let the thought end there.)
// - Those without a tag that an answer begins with. Where anything that begins as a call does
//   behind them turns out to be none, all of the answer is text, as in vLLM's whole answers.
class TranscriptParser {
 public:
  virtual ~TranscriptParser() = default;
  // Whole characters of UTF-8, and where in them the tokens of tags are. A tag's text may be cut:
  // its rest comes with the next pieces.
  virtual TranscriptDelta append(std::string_view text, std::span<const TokenMark> tags) = 0;
  virtual TranscriptDelta finish() = 0;  // what was held back
};

struct TranscriptFormat {
  std::string reasoning_parser = {};  // vLLM's name; empty = none
  std::string tool_call_parser = {};  // vLLM's name; empty = none
  // Where a format takes them for such: see TranscriptParser. Off where what calls must follow is
  // enforced behind thoughts alone.
  bool calls_in_thoughts = true;
  bool operator==(const TranscriptFormat&) const = default;
};

// The names that --reasoning-parser and --tool-call-parser know.
std::vector<std::string> reasoning_parsers();
std::vector<std::string> tool_call_parsers();
// What fits a model, by its chat template's text; where that leaves it open, what is usual for
// models of its architecture.
TranscriptFormat transcript_format_of(std::string_view chat_template,
                                      const TranscriptFormat& usual = {});

// The tags of a format that a tokenizer has as tokens of their own, with their ids. The token alone
// is the tag then; the same characters made of other tokens are text. Other tags are found by their
// characters.
struct TranscriptTags {
  std::map<std::string, int32_t, std::less<>> ids = {};
  std::optional<int32_t> begin_of_thought = {}, end_of_thought = {};  // of ids
};
TranscriptTags transcript_tags(const TranscriptFormat& format, const Tokenizer& tokenizer);

// What begins and what ends a thought, for who bounds it: of a format with several such tags, those
// that the chat template's text names, or the first. Empty = the format has no thoughts.
struct ThoughtTags {
  std::string begin = {}, end = {};
};
ThoughtTags thought_tags(const TranscriptFormat& format, std::string_view chat_template);
// Whether what the model says behind this prompt is reasoning from its first token on.
bool thinks_at_once(const TranscriptFormat& format, std::string_view prompt);
// Whether this prompt has closed the reasoning, so that what begins a thought is text.
bool has_thought_enough(const TranscriptFormat& format, std::string_view prompt);

// The end of a prompt that make_transcript_parser looks at: the turn that it has begun.
std::string_view last_turn(std::string_view prompt);

// Of one completion, whose text holds tags even where they are special tokens. `prompt` is the
// rendered one: it may have closed the reasoning already; where it has not, a format with reasoning
// begins with it as a rule, tag or not. Calls are taken for such only where the request has tools
// (null = none are given, or tool_choice is "none"), which must outlive the parser. Throws
// Error(kInvalidArgument) for names that are not known or do not fit together.
std::unique_ptr<TranscriptParser> make_transcript_parser(const TranscriptFormat& format,
                                                         const TranscriptTags& tags,
                                                         std::string_view prompt,
                                                         const ToolTypes* tools);

}  // namespace nanovllm::server
