// The weight of a linear layer as the CPU's kernels read it; made by CpuBackend::make_linear.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/cpu/cpu_features.h"
#include "backend/cpu/host_memory.h"
#include "backend/cpu/linear/linear_kernels.h"
#include "backend/cpu/thread_pool.h"
#include "ops/backend.h"

namespace nanovllm {

struct CpuLinearWeight final : LinearWeight {
  std::unique_ptr<Buffer> panels;  // see linear_kernels.h and, if coded, coded_weights.h
  std::vector<float> bias;         // [N], padded to whole panels; or empty
  int64_t num_panels = 0;
  int64_t num_steps = 0;
  // If coded: all patches, and where each panel's begin.
  std::unique_ptr<Buffer> patches;
  std::vector<const WeightPatch*> panel_patches;

  bool coded() const { return patches != nullptr; }
  int64_t plain_panel_bytes() const { return num_steps * kPanelStepBytes; }
  int64_t coded_panel_bytes() const {
    return kCodeTableBytes + num_steps / kUnitSteps * kUnitBytes;
  }
  int64_t panel_bytes() const { return coded() ? coded_panel_bytes() : plain_panel_bytes(); }
};

// As Backend::make_linear; its memory comes from the arena.
std::unique_ptr<LinearWeight> pack_linear(ThreadPool& pool, Isa isa,
                                          std::span<const HostMatrix> pieces, const float* bias,
                                          DType dtype, HostArena& arena);

}  // namespace nanovllm
