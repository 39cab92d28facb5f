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

// Neighbouring columns in one layout.
struct LinearPart {
  WeightLayout layout = WeightLayout::kPlain;
  int64_t first_column = 0;
  int64_t num_columns = 0;
  int64_t num_panels = 0;
  int64_t panel_bytes = 0;
  std::unique_ptr<Buffer> panels;  // see linear_kernels.h, coded_weights.h and code_panels.h
  std::vector<float> bias;         // [num_columns], padded to whole panels; or empty
  // Of kCoded12: all patches, and where each panel's begin.
  std::unique_ptr<Buffer> patches;
  std::vector<const WeightPatch*> panel_patches;
  CodePanels codes = {};  // of kGroup, kByte and kSuper: how a panel lies in memory

  bool has_codes() const {
    return layout != WeightLayout::kPlain && layout != WeightLayout::kCoded12;
  }
  int64_t bytes() const {
    return num_panels * panel_bytes + static_cast<int64_t>(patches ? patches->bytes() : 0);
  }
};

struct CpuLinearWeight final : LinearWeight {
  std::vector<LinearPart> parts;  // one or more, in the order of their columns
  int64_t num_steps = 0;

  int64_t plain_panel_bytes() const { return num_steps * kPanelStepBytes; }
};

const LinearPath& linear_path(const LinearKernels& kernels, WeightLayout layout, DType dtype);

// As Backend::make_linear; its memory comes from the arena.
std::unique_ptr<LinearWeight> pack_linear(ThreadPool& pool, Isa isa,
                                          std::span<const HostMatrix> pieces, const float* bias,
                                          DType dtype, HostArena& arena);

}  // namespace nanovllm
