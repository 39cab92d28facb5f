// Kernels that work on one row at a time, compiled for each instruction set. Plain declarations
// only (see attention_task.h).
#pragma once

#include <cstdint>

#include "backend/cpu/isa.h"

namespace nanovllm {

// "act" rows are bfloat16 or float32, as the table was asked for.
struct RowKernels {
  // out[n] (float) = x[n] (act).
  void (*widen)(float* out, const void* x, int64_t n);
  float (*mean_square)(const float* x, int64_t n);
  // out[n] (act) = factor * x * weight; a weight of null is 1.
  void (*scale)(void* out, const float* x, const float* weight, int64_t n, float factor);
  // residual[n] += factor * x[n] (act).
  void (*add)(float* residual, const void* x, int64_t n, float factor);
  // One head: out[dim] (act) = x[dim] (act) normalised by `norm` (unless null) and turned by a row
  // of cosines and sines, [rotary_dim]. out may be x.
  void (*norm_rope)(void* out, const void* x, int dim, const float* norm, float eps,
                    const float* cos_sin, int rotary_dim);
  // x[n] *= 1 / (1 + e^-gate[n]), both act.
  void (*times_sigmoid)(void* x, const void* gate, int64_t n);
  // out[n] = activation(gate[n]) * up[n], all act; in the order of Activation.
  void (*act_and_mul[4])(void* out, const void* gate, const void* up, int64_t n);
};

// Compiled for the set.
template <Isa isa>
RowKernels row_kernels(bool bfloat16);

}  // namespace nanovllm
