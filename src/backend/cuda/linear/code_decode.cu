// Weights in codes become bfloat16, for products of many rows: reads the codes and writes 2 bytes a
// weight. Elements are computed as MatrixDecoder::decode does, each operation rounded to float32,
// and rounded once more.
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

// A unit's 16 rows to `lines` of shared memory. `row_scales`: of the tile, or null.
template <CodeKind kKind>
__device__ void decode_unit(const CodeShape& shape, const CodeValues& values, const char* header,
                            const char* unit, int unit_in_block, const float* row_scales,
                            char* lines) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4;
#pragma unroll
  for (int step = 0; step < kUnitSteps; ++step) {
    uint32_t a[1][4];
    load_codes<kKind, 1>(a, unit, step, values);
    const int column = (unit_in_block * kUnitSteps + step) * 16;
    PairOfScales scales;
    if (row_scales == nullptr) {
      scales = load_scales(shape, header, column, row);
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
      char* const at =
          lines + (row + i * 8) * kLineBytes + step * 32 + lane % 4 * 4 + pair / 2 * 16;
      *reinterpret_cast<uint32_t*>(at) = pack_bfloat16(element(shape.offsets, v.x, s[i], o[i]),
                                                       element(shape.offsets, v.y, s[i], o[i]));
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
  const float* const row_scales =
      shape.is_row_scaled
          ? reinterpret_cast<const float*>(d.codes + shape.row_scales_offset()) + tile * kTileRows
          : nullptr;
  CodeValues values;
  const uint2 added = added_to_codes<kKind>(shape, {0, 0});
  values.added[0] = added.x;
  values.added[1] = added.y;
  values.pairs = table + lane % kTableCopies;
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

}  // namespace

void launch_decode_codes(cudaStream_t stream, const CodeShape& shape, const void* codes,
                         int64_t first, int64_t count, void* out) {
  const int64_t items = int64_t{div_up(count, kTileRows)} * shape.num_blocks;
  with_kind(shape.kind, [&]<CodeKind kKind>() {
    launch(stream, decode_kernel<kKind>, div_up(items, kWarps), kWarps * 32,
           kKind == CodeKind::kTable4 ? size_t{kPairTableBytes} : 0,
           Decoding{shape, static_cast<const char*>(codes), first, count,
                    static_cast<__nv_bfloat16*>(out)});
  });
}

}  // namespace nanovllm::cuda
