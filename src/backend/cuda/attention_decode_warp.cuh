// What one warp does to a tile of 16 tokens in decode attention:
//   S^T [16 tokens, 8 heads] = K Q^T,   O^T [head_dim, 8 heads] += V^T P^T.
// Both operands may take the elements of a head and the tokens of a tile in any order, as long as
// they agree; the order here lets every lane read 16 bytes of shared memory at once.
#pragma once

#include <type_traits>

#include "backend/cuda/attention_decode_share.cuh"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/vector.cuh"

namespace nanovllm::cuda {

// Into this multiprocessor's cache: constants that are wanted soon.
__device__ inline void touch_line(const float* p) {
  [[maybe_unused]] float x, y, z, w;
  asm volatile("ld.global.v4.f32 {%0,%1,%2,%3}, [%4];\n"
               : "=f"(x), "=f"(y), "=f"(z), "=f"(w)
               : "l"(p));
}

// A warp's registers: r = lane / 4 and c = lane % 4 in what follows.
template <int kDim, int kHeadTiles>
struct DecodeWarp {
  static constexpr int kKSteps = kDim / 32;
  static constexpr int kVector = kDim % 64 == 0 ? 8 : 4;  // neighbouring elements of V a lane
  static constexpr int kVSteps = kDim / (8 * kVector);

  // Elements 32i + 8c .. + 7 of tokens r and r + 8: the columns of two products in an order that
  // makes 16 bytes a lane of them; q has the same.
  uint32_t k[2][kKSteps][4];
  // Elements (8i + r) * kVector .. of tokens 2c, 2c + 1, 2c + 8, 2c + 9.
  uint32_t v[kVSteps][4][kVector / 2];
  uint32_t q[kHeadTiles][kKSteps][4];  // of head r
  // Of elements (8i + r) * kVector + 2j (first two) and + 2j + 1, heads 2c and 2c + 1.
  float o[kHeadTiles][kVSteps][kVector / 2][4];
  float largest[kHeadTiles][2], total[kHeadTiles][2];  // of heads 2c, 2c + 1; total: of this lane

  using Vector = std::conditional_t<kVector == 8, uint4, uint2>;  // of V

  // `tile`: [16, kDim] in shared memory.
  __device__ void load_k(const char* tile, int lane) {
    const char* p = tile + (lane / 4 * kDim + lane % 4 * 8) * 2;
#pragma unroll
    for (int i = 0; i < kKSteps; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 x = *reinterpret_cast<const uint4*>(p + (8 * half * kDim + 32 * i) * 2);
        k[half][i][0] = x.x, k[half][i][1] = x.y, k[half][i][2] = x.z, k[half][i][3] = x.w;
      }
    }
  }

  __device__ void load_v(const char* tile, int lane) {
    const char* p = tile + (lane % 4 * 2 * kDim + lane / 4 * kVector) * 2;
#pragma unroll
    for (int i = 0; i < kVSteps; ++i) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const int offset = ((t & 1) + (t & 2) * 4) * kDim + 8 * kVector * i;
        keep_value(v[i][t], *reinterpret_cast<const Vector*>(p + offset * 2));
      }
    }
  }

  __device__ static void keep_value(uint32_t (&x)[kVector / 2], Vector y) {
    x[0] = y.x, x[1] = y.y;
    if constexpr (kVector == 8) x[2] = y.z, x[3] = y.w;
  }

  // The newest token, which was not in memory when its tile was fetched.
  struct NewToken {
    uint32_t key[kKSteps][4];  // as q[0] holds a head
    Vector value[kVSteps];     // elements (8i + r) * kVector ..
  };
  __device__ void put_key(const NewToken& x, int token, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane / 4 + 8 * half != token) continue;
#pragma unroll
      for (int i = 0; i < kKSteps; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) k[half][i][e] = x.key[i][e];
      }
    }
  }
  __device__ void put_value(const NewToken& x, int token, int lane) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      if (lane % 4 * 2 + (t & 1) + (t & 2) * 4 != token) continue;
#pragma unroll
      for (int i = 0; i < kVSteps; ++i) keep_value(v[i][t], x.value[i]);
    }
  }

  // Per-head RMSNorm and rotary embedding of all of the head's elements, as in rope.cu; x as q[0].
  // A rotation's partner lies in the same lane.
  __device__ static void norm_and_turn(uint32_t (&x)[kKSteps][4], const float* norm, float eps,
                                       const float* cos_sin, int lane) {
    constexpr int kHalf = kKSteps / 2;
    const int first = lane % 4 * 8;
    float y[kKSteps][8];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kKSteps; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 pair = unpack_bfloat16(x[i][e]);
        y[i][2 * e] = pair.x, y[i][2 * e + 1] = pair.y;
        sum += pair.x * pair.x + pair.y * pair.y;
      }
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (norm != nullptr) {
      const float scale = rsqrtf(sum / kDim + eps);
#pragma unroll
      for (int i = 0; i < kKSteps; ++i) {
        float weight[8];
        load_vector(weight, norm + 32 * i + first);
#pragma unroll
        for (int e = 0; e < 8; ++e) y[i][e] *= scale * weight[e];
      }
    }
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      float cosine[8], sine[8];
      load_vector(cosine, cos_sin + 32 * i + first);
      load_vector(sine, cos_sin + kDim / 2 + 32 * i + first);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float a = y[i][e], b = y[i + kHalf][e];
        y[i][e] = a * cosine[e] - b * sine[e];
        y[i + kHalf][e] = b * cosine[e] + a * sine[e];
      }
    }
#pragma unroll
    for (int i = 0; i < kKSteps; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[i][e] = pack_bfloat16(y[i][2 * e], y[i][2 * e + 1]);
    }
  }

  // `row` is the first of `num_heads` query heads; heads beyond count as zeros.
  __device__ void begin(const __nv_bfloat16* row, int num_heads, int lane) {
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
      const int head = 8 * t + lane / 4;
#pragma unroll
      for (int i = 0; i < kKSteps; ++i) {
        uint4 x = {};
        if (head < num_heads)
          x = *reinterpret_cast<const uint4*>(row + head * kDim + 32 * i + lane % 4 * 8);
        q[t][i][0] = x.x, q[t][i][1] = x.y, q[t][i][2] = x.z, q[t][i][3] = x.w;
      }
      largest[t][0] = largest[t][1] = -INFINITY;
      total[t][0] = total[t][1] = 0;
#pragma unroll
      for (int i = 0; i < kVSteps; ++i) {
#pragma unroll
        for (int j = 0; j < kVector / 2; ++j)
          o[t][i][j][0] = o[t][i][j][1] = o[t][i][j][2] = o[t][i][j][3] = 0;
      }
    }
  }

  __device__ void scores(float (&s)[kHeadTiles][4]) const {
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
      s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0;
#pragma unroll
      for (int i = 0; i < kKSteps; ++i) {
        const uint32_t a[4] = {k[0][i][0], k[1][i][0], k[0][i][1], k[1][i][1]};
        const uint32_t b[4] = {k[0][i][2], k[1][i][2], k[0][i][3], k[1][i][3]};
        mma_bf16(s[t], a, q[t][i][0], q[t][i][1]);
        mma_bf16(s[t], b, q[t][i][2], q[t][i][3]);
      }
    }
  }

  // Online softmax; s becomes the tile's weights. Tokens first .. end - 1 of the tile count.
  __device__ void weigh(float (&s)[kHeadTiles][4], const AttentionParams& params, int first,
                        int end, int lane) {
    const int token = lane / 4;
    float multiplier = params.scale * kLog2E;
    if (params.soft_cap > 0) {
      const float inner = params.scale / params.soft_cap;
      multiplier = params.soft_cap * kLog2E;
#pragma unroll
      for (int t = 0; t < kHeadTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[t][e] = tanhf(s[t][e] * inner);
      }
    }
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
      if (token < first || token >= end) s[t][0] = s[t][1] = -INFINITY;
      if (token + 8 < first || token + 8 >= end) s[t][2] = s[t][3] = -INFINITY;
      float now[2] = {fmaxf(s[t][0], s[t][2]) * multiplier, fmaxf(s[t][1], s[t][3]) * multiplier};
#pragma unroll
      for (int step = 4; step < 32; step <<= 1) {
        now[0] = fmaxf(now[0], __shfl_xor_sync(0xffffffffu, now[0], step));
        now[1] = fmaxf(now[1], __shfl_xor_sync(0xffffffffu, now[1], step));
      }
      if (__any_sync(0xffffffffu, now[0] > largest[t][0] || now[1] > largest[t][1])) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          now[h] = fmaxf(now[h], largest[t][h]);
          const float keep = exp2f(largest[t][h] - now[h]);
          largest[t][h] = now[h];
          total[t][h] *= keep;
#pragma unroll
          for (int i = 0; i < kVSteps; ++i) {
#pragma unroll
            for (int j = 0; j < kVector / 2; ++j) o[t][i][j][h] *= keep, o[t][i][j][2 + h] *= keep;
          }
        }
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[t][e] = exp2f(s[t][e] * multiplier - largest[t][e % 2]);
        total[t][e % 2] += s[t][e];
      }
    }
  }

  // Zeros in place of what is no token, so that a weight of 0 makes 0 of anything.
  __device__ void mask_v(int first, int end, int lane) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int token = lane % 4 * 2 + (t & 1) + (t & 2) * 4;
      if (token >= first && token < end) continue;
#pragma unroll
      for (int i = 0; i < kVSteps; ++i) {
#pragma unroll
        for (int j = 0; j < kVector / 2; ++j) v[i][t][j] = 0;
      }
    }
  }

  __device__ void add_values(const float (&weights)[kHeadTiles][4]) {
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
      const uint32_t b0 = transpose_matrix(pack_bfloat16(weights[t][0], weights[t][1]));
      const uint32_t b1 = transpose_matrix(pack_bfloat16(weights[t][2], weights[t][3]));
#pragma unroll
      for (int i = 0; i < kVSteps; ++i) {
#pragma unroll
        for (int j = 0; j < kVector / 2; ++j) {
          const uint32_t a[4] = {__byte_perm(v[i][0][j], v[i][1][j], 0x5410),
                                 __byte_perm(v[i][0][j], v[i][1][j], 0x7632),
                                 __byte_perm(v[i][2][j], v[i][3][j], 0x5410),
                                 __byte_perm(v[i][2][j], v[i][3][j], 0x7632)};
          mma_bf16(o[t][i][j], a, b0, b1);
        }
      }
    }
  }

  // The lanes' totals become the heads'.
  __device__ void finish() {
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
#pragma unroll
      for (int step = 4; step < 32; step <<= 1) {
        total[t][0] += __shfl_xor_sync(0xffffffffu, total[t][0], step);
        total[t][1] += __shfl_xor_sync(0xffffffffu, total[t][1], step);
      }
    }
  }

  // Calls f(head, element, x, largest, total) for the lane's vectors x of O.
  template <typename F>
  __device__ void for_each_vector(int num_heads, int lane, F&& f) const {
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int head = 8 * t + lane % 4 * 2 + h;
        if (head >= num_heads) continue;
#pragma unroll
        for (int i = 0; i < kVSteps; ++i) {
          float x[kVector];
#pragma unroll
          for (int j = 0; j < kVector / 2; ++j)
            x[2 * j] = o[t][i][j][h], x[2 * j + 1] = o[t][i][j][2 + h];
          f(head, (8 * i + lane / 4) * kVector, x, largest[t][h], total[t][h]);
        }
      }
    }
  }
};

}  // namespace nanovllm::cuda
