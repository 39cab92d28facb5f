// Packing of codes into the panels of code_panels.h, and reading them back.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "backend/cpu/linear/code_panels.h"
#include "backend/cpu/linear/linear_kernels.h"
#include "ops/host_matrix.h"

namespace nanovllm {

// How the panels of matrices with equal formats lie in memory. A part that begins within a group
// has smaller groups than the file, several with the same scale. Nothing if it begins within 16
// columns of a group, or if a format's values are none that kernels know: then they are decoded to
// numbers.
std::optional<CodePanels> plan_code_panels(const HostMatrix& piece);

// Panel `panel` of the stacked rows of matrices whose formats are equal; `out` is aligned to 64
// bytes.
void pack_code_panel(const LinearKernels& kernels, const CodePanels& shape,
                     std::span<const HostMatrix> pieces, int64_t panel, char* out);

// The weights of a panel as MatrixDecoder::decode gives them, as a plain panel of num_steps steps
// of float32, or of bfloat16 rounded to nearest even.
void decode_to_f32(const CodePanels& shape, const char* panel, int64_t num_steps, char* out);
void decode_to_bf16(const CodePanels& shape, const char* panel, int64_t num_steps, char* out);

}  // namespace nanovllm
