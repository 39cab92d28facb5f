// The gated delta rule on rows of a chunk, by forward substitution: Yang et al., arXiv 2412.06464,
// without the inverse of a matrix. With S the state at the chunk's start, G_t the sum of g up to
// row t, and k, q, v, beta of its rows,
//   u_t = beta_t (v_t - e^G_t S^T k_t - sum over i < t of (e^(G_t - G_i) k_i.k_t) u_i)
//   o_t =               e^G_t S^T q_t + sum over i <= t of (e^(G_t - G_i) k_i.q_t) u_i
// No exponent is positive. Every element is one chain of additions, over ascending dimensions of k
// or over ascending rows, whatever the rows beside it: so prefill, decode and verification give the
// same bits.
//
// kRows x kCols is the register tile of products with many rows, kFewCols the columns with one row.
#pragma once

#include "backend/cpu/layer/row_kernel.h"
#include "backend/cpu/recurrent/delta_task.h"
#include "backend/cpu/simd.h"

namespace nanovllm {
namespace {

#if defined(__AVX512F__)
constexpr int kDeltaRows = 6, kDeltaCols = 4, kDeltaFewCols = 8;
#elif defined(__AVX2__)
constexpr int kDeltaRows = 2, kDeltaCols = 2, kDeltaFewCols = 2;
#else
constexpr int kDeltaRows = 2, kDeltaCols = 1, kDeltaFewCols = 1;
#endif

// Act: float or uint16_t (bfloat16).
template <typename Act>
class DeltaKernel {
 public:
  static void keys(const DeltaRows& rows) {
    const int64_t stride = int64_t{2} * rows.key_dim;
    float* const k = rows.vectors;
    float* const q = rows.vectors + rows.key_dim;
    convolve(rows, rows.k_channel, rows.key_dim, k, stride);
    convolve(rows, rows.q_channel, rows.key_dim, q, stride);
    for (int r = 0; r < rows.count; ++r) {
      normalise(k + r * stride, rows.key_dim, 1);
      normalise(q + r * stride, rows.key_dim, rows.q_scale);
      store_key(rows, k + r * stride, rows.first + r);
    }
    const int seen = (rows.first + rows.count + kLanes - 1) / kLanes * kLanes;
    multiply(rows.vectors, 2 * rows.count, rows.key_dim, static_cast<const Act*>(rows.keys),
             kDeltaChunk, seen, rows.products, kDeltaChunk);
  }

  static void values(const DeltaRows& rows, const DeltaHead& head) {
    const int width = rows.padded_dim;
    for (int64_t i = 0; i < int64_t{rows.count} * width; i += kLanes) {
      Simd::store(rows.v + i, Simd::set1(0));  // its padding too
    }
    convolve(rows, head.v_channel, rows.value_dim, rows.v, width);
    if (head.state != nullptr) {
      multiply(rows.vectors, 2 * rows.count, rows.key_dim, head.state, width, width, rows.reads,
               width);
    } else {
      for (int64_t i = 0; i < int64_t{2} * rows.count * width; i += kLanes) {
        Simd::store(rows.reads + i, Simd::set1(0));
      }
    }
    for (int r = 0; r < rows.count; ++r) {
      substitute(rows, head, r);
      finish(rows, head, r);
    }
  }

  static void fold(const DeltaFold& fold) {
    const int width = fold.padded_dim;
    const double last = fold.gates[kDeltaChunk - 1];
    float weights[kDeltaChunk];
    decays(last, fold.gates, kDeltaChunk, weights);
    for (int i = 0; i < kDeltaChunk; ++i) {
      const Floats weight = Simd::set1(weights[i]);
      for (int c = 0; c < width; c += kLanes) {
        const int64_t at = int64_t{i} * width + c;
        Simd::store(fold.weighted + at, Simd::mul(weight, Simd::load(fold.u + at)));
      }
    }
    const auto* const keys = static_cast<const Act*>(fold.keys);
    for (int64_t i = 0; i < int64_t{fold.key_dim} * kDeltaChunk; i += kLanes) {
      Simd::store(fold.wide_keys + i, Simd::load(keys + i));
    }
    const float decay = decay_of(last);
    int k = 0;
    for (; k + kDeltaRows <= fold.key_dim; k += kDeltaRows) fold_rows<kDeltaRows>(fold, k, decay);
    for (; k < fold.key_dim; ++k) fold_rows<1>(fold, k, decay);
  }

  static DeltaKernels table() { return {keys, values, fold}; }

 private:
  // e^x of a sum or a difference of sums of g, which is not positive.
  static float decay_of(double x) {
    float lane[kLanes];
    Simd::store(lane, exp(Simd::set1(static_cast<float>(x))));
    return lane[0];
  }
  // weights[i] = e^(last - sums[i]) for i < count; what is behind in the last vector means nothing.
  static void decays(double last, const double* sums, int count, float* weights) {
    float difference[kLanes];
    for (int i = 0; i < count; i += kLanes) {
      for (int j = 0; j < kLanes; ++j) {
        difference[j] = i + j < count ? static_cast<float>(last - sums[i + j]) : 0.0f;
      }
      Simd::store(weights + i, exp(Simd::load(difference)));
    }
  }

  // SiLU of the convolution of some channels, [rows][stride].
  static void convolve(const DeltaRows& rows, int64_t channel, int64_t count, float* out,
                       int64_t stride) {
    for (int64_t c = 0; c < count; c += kLanes) {
      for (int r = 0; r < rows.count; ++r) {
        Floats sum = Simd::set1(0);
        for (int j = 0; j < rows.conv_width; ++j) {
          const auto* const input = static_cast<const Act*>(rows.inputs[r + j]) + channel;
          const float* const weight = rows.conv_weight + j * rows.num_channels + channel;
          sum = Simd::fma(load_at(weight, c, count), load_at(input, c, count), sum);
        }
        store_at(out + r * stride, c, count, silu(sum));
      }
    }
  }

  // x = scale x / sqrt(sum of its squares), as numbers of type Act.
  static void normalise(float* x, int n, float scale) {
    const float squares = mean_square(x, n) * static_cast<float>(n);
    const Floats factor = Simd::set1(scale / __builtin_sqrtf(squares + 1e-6f));
    for (int i = 0; i < n; i += kLanes) {
      store_at(x, i, n, rounded(Simd::mul(load_at(x, i, n), factor)));
    }
  }
  static Floats rounded(Floats x) {
    Act lane[kLanes];
    Simd::store(lane, x);
    return Simd::load(lane);
  }

  static void store_key(const DeltaRows& rows, const float* k, int row) {
    Act* const column = static_cast<Act*>(rows.keys) + row;
    Act lane[kLanes];
    for (int i = 0; i < rows.key_dim; i += kLanes) {
      Simd::store(lane, load_at(k, i, rows.key_dim));
      for (int j = 0; j < kLanes && i + j < rows.key_dim; ++j) {
        column[int64_t{i + j} * kDeltaChunk] = lane[j];
      }
    }
  }

  // out[count][cols] = x[count][depth] m[depth][cols], where cols fill whole vectors.
  template <typename M>
  static void multiply(const float* x, int count, int depth, const M* m, int64_t m_stride, int cols,
                       float* out, int64_t out_stride) {
    int row = 0;
    for (; row + kDeltaRows <= count; row += kDeltaRows) {
      multiply_rows<kDeltaRows, kDeltaCols>(x + int64_t{row} * depth, depth, m, m_stride, cols,
                                            out + row * out_stride, out_stride);
    }
    for (; row < count; row += 2) {
      multiply_rows<2, kDeltaFewCols>(x + int64_t{row} * depth, depth, m, m_stride, cols,
                                      out + row * out_stride, out_stride);
    }
  }
  template <int kRows, int kCols, typename M>
  static void multiply_rows(const float* x, int depth, const M* m, int64_t m_stride, int cols,
                            float* out, int64_t out_stride) {
    int c = 0;
    for (; c + kCols * kLanes <= cols; c += kCols * kLanes) {
      multiply_tile<kRows, kCols>(x, depth, m + c, m_stride, out + c, out_stride);
    }
    for (; c < cols; c += kLanes) {
      multiply_tile<kRows, 1>(x, depth, m + c, m_stride, out + c, out_stride);
    }
  }
  template <int kRows, int kCols, typename M>
  static void multiply_tile(const float* x, int depth, const M* m, int64_t m_stride, float* out,
                            int64_t out_stride) {
    Floats sum[kRows][kCols];
    for (auto& row : sum) {
      for (Floats& element : row) element = Simd::set1(0);
    }
    for (int d = 0; d < depth; ++d) {
      Floats column[kCols];
      for (int c = 0; c < kCols; ++c) column[c] = Simd::load(m + d * m_stride + c * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Floats factor = Simd::set1(x[int64_t{r} * depth + d]);
        for (int c = 0; c < kCols; ++c) sum[r][c] = Simd::fma(factor, column[c], sum[r][c]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kCols; ++c) Simd::store(out + r * out_stride + c * kLanes, sum[r][c]);
    }
  }

  // Row r: its u into the log, and its result into the place of S^T q.
  static void substitute(const DeltaRows& rows, const DeltaHead& head, int r) {
    const int t = rows.first + r;
    float for_u[kDeltaChunk], for_o[kDeltaChunk];
    decays(head.gates[t], head.gates, t + 1, for_u);
    const float* const with_k = rows.products + int64_t{2} * r * kDeltaChunk;
    const float* const with_q = with_k + kDeltaChunk;
    for (int i = 0; i <= t; i += kLanes) {
      const Floats decay = Simd::load(for_u + i);
      Simd::store(for_o + i, Simd::mul(decay, Simd::load(with_q + i)));
      Simd::store(for_u + i, Simd::mul(decay, Simd::load(with_k + i)));
    }
    const float decay = decay_of(head.gates[t]);
    int c = 0;
    for (; c + kDeltaFewCols * kLanes <= rows.padded_dim; c += kDeltaFewCols * kLanes) {
      substitute_tile<kDeltaFewCols>(rows, head, r, c, decay, for_u, for_o);
    }
    for (; c < rows.padded_dim; c += kLanes) {
      substitute_tile<1>(rows, head, r, c, decay, for_u, for_o);
    }
  }
  template <int kCols>
  static void substitute_tile(const DeltaRows& rows, const DeltaHead& head, int r, int col,
                              float decay, const float* for_u, const float* for_o) {
    const int t = rows.first + r, width = rows.padded_dim;
    Floats sum_u[kCols], sum_o[kCols];
    for (int c = 0; c < kCols; ++c) sum_u[c] = sum_o[c] = Simd::set1(0);
    for (int i = 0; i < t; ++i) {
      const Floats weight_u = Simd::set1(for_u[i]), weight_o = Simd::set1(for_o[i]);
      const float* const u = head.u + int64_t{i} * width + col;
      for (int c = 0; c < kCols; ++c) {
        const Floats value = Simd::load(u + c * kLanes);
        sum_u[c] = Simd::fma(weight_u, value, sum_u[c]);
        sum_o[c] = Simd::fma(weight_o, value, sum_o[c]);
      }
    }
    const Floats of_state = Simd::set1(decay), less_of_state = Simd::set1(-decay);
    const Floats beta = Simd::set1(head.beta[r]), less_beta = Simd::set1(-head.beta[r]);
    const Floats own = Simd::set1(for_o[t]);
    const float* const read_k = rows.reads + int64_t{2} * r * width + col;
    float* const read_q = rows.reads + (int64_t{2} * r + 1) * width + col;
    for (int c = 0; c < kCols; ++c) {
      const Floats v = Simd::load(rows.v + int64_t{r} * width + col + c * kLanes);
      const Floats missing = Simd::fma(less_of_state, Simd::load(read_k + c * kLanes), v);
      const Floats u = Simd::fma(less_beta, sum_u[c], Simd::mul(beta, missing));
      Simd::store(head.u + int64_t{t} * width + col + c * kLanes, u);
      const Floats o = Simd::fma(own, u, sum_o[c]);
      Simd::store(read_q + c * kLanes, Simd::fma(of_state, Simd::load(read_q + c * kLanes), o));
    }
  }

  // The norm and the gate of row r's result.
  static void finish(const DeltaRows& rows, const DeltaHead& head, int r) {
    const float* const o = rows.reads + (int64_t{2} * r + 1) * rows.padded_dim;
    const auto* const z = static_cast<const Act*>(head.z) + r * head.z_stride;
    auto* const out = static_cast<Act*>(head.out) + r * head.out_stride;
    const int n = rows.value_dim;
    const Floats factor = Simd::set1(1 / __builtin_sqrtf(mean_square(o, n) + head.eps));
    for (int i = 0; i < n; i += kLanes) {
      const Floats normed =
          Simd::mul(Simd::mul(load_at(o, i, n), factor), load_at(head.norm, i, n));
      store_at(out, i, n, Simd::mul(normed, silu(load_at(z, i, n))));
    }
  }

  // Rows k .. k + kRows - 1 of the state.
  template <int kRows>
  static void fold_rows(const DeltaFold& fold, int k, float decay) {
    int c = 0;
    for (; c + kDeltaCols * kLanes <= fold.padded_dim; c += kDeltaCols * kLanes) {
      fold_tile<kRows, kDeltaCols>(fold, k, c, decay);
    }
    for (; c < fold.padded_dim; c += kLanes) fold_tile<kRows, 1>(fold, k, c, decay);
  }
  template <int kRows, int kCols>
  static void fold_tile(const DeltaFold& fold, int k, int col, float decay) {
    const int width = fold.padded_dim;
    const Floats of_state = Simd::set1(decay);
    Floats sum[kRows][kCols];
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kCols; ++c) {
        const int64_t at = int64_t{k + r} * width + col + c * kLanes;
        sum[r][c] = fold.state != nullptr ? Simd::mul(of_state, Simd::load(fold.state + at))
                                          : Simd::set1(0);
      }
    }
    const float* const keys = fold.wide_keys + int64_t{k} * kDeltaChunk;
    for (int i = 0; i < kDeltaChunk; ++i) {
      const float* const weighted = fold.weighted + int64_t{i} * width + col;
      for (int r = 0; r < kRows; ++r) {
        const Floats key = Simd::set1(keys[int64_t{r} * kDeltaChunk + i]);
        for (int c = 0; c < kCols; ++c) {
          sum[r][c] = Simd::fma(key, Simd::load(weighted + c * kLanes), sum[r][c]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kCols; ++c) {
        Simd::store(fold.next + int64_t{k + r} * width + col + c * kLanes, sum[r][c]);
      }
    }
  }
};

}  // namespace
}  // namespace nanovllm
