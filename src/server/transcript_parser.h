// What a model says, taken apart as it comes: its reasoning, its answer, and its calls of tools.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

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

// Any split of a text into pieces adds up to the same; no part of a tag is shown where it is one.
// A call is shown from where its name is known and its arguments begin: what turns out to be none
// before is content, as in vLLM; one that breaks off later ends with the arguments it has. Text
// behind the first call is dropped, and so are blanks that stand alone before it.
class TranscriptParser {
 public:
  virtual ~TranscriptParser() = default;
  virtual TranscriptDelta append(std::string_view text) = 0;  // whole characters of UTF-8
  virtual TranscriptDelta finish() = 0;                       // what was held back
};

struct TranscriptFormat {
  std::string reasoning_parser = {};  // vLLM's name; empty = none
  std::string tool_call_parser = {};  // vLLM's name; empty = none
  bool operator==(const TranscriptFormat&) const = default;
};

// The names that --reasoning-parser and --tool-call-parser know.
std::vector<std::string> reasoning_parsers();
std::vector<std::string> tool_call_parsers();
// What fits a model, by its chat template's text.
TranscriptFormat transcript_format_of(std::string_view chat_template);

// Whether a request has to have skip_special_tokens = false (as vLLM sets it, whatever the user
// asked for), so that tags which are special tokens are part of its text.
bool needs_special_tokens(const TranscriptFormat& format, bool with_tools);

// The end of a prompt that make_transcript_parser looks at: the turn that it has begun.
std::string_view last_turn(std::string_view prompt);

// Of one completion. `prompt` is the rendered one: it may have closed the reasoning already; where
// it has not, a format with reasoning begins with it, tag or not. Calls are taken for such only
// where the request has tools (`with_tools`: some are given, and tool_choice is not "none"). Throws
// Error(kInvalidArgument) for names that are not known.
std::unique_ptr<TranscriptParser> make_transcript_parser(const TranscriptFormat& format,
                                                         std::string_view prompt, bool with_tools);

}  // namespace nanovllm::server
