// The type that the scales of codes have in memory. A plain declaration only: files that are
// compiled for a special instruction set include it.
#pragma once

namespace nanovllm {

enum class ScaleKind { kFloat16, kBFloat16, kFloat32 };

}  // namespace nanovllm
