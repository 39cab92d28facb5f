// The sizes of what code_product.cuh's blocks compute, which plans divide shared memory by.
#pragma once

#include "backend/cuda/linear/code_layout.h"

namespace nanovllm::cuda {

constexpr int kPanelTiles = 8;  // of a block
constexpr int kPanelFeatures = kPanelTiles * kTileRows;
constexpr int kMaxRowSets = 8;                    // of 8 rows
constexpr int kSharesOfK = 2;                     // of a block's warps, of each step
constexpr int kXStride = kBlockColumns * 2 + 16;  // bytes: neighbouring rows share no bank
constexpr int kSumStride = kPanelFeatures + 4;    // floats, likewise
constexpr int kMaxCodeStages = 4;

constexpr int kCodeBarrierBytes = 1024;    // of blocks that codes stream into
constexpr int kCodeBytesAhead = 64 << 10;  // of codes of a multiprocessor, on their way

// Rounded up.
constexpr int parts_in(int64_t whole, int64_t part) {
  return static_cast<int>((whole + part - 1) / part);
}

// What becomes of the sum y of a group's products.
enum class Scaling {
  kNone,   // y: rows are scaled in the end
  kScale,  // s y
  kTaken,  // likewise, of codes less whole numbers
  kAdded,  // s y + o times the sum of the activations
};
inline Scaling scaling_of(const CodeShape& shape) {
  if (shape.is_row_scaled) return Scaling::kNone;
  switch (shape.offsets) {
    case OffsetKind::kNone:
      return Scaling::kScale;
    case OffsetKind::kTaken:
      return Scaling::kTaken;
    case OffsetKind::kScaledTaken:
    case OffsetKind::kAdded:
      break;
  }
  return Scaling::kAdded;
}

// Steps of 16 columns whose products a block's warps add up before they scale them.
inline int scaled_steps(const CodeShape& shape) {
  return shape.group_columns >= kUnitColumns ? kUnitSteps : shape.group_columns / 16;
}
// What the warps keep of a block of columns: for each pair of rows of a tile and each sum that is
// scaled two numbers to scale with, and two to add.
inline int prepared_bytes(const CodeShape& shape) {
  return kPanelTiles * (kTileRows / 2) * (kBlockColumns / 16 / scaled_steps(shape)) * 16;
}
// Whether kernels that know all of a format are compiled for it, one that files have: for others
// code_product.cuh's do.
constexpr bool has_form(CodeKind kind, ScaleKind scales, Scaling scaling, int steps,
                        bool is_super) {
  const bool is_half = scales == ScaleKind::kFloat16, is_wide = scales == ScaleKind::kFloat32;
  const bool scales_only = scaling == Scaling::kScale, adds = scaling == Scaling::kAdded;
  switch (kind) {
    case CodeKind::k4:
      if (is_wide || scaling == Scaling::kNone) return false;
      if (is_super) return is_half && ((adds && steps < 4) || (scales_only && steps == 1));
      if (adds) return is_half && steps == 2;
      return steps == 4 || (steps == 2 && (is_half || !scales_only));
    case CodeKind::kTable4:
      if (is_wide || !scales_only) return false;
      return steps == 2 ? is_half || !is_super : steps == 1 && !is_half && !is_super;
    case CodeKind::k5:
      return is_half && steps == 2 && (adds || (scales_only && !is_super));
    case CodeKind::k6:
      return is_half && is_super && steps == 1 && scales_only;
    case CodeKind::kInt8:
      if (scaling == Scaling::kNone) return steps == 4 && is_half && !is_super;
      return !is_wide && !is_super && (adds ? steps == 4 : scales_only && steps == 2);
    case CodeKind::kE4M3:
      if (scaling == Scaling::kNone) return steps == 4 && is_half && !is_super;
      return !is_half && !is_super && scales_only && steps == 4;
  }
  return false;
}
// Of rows that have one scale none looks at its type.
inline ScaleKind form_scales(const CodeShape& shape) {
  return shape.is_row_scaled ? ScaleKind::kFloat16 : shape.scales;
}
inline int form_steps(const CodeShape& shape) {
  return shape.is_row_scaled ? kUnitSteps : scaled_steps(shape);
}
inline bool has_form(const CodeShape& shape) {
  if (shape.in_features % kUnitColumns != 0) return false;
  if (shape.is_super && shape.super_columns != kBlockColumns) return false;
  return has_form(shape.kind, form_scales(shape), scaling_of(shape), form_steps(shape),
                  shape.is_super);
}

constexpr int kTableCopies = 16;  // of values of two codes, in as many banks
constexpr int kPairTableBytes = 256 * kTableCopies * 4;

}  // namespace nanovllm::cuda
