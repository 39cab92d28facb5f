// Products with weights in codes: y[R,N] = x[R,K] W[N,K]^T + bias, x in bfloat16; see
// code_product.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/device/device_traits.h"
#include "backend/cuda/device/row_tile.h"
#include "backend/cuda/linear/code_layout.h"
#include "ops/backend.h"

namespace nanovllm::cuda {

struct CodeProduct {
  CodeShape shape;
  const void* codes = nullptr;  // as code_layout.h has them
  int rows = 0;                 // R; of experts those of a tile at most
  int features = 0;             // N, of one of the weights one behind the other in `codes`
  const float* bias = nullptr;  // [weights, N], or none
  const void* x = nullptr;      // [R, K]
  void* out = nullptr;          // [R, N]
  DType out_dtype = DType::kBFloat16;
  int64_t out_stride = 0;  // elements from one row of `out` to the next
  // Of experts: rows of tiles, each with a weight of its own. N is a multiple of 16.
  const RowTile* tiles = nullptr;
  const int32_t* num_tiles = nullptr;
  int max_tiles = 0;
  const int32_t* tokens = nullptr;  // then row tokens[i] of x is meant by row i, or null
  // Then out[N / 2] = act(gate) * up, with the gate in the first half of N: shape.gated_rows is N.
  bool is_gated = false;
  Activation activation = Activation::kSilu;
};

// How a product is divided among blocks. A row's sums have one order for any number of rows.
struct CodePlan {
  int row_sets = 0;  // of 8 rows a block; 0 = not for this kernel
  int row_tiles = 0;
  int panels = 0;        // of 8 tiles of features, each a block's
  int split = 1;         // blocks of a cluster, which share K
  int steps = 0;         // blocks of 256 columns, of each of them at most
  int stages = 0;        // of so many steps codes and rows are in shared memory
  int scaled_steps = 0;  // of 16 columns, whose sums are scaled at once
  int stage_bytes = 0, x_offset = 0, prepared_offset = 0, ring_offset = 0;
  int64_t shared_bytes = 0;
};
CodePlan plan_code_product(const CodeProduct& product, const DeviceTraits& device);

void launch_code_product(cudaStream_t stream, const CodeProduct& product,
                         const DeviceTraits& device);

// out[count, K] (bfloat16) = rows [first, first + count) of the matrix, as MatrixDecoder::decode
// has them, rounded. `first` is a multiple of 16.
void launch_decode_codes(cudaStream_t stream, const CodeShape& shape, const void* codes,
                         int64_t first, int64_t count, void* out);
// Backend::embedding of a table in codes: out[num_tokens, K], activations being bfloat16.
void launch_embedding_of_codes(cudaStream_t stream, float* out, const int32_t* ids, int num_tokens,
                               const CodeShape& shape, const void* codes, int32_t first_id,
                               float scale);

}  // namespace nanovllm::cuda
