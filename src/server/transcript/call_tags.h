// How a model writes its calls, as structural tags say it (xgrammar's, which src/grammar takes):
// for who lets an answer hold nothing but calls that are well formed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "nanovllm/sampling_params.h"
#include "server/transcript/transcript_parser.h"

namespace nanovllm::server {

struct CallRules {
  // Those that may be called, as chat templates get them: [{"type": "function", "function":
  // {"name", "parameters", "strict"}}, ...]
  nlohmann::ordered_json tools = nlohmann::ordered_json::array();
  bool must_call = false;  // else the answer may be a text, or begin with one
  bool parallel = true;    // else it has one call at most

  bool has_strict() const;
  // Whether the arguments of a tool's function follow its schema.
  bool are_enforced(const nlohmann::ordered_json& function) const;
};

// What arguments that are enforced follow.
nlohmann::ordered_json enforced_schema(const nlohmann::ordered_json& function);

// What an output must follow, as a format of a structural tag. Throws Error for a tag that is no
// JSON.
nlohmann::ordered_json text_format(const StructuredOutputsParams& asked);

// Of an answer's tag: the function whose parameters stand at this path, or within what does; null =
// it is another place.
const nlohmann::ordered_json* function_at(const nlohmann::ordered_json& tag, std::string_view path,
                                          const CallRules& calls);

// The text of the structural tag that an answer follows, from the end of its thought on; where a
// format has channels, all of it. Arguments follow their schemas where a call must come, or where
// the tool is strict; else they are an object. `calls`: null = none come. `text`: the format of an
// answer without calls; null = any text. `turn` is the one that the prompt has begun. Throws
// Error(kUnsupported) for what the format can't say.
std::string answer_tag(const TranscriptFormat& format, const TranscriptTags& tags,
                       std::string_view chat_template, std::string_view turn,
                       const CallRules* calls, const nlohmann::ordered_json* text);

}  // namespace nanovllm::server
