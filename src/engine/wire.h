// What goes to an engine and what comes from it as bytes, for another process on the same kind of
// machine.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "nanovllm/engine_loop.h"

namespace nanovllm {

// What an engine says of itself once it is loaded.
struct EngineHello {
  EngineInfo info = {};
  SamplingParams default_sampling_params = {};
  std::string model_dir = {};
  bool operator==(const EngineHello&) const = default;
};

// Why an engine could not be loaded, or can't go on: its last words.
struct EngineFault {
  ErrorCode code = ErrorCode::kInternal;
  std::string message = {};  // one sentence
  bool operator==(const EngineFault&) const = default;
};

using EngineReport = std::variant<EngineHello, std::vector<EngineEvent>, EngineFault>;

// A frame is its payload's size in bytes (uint32), the format's version (a byte) and the payload,
// little-endian throughout.
inline constexpr size_t kMaxFramePayload = size_t{1} << 28;  // bytes

// Appends one frame. Throws Error(kUnsupported) when its payload would be too large.
void append_frame(const EngineCommand& command, std::string& bytes);
void append_frame(const EngineReport& report, std::string& bytes);

// Takes the first frame off `bytes`; false when the rest of it is yet to come. Throws
// Error(kCorruptData) where it is no frame of what is asked for.
bool take_frame(std::string_view& bytes, EngineCommand& command);
bool take_frame(std::string_view& bytes, EngineReport& report);

}  // namespace nanovllm
