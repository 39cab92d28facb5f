// Matrix products in bfloat16 whose rows have the same bits for any number of rows, on Hopper.
//
// The steps of 16 neighbours along K are dealt to 8 parts that lie one behind the other, the first
// ones a step longer than the rest; each part is one chain of the tensor cores' sums from zero, and
// the parts' sums are added to zero in order. Which instruction makes a step, on which side the
// weights stand and how many rows there are changes no bit of that; see linear_parts_few.cu and
// linear_parts_many.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/linear/linear_skinny.h"

namespace nanovllm::cuda {

// Of products without a norm, kStore or kAdd.
struct PartsProduct : FusedProduct {
  DType out_dtype = DType::kBFloat16;  // with kStore
};
// Of one without a norm.
inline PartsProduct in_parts(const SkinnyProduct& product) { return {product, product.out_dtype}; }

constexpr int kNumParts = 8;
constexpr int kPartStep = 16;        // elements of K that are added at once
constexpr int kMaxFewPartsRows = 8;  // of linear_parts_few.cu

// Steps [first, first + count) of a part.
struct PartSteps {
  int first, count;
};
constexpr PartSteps steps_of_part(int in_features, int part) {
  const int steps = (in_features + kPartStep - 1) / kPartStep;
  const int longer = steps % kNumParts;
  const int first = part * (steps / kNumParts) + (part < longer ? part : longer);
  return {first, steps / kNumParts + (part < longer ? 1 : 0)};
}

// How a product of few rows is divided: groups of 8 `tiles` features, each a block's, whose warps
// are the parts.
struct FewPartsPlan {
  int tiles = 0;  // 0 = not for this kernel
  int groups = 0;
  int blocks = 0;
};

// How one of more rows is divided: tiles of 128 features and `rows` rows, each a cluster's whose
// blocks have neighbouring parts.
struct ManyPartsPlan {
  int rows = 0;  // of a tile; 0 = not for this kernel
  int cluster = 0;
  int feature_tiles = 0;
  int row_tiles = 0;
  int stages = 0;  // of chunks of 64 elements of K
  int blocks = 0;
  int received_offset = 0;  // in shared memory, bytes
  int shared_bytes = 0;
};
constexpr int kPartsTile = 128;                     // features
constexpr int kPartsStagedStride = kPartsTile + 4;  // floats
constexpr int kMaxPartsStages = 8;

// Whether there are such kernels for a weight, for any number of rows: a part has a step at least,
// and rows are whole vectors.
bool takes_parts(const PartsProduct& product);
// Whether a product of few rows was measured to be faster so than linear_skinny.cu's.
bool do_few_parts_pay(const PartsProduct& product);
FewPartsPlan plan_few_parts(const PartsProduct& product, int multiprocessors);
ManyPartsPlan plan_many_parts(const PartsProduct& product, int multiprocessors);

void launch_few_parts(cudaStream_t stream, const PartsProduct& product, const FewPartsPlan& plan);
void launch_many_parts(cudaStream_t stream, const PartsProduct& product, const ManyPartsPlan& plan);

}  // namespace nanovllm::cuda
