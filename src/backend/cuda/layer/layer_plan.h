// Which kernels compute the tails of layers: a pure function of shapes and of what a device has.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "backend/cuda/device/device_traits.h"
#include "backend/cuda/linear/linear_skinny.h"
#include "backend/cuda/linear/linear_wgmma.h"
#include "ops/backend.h"

namespace nanovllm::cuda {

enum class TailPath {
  kOpByOp,
  kOneKernel,    // layer_tail.cu
  kLargeKernel,  // layer_tail_large.cu
  kSkinnyChain,  // linear_skinny.cu's products, norms and activation in them
  kWgmmaChain,   // linear_wgmma.cu's
};
const char* to_string(TailPath path);

struct TailTraits {
  DeviceTraits device = {};
  bool deterministic = false;    // rows must not depend on their number
  bool has_tail_kernel = false;  // this engine, and so all of its ranks, holds the device's
  int world_size = 1;
  // Sums over the ranks of more bytes than this do not go to everybody at once.
  int64_t most_sum_bytes = std::numeric_limits<int64_t>::max();
};

// The products of a tail in their order: out, gate and up, down, the next layer's `in`. The last
// may have no weight: then its norm alone is the output. Rows, x and out are a step's.
using TailProducts = std::array<SkinnyProduct, 4>;

// No more rows than this have a path of their own.
constexpr int kMaxTailPathRows = kMaxWgmmaRows;

// Of products in bfloat16 of so many rows.
TailPath plan_tail(TailProducts products, int rows, const TailTraits& traits);
// The products' order in memory for linear_wgmma.cu, with norms between them in `norm`'s memory.
std::array<WgmmaProduct, 4> wgmma_chain(const TailProducts& products, const SplitNorm& norm);

// A product of a stack as far as plans look at it, with activations of type `act`.
SkinnyProduct shape_of(const Matrix& matrix, DType act, const Norm* norm);
// The products of layer i of a stack, likewise.
TailProducts tail_shapes(const StackSpec& spec, size_t i, DType act);
// Whether the paths above compute all that the layer asks for behind its core, given that it has
// the norms that they begin and end with.
bool honours(LayerSpec layer);
// The paths of layer i by rows, from 1 to kMaxTailPathRows.
std::vector<TailPath> plan_layer(const StackSpec& spec, size_t i, DType act,
                                 const TailTraits& traits);
// That of so many rows.
TailPath path_of(const std::vector<TailPath>& paths, int64_t rows);
// A positive number that differs with the plan of layers: ranks compare theirs.
int64_t fingerprint(const std::vector<std::vector<TailPath>>& layers);

}  // namespace nanovllm::cuda
