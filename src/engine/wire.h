// An engine's commands and events as bytes, for a worker process of the same binary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "nanovllm/engine_loop.h"

namespace nanovllm {

// The first report of an engine that is loaded.
struct EngineHello {
  EngineInfo info = {};
  SamplingParams default_sampling_params = {};
  std::string model_dir = {};
  bool operator==(const EngineHello&) const = default;
};

// The last report: why an engine could not be loaded, or can't go on.
struct EngineFault {
  ErrorCode code = ErrorCode::kInternal;
  std::string message = {};  // one sentence
  bool operator==(const EngineFault&) const = default;
};

// Told now and then, from the beginning of loading on, while the engine goes on with whatever it
// does.
struct EngineProgress {
  uint64_t count = 0;  // of pieces of work; not told twice
  bool operator==(const EngineProgress&) const = default;
};

using EngineReport =
    std::variant<EngineHello, std::vector<EngineEvent>, EngineFault, EngineProgress>;

// A frame is its payload's size in bytes (uint32), the format's version (a byte) and the payload,
// little-endian throughout.
inline constexpr size_t kMaxFramePayload = size_t{1} << 28;  // bytes

// Appends one frame. Throws Error(kUnsupported) when its payload would be too large.
void append_frame(const EngineCommand& command, std::string& bytes);
void append_frame(const EngineReport& report, std::string& bytes);

// Removes the first frame from `bytes` and reads it. Returns false and changes nothing if it is not
// complete yet. Throws Error(kCorruptData) if it is not a valid frame of that type.
bool take_frame(std::string_view& bytes, EngineCommand& command);
bool take_frame(std::string_view& bytes, EngineReport& report);

}  // namespace nanovllm
