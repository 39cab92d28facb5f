#pragma once

namespace nanovllm {
inline constexpr const char* kVersion = "0.1.0";
}
