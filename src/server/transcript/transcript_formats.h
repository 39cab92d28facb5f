// The formats of transcripts by their names.
#pragma once

#include "server/transcript/tag_parser.h"
#include "server/transcript/transcript_parser.h"

namespace nanovllm::server {

// Null for the empty name. Throw Error(kInvalidArgument) for one that is not known.
const ReasoningFormat* reasoning_format(const TranscriptFormat& format);
const ToolFormat* tool_format(const TranscriptFormat& format);

// Both parts are marked by channels, or none is. Throws Error(kInvalidArgument) for half of it.
bool has_channels(const TranscriptFormat& format);

}  // namespace nanovllm::server
