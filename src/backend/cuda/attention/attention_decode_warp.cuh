// What one warp does to a tile of 16 tokens in decode attention:
//   S^T [16 tokens, 8 heads] = K Q^T,   O^T [head_dim, 8 heads] += V^T P^T.
#pragma once

#include "backend/cuda/attention/attention_decode_merge.cuh"
#include "backend/cuda/attention/attention_decode_ring.cuh"
#include "backend/cuda/device/mma.cuh"
#include "backend/cuda/device/vector.cuh"

namespace nanovllm::cuda {

// A lane's part of a row of kDim elements, which four lanes share: elements
// 32i + 8c .. + 7, with c = lane % 4. A rotation's partners lie in the same lane.
template <int kDim>
struct RowPart {
  static constexpr int kVectors = kDim / 32;
  uint32_t x[kVectors][4];

  // Zeros of a null row.
  __device__ void load(const __nv_bfloat16* row, int lane) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      uint4 v = {};
      if (row != nullptr) v = *reinterpret_cast<const uint4*>(row + 32 * i + lane % 4 * 8);
      x[i][0] = v.x;
      x[i][1] = v.y;
      x[i][2] = v.z;
      x[i][3] = v.w;
    }
  }
  __device__ void store(void* row, int lane) const {
    auto* target = reinterpret_cast<uint4*>(row) + lane % 4;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      target[4 * i] = make_uint4(x[i][0], x[i][1], x[i][2], x[i][3]);
    }
  }

  // Per-head RMSNorm (unless `norm` is null) and rotary embedding of all of the head's elements, as
  // in rope.cu.
  __device__ void norm_and_turn(const float* norm, float eps, const float* cos_sin, int lane) {
    constexpr int kHalf = kVectors / 2;
    const int first = lane % 4 * 8;
    float y[kVectors][8];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 pair = unpack_bfloat16(x[i][e]);
        y[i][2 * e] = pair.x;
        y[i][2 * e + 1] = pair.y;
        sum += pair.x * pair.x + pair.y * pair.y;
      }
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (norm != nullptr) {
      const float scale = rsqrtf(sum / kDim + eps);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
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
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[i][e] = pack_bfloat16(y[i][2 * e], y[i][2 * e + 1]);
    }
  }
};

// Where things are in the keys of a tile, or in its values, as they lie in the cache: bytes.
template <int kDim>
struct TileLayout {
  static constexpr int kRowBytes = kDim * 2;
  // Neighbouring chunks of 16 bytes that swizzle() exchanges.
  static constexpr int kChunks = kDim % 64 == 0 ? 8 : 4;

  __device__ static int offset(int token, int chunk) {
    return token * kRowBytes + (chunk * 8 ^ KvView::swizzle(kDim, token)) * 2;
  }
  // [step]: offset(token, 2 * step + first_chunk); first_chunk is 0 or 1.
  struct Steps {
    int row, chunk;
    __device__ Steps(int token, int first_chunk)
        : row(token * kRowBytes), chunk((first_chunk * 8 ^ KvView::swizzle(kDim, token)) / 8) {}
    __device__ int operator[](int step) const {
      const int first = 2 * step;
      return row + (first / kChunks * kChunks + (chunk ^ first % kChunks)) * 16;
    }
  };
};

// Rows of queries in shared memory, on their way into the tensor cores' operand.
template <int kDim>
constexpr int kQueryStride = kDim * 2 + 16;  // bytes: eight rows' chunks lie in different banks

// A warp's registers: r = lane / 4 and c = lane % 4 in what follows.
template <int kDim, int kHeadTiles>
struct DecodeWarp {
  using Layout = TileLayout<kDim>;
  static constexpr int kSteps = kDim / 16;
  static constexpr int kQueryBytes = 8 * kHeadTiles * kQueryStride<kDim>;

  uint32_t q[kHeadTiles][kSteps][2];
  float o[kHeadTiles][kSteps][4];  // elements 16i + r (first two) and 16i + r + 8, heads 2c, 2c + 1
  float largest[kHeadTiles][2], total[kHeadTiles][2];  // of heads 2c, 2c + 1; total: of this lane

  // `queries`: rows in shared memory; what is behind the last head does not matter.
  __device__ void begin(const char* queries, int lane) {
    const uint32_t source = shared_address(queries) + lane % 8 * kQueryStride<kDim> + lane / 8 * 16;
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
#pragma unroll
      for (int i = 0; i < kSteps; i += 2) {
        uint32_t x[4];
        load_matrices(x, source + t * 8 * kQueryStride<kDim> + i * 32);
        q[t][i][0] = x[0];
        q[t][i][1] = x[1];
        q[t][i + 1][0] = x[2];
        q[t][i + 1][1] = x[3];
      }
      largest[t][0] = largest[t][1] = -INFINITY;
      total[t][0] = total[t][1] = 0;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) o[t][i][0] = o[t][i][1] = o[t][i][2] = o[t][i][3] = 0;
    }
  }

  // Of tokens r (first two) and r + 8, heads 2c and 2c + 1.
  __device__ void scores(float (&s)[kHeadTiles][4], const char* keys, int lane) const {
    const uint32_t tile = shared_address(keys);
    const typename Layout::Steps offset(lane % 16, lane / 16);
    float odd[kHeadTiles][4] = {};  // two sums, that products need not wait for each other
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      uint32_t k[4];
      load_matrices(k, tile + offset[i]);
#pragma unroll
      for (int t = 0; t < kHeadTiles; ++t) {
        mma_bf16(i % 2 == 0 ? s[t] : odd[t], k, q[t][i][0], q[t][i][1]);
      }
    }
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[t][e] += odd[t][e];
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
          for (int i = 0; i < kSteps; ++i) {
            o[t][i][h] *= keep;
            o[t][i][2 + h] *= keep;
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

  __device__ void add_values(const float (&weights)[kHeadTiles][4], const char* values, int lane) {
    const uint32_t tile = shared_address(values);
    const typename Layout::Steps offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    uint32_t p[kHeadTiles][2];
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
      p[t][0] = transpose_matrix(pack_bfloat16(weights[t][0], weights[t][1]));
      p[t][1] = transpose_matrix(pack_bfloat16(weights[t][2], weights[t][3]));
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      uint32_t v[4];
      load_matrices_transposed(v, tile + offset[i]);
#pragma unroll
      for (int t = 0; t < kHeadTiles; ++t) mma_bf16(o[t][i], v, p[t][0], p[t][1]);
    }
  }

  // Leaves what has come of the tiles.
  __device__ void finish(const Partial<kDim>& piece, int num_heads, int lane) {
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
#pragma unroll
      for (int step = 4; step < 32; step <<= 1) {
        total[t][0] += __shfl_xor_sync(0xffffffffu, total[t][0], step);
        total[t][1] += __shfl_xor_sync(0xffffffffu, total[t][1], step);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int head = 8 * t + lane % 4 * 2 + h;
        if (head >= num_heads) continue;
        float* const values = piece.values(head) + lane / 4;
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          values[16 * i] = o[t][i][h];
          values[16 * i + 8] = o[t][i][2 + h];
        }
        *piece.largest(head) = largest[t][h];
        *piece.total(head) = total[t][h];
      }
    }
    __syncwarp();
  }
};

}  // namespace nanovllm::cuda
