// Weights in codes become bfloat16: for products of many rows, which reads the codes and writes 2
// bytes a weight, and rows of a table of embeddings, which reads a row's codes and writes 4.
// Elements are computed as MatrixDecoder::decode does, each operation rounded to float32, and
// rounded once more.
#include <algorithm>

#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/linear/code_fragments.cuh"
#include "backend/cuda/linear/code_kinds.h"

namespace nanovllm::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kLineBytes = kUnitColumns * 2 + 16;  // of shared memory: rows share few banks

struct Decoding {
  CodeShape shape;
  const char* codes;
  int64_t first, count;  // rows
  __nv_bfloat16* out;    // [count, K]
};

__device__ inline float factored(const CodeShape& shape, float scale) {
  return shape.divides_by_factor ? __fdiv_rn(scale, shape.factor) : __fmul_rn(scale, shape.factor);
}

__device__ inline float element(OffsetKind offsets, float value, float scale, float offset) {
  switch (offsets) {
    case OffsetKind::kTaken:
    case OffsetKind::kScaledTaken:
      return __fmul_rn(scale, __fsub_rn(value, offset));
    case OffsetKind::kAdded:
      return __fadd_rn(__fmul_rn(scale, value), offset);
    case OffsetKind::kNone:
      break;
  }
  return __fmul_rn(scale, value);
}

// Of a step of a unit what a lane of the tile holds: pairs[i] as code_layout.h numbers them.
// `row_scales`: of the tile, or null.
template <CodeKind kKind>
__device__ void decode_step(float2 (&pairs)[4], const CodeShape& shape, const CodeValues& values,
                            const char* header, const char* unit, int unit_in_block, int step,
                            const float* row_scales, int lane) {
  const int row = lane / 4;
  uint32_t a[1][4];
  load_codes<kKind, 1>(a, unit, step, values, lane);
  PairOfScales scales;
  if (row_scales == nullptr) {
    scales = load_scales(shape, header, (unit_in_block * kUnitSteps + step) * 16, row);
  } else {
    scales.scale = {row_scales[row], row_scales[row + 8]};
  }
  const float s[2] = {factored(shape, scales.scale.x), factored(shape, scales.scale.y)};
  const float o[2] = {scales.offset.x, scales.offset.y};
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    const int i = pair % 2;
    float2 v = unpack_bfloat16(a[0][pair]);
    if (i == 1) v = {v.x * upper_unit(kKind), v.y * upper_unit(kKind)};
    pairs[pair] = {element(shape.offsets, v.x, s[i], o[i]),
                   element(shape.offsets, v.y, s[i], o[i])};
  }
}

// Values of codes of which nothing is taken. `table`: see fill_pair_table(), of a kind with one.
template <CodeKind kKind>
__device__ CodeValues plain_values(const CodeShape& shape, const uint32_t* table) {
  CodeValues values;
  const uint2 added = added_to_codes<kKind>(shape, {0, 0});
  values.added[0] = added.x;
  values.added[1] = added.y;
  values.pairs = table + threadIdx.x % kTableCopies;
  return values;
}

// Of a tile, or null where scales are in headers.
__device__ inline const float* row_scales_of(const CodeShape& shape, const char* codes,
                                             int64_t tile) {
  if (!shape.is_row_scaled) return nullptr;
  return reinterpret_cast<const float*>(codes + shape.row_scales_offset()) + tile * kTileRows;
}

// A unit's 16 rows to `lines` of shared memory.
template <CodeKind kKind>
__device__ void decode_unit(const CodeShape& shape, const CodeValues& values, const char* header,
                            const char* unit, int unit_in_block, const float* row_scales,
                            char* lines) {
  const int lane = lane_in_warp();
#pragma unroll
  for (int step = 0; step < kUnitSteps; ++step) {
    float2 v[4];
    decode_step<kKind>(v, shape, values, header, unit, unit_in_block, step, row_scales, lane);
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      char* const at =
          lines + (lane / 4 + pair % 2 * 8) * kLineBytes + step * 32 + lane % 4 * 4 + pair / 2 * 16;
      *reinterpret_cast<uint32_t*>(at) = pack_bfloat16(v[pair].x, v[pair].y);
    }
  }
}

// A warp decodes a block of a tile.
template <CodeKind kKind>
__global__ void __launch_bounds__(kWarps * 32) decode_kernel(const __grid_constant__ Decoding d) {
  __shared__ __align__(16) char lines[kWarps][kTileRows * kLineBytes];
  extern __shared__ uint4 memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const CodeShape& shape = d.shape;
  auto* const table = reinterpret_cast<uint32_t*>(memory);
  if constexpr (kKind == CodeKind::kTable4) {
    fill_pair_table(shape, table);
    __syncthreads();
  }
  release_successor();
  wait_for_predecessor();  // `out` is read until then
  const int64_t item = int64_t{blockIdx.x} * kWarps + warp;
  const int64_t tile = d.first / kTileRows + item / shape.num_blocks;
  const int block = static_cast<int>(item % shape.num_blocks);
  const int64_t row = (tile * kTileRows - d.first);
  if (row >= d.count) return;
  const char* const header = d.codes + tile * shape.tile_bytes + int64_t{block} * shape.block_bytes;
  const float* const row_scales = row_scales_of(shape, d.codes, tile);
  const CodeValues values = plain_values<kKind>(shape, table);
  const int units = min(kBlockUnits, shape.num_units - block * kBlockUnits);
  for (int unit = 0; unit < units; ++unit) {
    decode_unit<kKind>(shape, values, header, header + shape.header_bytes + unit * shape.unit_bytes,
                       unit, row_scales, lines[warp]);
    __syncwarp();
    const int column = (block * kBlockUnits + unit) * kUnitColumns + lane % 8 * 8;
#pragma unroll
    for (int i = lane / 8; i < kTileRows; i += 4) {
      if (row + i >= d.count || column >= shape.in_features) continue;
      *reinterpret_cast<uint4*>(d.out + (row + i) * shape.in_features + column) =
          *reinterpret_cast<const uint4*>(lines[warp] + i * kLineBytes + lane % 8 * 16);
    }
    __syncwarp();  // the lines are read until then
  }
}

struct RowsOfTable {
  CodeShape shape;
  const char* codes;
  const int32_t* ids;  // [T]
  int32_t first_id;
  float scale;
  float* out;  // [T, K]
};

// A block decodes a row: 4 neighbouring threads a unit of it, for the lanes of a tile that hold it.
template <CodeKind kKind>
__global__ void __launch_bounds__(kWarps * 32)
    embedding_kernel(const __grid_constant__ RowsOfTable t) {
  extern __shared__ uint4 memory[];
  const CodeShape& shape = t.shape;
  auto* const table = reinterpret_cast<uint32_t*>(memory);
  if constexpr (kKind == CodeKind::kTable4) {
    fill_pair_table(shape, table);
    __syncthreads();
  }
  wait_for_predecessor();
  release_successor();
  const int thread = static_cast<int>(threadIdx.x);
  float* const out = t.out + int64_t{blockIdx.x} * shape.in_features;
  const int64_t id = int64_t{t.ids[blockIdx.x]} - t.first_id;
  if (id < 0 || id >= shape.out_features) {
    for (int i = thread; i < shape.in_features; i += kWarps * 32) out[i] = 0;
    return;
  }
  const int64_t tile = id / kTileRows;
  const int row = static_cast<int>(id % kTileRows), upper = row / 8;
  const int lane = row % 8 * 4 + thread % 4;
  const float* const row_scales = row_scales_of(shape, t.codes, tile);
  const CodeValues values = plain_values<kKind>(shape, table);
  const auto scaled = [&t](float x) { return round_to_bfloat16(round_to_bfloat16(x) * t.scale); };
  for (int unit = thread / 4; unit < shape.num_units; unit += kWarps * 8) {
    const int block = unit / kBlockUnits, in_block = unit % kBlockUnits;
    const char* const header =
        t.codes + tile * shape.tile_bytes + int64_t{block} * shape.block_bytes;
    const char* const codes = header + shape.header_bytes + in_block * shape.unit_bytes;
#pragma unroll
    for (int step = 0; step < kUnitSteps; ++step) {
      float2 v[4];
      decode_step<kKind>(v, shape, values, header, codes, in_block, step, row_scales, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int column = unit * kUnitColumns + step * 16 + half * 8 + thread % 4 * 2;
        if (column >= shape.in_features) continue;
        const float2 x = upper == 0 ? v[half * 2] : v[half * 2 + 1];
        *reinterpret_cast<float2*>(out + column) = {scaled(x.x), scaled(x.y)};
      }
    }
  }
}

template <CodeKind kKind>
constexpr size_t table_bytes() {
  return kKind == CodeKind::kTable4 ? kPairTableBytes : 0;
}

}  // namespace

void launch_decode_codes(cudaStream_t stream, const CodeShape& shape, const void* codes,
                         int64_t first, int64_t count, void* out) {
  const int64_t items = int64_t{div_up(count, kTileRows)} * shape.num_blocks;
  with_kind(shape.kind, [&]<CodeKind kKind>() {
    launch(stream, decode_kernel<kKind>, div_up(items, kWarps), kWarps * 32, table_bytes<kKind>(),
           Decoding{shape, static_cast<const char*>(codes), first, count,
                    static_cast<__nv_bfloat16*>(out)});
  });
}

void launch_embedding_of_codes(cudaStream_t stream, float* out, const int32_t* ids, int num_tokens,
                               const CodeShape& shape, const void* codes, int32_t first_id,
                               float scale) {
  if (num_tokens == 0) return;
  with_kind(shape.kind, [&]<CodeKind kKind>() {
    launch(stream, embedding_kernel<kKind>, num_tokens, kWarps * 32, table_bytes<kKind>(),
           RowsOfTable{shape, static_cast<const char*>(codes), ids, first_id, scale, out});
  });
}

}  // namespace nanovllm::cuda
