// Kernels of mixtures of experts. A step's pairs of a row and an expert that it chose are sorted by
// expert; products are of tiles, each some neighbouring pairs of one expert. How many tiles there
// are is known on the device only: blocks share out what they find.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/device/row_tile.h"
#include "ops/backend.h"

namespace nanovllm::cuda {

constexpr int kMaxExperts = 1024;

// Of one step, in device memory. P = T * num_active pairs.
struct ExpertStep {
  int num_rows = 0;           // T
  float* logits = nullptr;    // [T, router rows]
  int32_t* ids = nullptr;     // [T, num_active] chosen experts, the best first
  float* scores = nullptr;    // [T, num_active] their weights
  int32_t* places = nullptr;  // [T, num_active] among the sorted pairs; -1 = another rank's
  int32_t* tokens = nullptr;  // [P] the sorted pairs' rows
  RowTile* tiles = nullptr;
  int32_t* num_tiles = nullptr;
  void* gathered = nullptr;  // [P, H] act: the rows of x in the order of the pairs, if wanted;
                             // later the experts' outputs
  void* mlp = nullptr;       // [P, I] act
};

struct RouterParams {
  Routing::Score score = Routing::Score::kSoftmax;
  const float* correction = nullptr;  // or none
  int num_experts = 0;                // of all ranks
  int num_logits = 0;                 // experts, and the shared one's gate
  int num_groups = 1, num_active_groups = 1, num_active = 0;
  bool renormalise = false;
  float scale = 1;
  int first = 0, count = 0;  // this rank's experts
};

// What the logits make of the rest; x [T, row_bytes] is gathered if row_bytes > 0, a multiple
// of 16.
void launch_route_and_sort(cudaStream_t stream, const RouterParams& params, const ExpertStep& step,
                           int tile_rows, const void* x, int row_bytes);

// Of the tiles' rows: out[pair] = x[pair] W[expert]^T + bias, or act(gate) * up of that.
struct ExpertProduct {
  int num_experts = 0;           // this rank's
  int out_features = 0;          // rows of an expert's W
  int in_features = 0;           // K
  const void* weight = nullptr;  // [experts, out_features, K] act
  const float* bias = nullptr;   // [experts, out_features], or none
  bool is_gated = false;         // the first half of W's rows is the gate, the second up
  Activation activation = Activation::kSilu;
  const void* x = nullptr;          // [P, K] act; of launch_few() [T, K] or [P, K]
  const int32_t* tokens = nullptr;  // then [T, K], and row tokens[pair] of it is meant
  void* out = nullptr;              // [P, out_features or its half] act
  const RowTile* tiles = nullptr;
  const int32_t* num_tiles = nullptr;
  int max_pairs = 0;
  int max_tiles = 0;
  // Not by the kernel before this one.
  bool tiles_are_older = false;
};

// For few rows, what follows the router's logits in two kernels, without tiles: gate and up go to
// gate_up.out = down.x [P, I], and the result of launch_combine() to down.out [T, H]. H and I are
// multiples of 8.
constexpr int kMaxFewRows = 2, kMaxFewPairs = 64;
void launch_few(cudaStream_t stream, const RouterParams& router, const ExpertStep& step,
                const ExpertProduct& gate_up, const ExpertProduct& down, const void* shared,
                DType dtype, int num_multiprocessors);

// For any shape: tiles of kPlainTileRows.
constexpr int kPlainTileRows = 8;
void launch_expert_product(cudaStream_t stream, const ExpertProduct& product, DType dtype,
                           int num_multiprocessors);

// On devices with wgmma, in bfloat16, where K and out are multiples of 8 wide and the activation is
// not kGelu: tiles of one of these many rows.
constexpr int kSmallTileRows = 32, kLargeTileRows = 256;
// Of weights in codes, for other kernels.
constexpr int kFewCodeRows = 8, kCodeTileRows = 16;
void launch_expert_wgmma(cudaStream_t stream, const ExpertProduct& product, int tile_rows,
                         int num_multiprocessors);

// out[T, H] = sum of scores * outputs of the row's experts, best first, + the shared one's output
// times the sigmoid of its gate's logit. `shared` may be null.
void launch_combine(cudaStream_t stream, void* out, DType dtype, const RouterParams& params,
                    const ExpertStep& step, const void* shared, int hidden);

}  // namespace nanovllm::cuda
