// What a model says, taken apart as it comes: its reasoning, its answer, and its calls of tools.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm::server {

struct ToolCallDelta {
  int index = 0;               // of the call in the message
  std::string name = {};       // with the first delta of a call; empty later
  std::string arguments = {};  // text of JSON, to be appended
  bool operator==(const ToolCallDelta&) const = default;
};

struct TranscriptDelta {
  std::string reasoning = {};
  std::string content = {};
  std::vector<ToolCallDelta> tool_calls = {};
  bool operator==(const TranscriptDelta&) const = default;
};

// Any split of a text into pieces adds up to the same; no part of a tag is ever shown.
class TranscriptParser {
 public:
  virtual ~TranscriptParser() = default;
  virtual TranscriptDelta append(std::string_view text) = 0;
  virtual TranscriptDelta finish() = 0;  // what was held back
};

struct TranscriptFormat {
  std::string reasoning_parser = {};  // vLLM's name; empty = none
  std::string tool_call_parser = {};  // vLLM's name; empty = none
};

// The names that --reasoning-parser and --tool-call-parser know.
std::vector<std::string> reasoning_parsers();
std::vector<std::string> tool_call_parsers();
// What fits a model, by its chat template's text (and its architecture).
TranscriptFormat transcript_format_of(std::string_view chat_template,
                                      std::string_view architecture);

// `prompt` is the rendered one: it may have opened (or closed) the reasoning already. Calls are
// taken for such only where the request has tools (`with_tools`).
std::unique_ptr<TranscriptParser> make_transcript_parser(const TranscriptFormat& format,
                                                         std::string_view prompt, bool with_tools);

}  // namespace nanovllm::server
