// Commands and events of an EngineLoop as bytes, for another process on the same kind of machine.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/engine_loop.h"

namespace nanovllm {

// A frame is its payload's size in bytes (uint32), the format's version (a byte) and the payload,
// little-endian throughout.
inline constexpr size_t kMaxFramePayload = size_t{1} << 28;  // bytes

// Appends one frame. Throws Error(kUnsupported) when its payload would be too large.
void append_frame(const EngineCommand& command, std::string& bytes);
void append_frame(const std::vector<EngineEvent>& events, std::string& bytes);

// Takes the first frame off `bytes`; false when the rest of it is yet to come. Throws
// Error(kCorruptData) where it is no frame of what is asked for.
bool take_frame(std::string_view& bytes, EngineCommand& command);
bool take_frame(std::string_view& bytes, std::vector<EngineEvent>& events);

}  // namespace nanovllm
