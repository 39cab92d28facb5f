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
constexpr int kTableCopies = 16;  // of values of two codes, in as many banks
constexpr int kPairTableBytes = 256 * kTableCopies * 4;

}  // namespace nanovllm::cuda
