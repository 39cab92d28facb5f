// What becomes of a tile's sums in linear_wgmma.cu: four neighbouring features of a row a thread
// and turn, so that a thread keeps its features for all of its rows. This code runs once a block,
// on the way from one product to the next: what counts is how long its longest chain of
// instructions is, so that sizes are template parameters and nothing is divided that need not be.
#pragma once

#include "backend/cuda/device/activation.cuh"
#include "backend/cuda/device/vector.cuh"
#include "backend/cuda/linear/linear_wgmma_plan.h"

namespace nanovllm::cuda {

// Rows of a tile, [kParts][kRows][kStagedStride], added up in the order of the parts.
template <int kParts, int kRows>
__device__ inline void read_sums(float (&sum)[4], const float* data, int row, int column) {
  const float* p = data + row * kStagedStride + column;
  float x[kParts][4];
#pragma unroll
  for (int part = 0; part < kParts; ++part) load_vector(x[part], p + part * kRows * kStagedStride);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    sum[e] = x[0][e];
#pragma unroll
    for (int part = 1; part < kParts; ++part) sum[e] += x[part][e];
  }
}

__device__ inline void load_if(float (&x)[4], const float* p, int64_t i, bool valid) {
  if (p != nullptr && valid) {
    load_vector(x, p + i);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = 0;
  }
}

// kStore and kAdd, of the kRows rows from first_row on. Constructed before the kernel waits: bias
// and norm depend on nothing.
template <int kThreads, int kParts, int kRows>
class RowEpilogue {
 public:
  __device__ RowEpilogue(const WgmmaProduct& p, const WgmmaPlan& plan, int tile, int first_row)
      : p_(p),
        tile_(tile),
        first_row_(first_row),
        row_(static_cast<int>(threadIdx.x) / kLanes),
        column_(static_cast<int>(threadIdx.x) % kLanes * 4) {
    feature_ = tile * plan.features + column_;
    exists_ = column_ < plan.features && feature_ < p.out_features;
    load_if(bias_, p.bias, feature_, exists_);
    load_if(factor_, p.next_norm.norm.weight, feature_, exists_);
  }

  // What the sums are added to, once it is there.
  __device__ void fetch() {
    if (p_.epilogue != Epilogue::kAdd) return;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int row = row_ + turn * kStep;
      load_if(old_[turn], static_cast<const float*>(p_.out), at(row), exists(row));
    }
  }

  // All lanes of a row come here together.
  __device__ void finish(const float* sums, const float* scale) {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int row = row_ + turn * kStep;
      if (row >= kRows) return;
      float y[4];
      read_sums<kParts, kRows>(y, sums, row, column_);
      const float s = p_.norm.weighted == nullptr ? 1.f : scale[first_row_ + row];
#pragma unroll
      for (int e = 0; e < 4; ++e) y[e] = y[e] * s + bias_[e];
      if (p_.epilogue == Epilogue::kAdd) {
        add(row, old_[turn], y);
      } else if (exists(row)) {
        store_vector(static_cast<__nv_bfloat16*>(p_.out) + at(row), y);
      }
    }
  }

 private:
  static constexpr int kLanes = kTileFeatures / 4;  // threads of a row
  static constexpr int kStep = kThreads / kLanes;   // rows a turn
  static constexpr int kTurns = (kRows + kStep - 1) / kStep;

  __device__ bool exists(int row) const {
    return exists_ && row < kRows && first_row_ + row < p_.rows;
  }
  __device__ int64_t at(int row) const {
    return static_cast<int64_t>(first_row_ + row) * p_.out_features + feature_;
  }

  __device__ void add(int row, const float (&old)[4], float (&y)[4]) {
    float squares = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      y[e] = exists(row) ? old[e] + round_to_bfloat16(y[e]) : 0;
      squares += y[e] * y[e];
    }
    if (exists(row)) store_vector(static_cast<float*>(p_.out) + at(row), y);
    if (p_.next_norm.weighted == nullptr) return;
#pragma unroll
    for (int step = kLanes / 2; step > 0; step >>= 1) {
      squares += __shfl_xor_sync(0xffffffffu, squares, step);
    }
    if (!exists(row)) return;
#pragma unroll
    for (int e = 0; e < 4; ++e) y[e] *= factor_[e];
    store_vector(static_cast<__nv_bfloat16*>(p_.next_norm.weighted) + at(row), y);
    if (column_ == 0) p_.next_norm.squares[tile_ * p_.rows + first_row_ + row] = squares;
  }

  const WgmmaProduct& p_;
  const int tile_, first_row_, row_, column_;
  int feature_;
  bool exists_;
  float bias_[4], factor_[4], old_[kTurns][4];
};

// kActAndMul: the first half of a tile are gates, the second half the same outputs' ups.
template <int kThreads, int kParts, int kRows>
class PairEpilogue {
 public:
  __device__ PairEpilogue(const WgmmaProduct& p, const WgmmaPlan& plan, int tile, int first_row)
      : p_(p),
        gating_(p.activation),
        first_row_(first_row),
        half_(plan.features / 2),
        row_(static_cast<int>(threadIdx.x) / kLanes),
        column_(static_cast<int>(threadIdx.x) % kLanes * 4) {
    feature_ = tile * half_ + column_;
    exists_ = column_ < half_ && feature_ < p.out_features / 2;
    load_if(gate_bias_, p.bias, feature_, exists_);
    load_if(up_bias_, p.bias, p.out_features / 2 + feature_, exists_);
  }

  __device__ void fetch() {}

  __device__ void finish(const float* sums, const float* scale) {
    if (p_.activation == Activation::kGelu) return finish<true>(sums, scale);
    finish<false>(sums, scale);
  }

 private:
  static constexpr int kLanes = kTileFeatures / 8;
  static constexpr int kStep = kThreads / kLanes;

  template <bool kIsGelu>
  __device__ void finish(const float* sums, const float* scale) {
    if (!exists_) return;
#pragma unroll 1
    for (int row = row_; row < kRows; row += kStep) {
      const int y_row = first_row_ + row;
      if (y_row >= p_.rows) return;
      float gate[4], up[4];
      read_sums<kParts, kRows>(gate, sums, row, column_);
      read_sums<kParts, kRows>(up, sums, row, half_ + column_);
      const float s = p_.norm.weighted == nullptr ? 1.f : scale[y_row];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        gate[e] = round_to_bfloat16(gate[e] * s + gate_bias_[e]);
        up[e] = round_to_bfloat16(up[e] * s + up_bias_[e]);
        up[e] = kIsGelu ? gate_and_mul<Activation::kGelu>(gate[e], up[e]) : gating_(gate[e], up[e]);
      }
      store_vector(static_cast<__nv_bfloat16*>(p_.out) +
                       static_cast<int64_t>(y_row) * (p_.out_features / 2) + feature_,
                   up);
    }
  }

  const WgmmaProduct& p_;
  const Gating gating_;
  const int first_row_, half_, row_, column_;
  int feature_;
  bool exists_;
  float gate_bias_[4], up_bias_[4];
};

}  // namespace nanovllm::cuda
