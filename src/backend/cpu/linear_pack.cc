#include "backend/cpu/linear_pack.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace nanovllm {

const LinearKernels& linear_kernels(Isa isa) {
  static constexpr LinearKernels kPortable = {linear_bf16_portable,
                                              RowFormat::kTileFloats,
                                              4,
                                              linear_f32_portable,
                                              4,
                                              transpose_portable,
                                              nullptr,
                                              bf16_to_f32_portable,
                                              f16_to_f32_portable,
                                              f32_to_bf16_portable};
#if defined(__x86_64__)
  static constexpr LinearKernels kAvx2 = {linear_bf16_avx2,
                                          RowFormat::kTileFloats,
                                          5,
                                          linear_f32_avx2,
                                          6,
                                          transpose_avx2,
                                          code_panel_avx2,
                                          bf16_to_f32_avx2,
                                          f16_to_f32_avx2,
                                          f32_to_bf16_avx2};
  static constexpr LinearKernels kAvx512 = {linear_bf16_avx512,
                                            RowFormat::kTileFloats,
                                            12,
                                            linear_f32_avx512,
                                            12,
                                            transpose_avx512,
                                            code_panel_avx512,
                                            bf16_to_f32_avx2,
                                            f16_to_f32_avx2,
                                            f32_to_bf16_avx2};
  static constexpr LinearKernels kAvx512Bf16 = [] {
    LinearKernels kernels = kAvx512;
    kernels.bf16 = linear_bf16_avx512bf16;
    kernels.bf16_format = RowFormat::kTilePairs;
    return kernels;
  }();
  static constexpr LinearKernels kAmx = [] {
    LinearKernels kernels = kAvx512;
    kernels.bf16 = linear_bf16_amx;
    kernels.bf16_format = RowFormat::kRows;
    kernels.bf16_tile_rows = 32;
    return kernels;
  }();
  switch (isa) {
    case Isa::kAmx:
      return kAmx;
    case Isa::kAvx512Bf16:
      return kAvx512Bf16;
    case Isa::kAvx512:
      return kAvx512;
    case Isa::kAvx2:
      return kAvx2;
    case Isa::kPortable:
      break;
  }
#else
  NANOVLLM_CHECK(isa == Isa::kPortable);
#endif
  return kPortable;
}

namespace {

// n elements from one dtype to another; bfloat16 is rounded to nearest even.
void convert(const LinearKernels& kernels, const void* in, DType from, void* out, DType to,
             int64_t n) {
  if (from == to) {
    std::memcpy(out, in, static_cast<size_t>(n) * size_of(to));
  } else if (to == DType::kFloat32) {
    (from == DType::kBFloat16 ? kernels.bf16_to_f32 : kernels.f16_to_f32)(
        in, static_cast<float*>(out), n);
  } else if (from == DType::kFloat32) {
    kernels.f32_to_bf16(in, static_cast<uint16_t*>(out), n);
  } else {
    constexpr int64_t kChunk = 256;
    float floats[kChunk];
    for (int64_t i = 0; i < n; i += kChunk) {
      const int64_t count = std::min(kChunk, n - i);
      kernels.f16_to_f32(static_cast<const uint16_t*>(in) + i, floats, count);
      kernels.f32_to_bf16(floats, static_cast<uint16_t*>(out) + i, count);
    }
  }
}

// Decoded in pieces that stay in the cache; no block of a format is longer.
void decode(const LinearKernels& kernels, const SourceRow& row, int64_t first, int64_t count,
            DType to, void* out) {
  const int64_t col = row.coded->first_col + first, file_row = row.coded->file_row(row.row);
  if (to == DType::kFloat32) {
    row.coded->decoder->decode(file_row, col, count, static_cast<float*>(out));
    return;
  }
  constexpr int64_t kChunk = 256;
  float floats[kChunk];
  for (int64_t i = 0; i < count;) {
    const int64_t n = std::min(count - i, kChunk - (col + i) % kChunk);
    row.coded->decoder->decode(file_row, col + i, n, floats);
    kernels.f32_to_bf16(floats, static_cast<uint16_t*>(out) + i, n);
    i += n;
  }
}

// A stretch of a row, converted to `dtype`: `columns` elements from `first` on, zeros behind them
// up to num_words words of 4 bytes.
void stage_row(const LinearKernels& kernels, const SourceRow& row, int64_t first, int64_t columns,
               DType dtype, int64_t num_words, void* out) {
  int64_t real = columns;
  if (row.coded != nullptr) {
    decode(kernels, row, first, columns, dtype, out);
  } else if (row.data != nullptr) {
    convert(kernels, row.data + first * static_cast<int64_t>(size_of(row.dtype)), row.dtype, out,
            dtype, columns);
  } else {
    real = 0;
  }
  const size_t used = static_cast<size_t>(real) * size_of(dtype);
  std::memset(static_cast<char*>(out) + used, 0, static_cast<size_t>(num_words) * 4 - used);
}

}  // namespace

void pack_rows(const LinearKernels& kernels, std::span<const SourceRow> rows, int64_t columns,
               DType dtype, int64_t num_words, void* out, bool past_caches) {
  const int num_rows = static_cast<int>(rows.size());
  const int64_t per_word = 4 / static_cast<int64_t>(size_of(dtype));
  if (num_rows == 1) return stage_row(kernels, rows[0], 0, columns, dtype, num_words, out);
  std::array<const void*, kMaxPackedRows> pointers;
  const bool as_they_are = [&] {
    for (const SourceRow& row : rows)
      if (row.data == nullptr || row.dtype != dtype) return false;
    return columns == num_words * per_word;
  }();
  if (as_they_are) {
    for (int r = 0; r < num_rows; ++r) pointers[r] = rows[r].data;
    kernels.transpose(pointers.data(), num_rows, num_words, out, num_rows, past_caches);
    return;
  }
  constexpr int64_t kChunkWords = 128;
  alignas(64) uint32_t staged[kMaxPackedRows][kChunkWords];
  for (int r = 0; r < num_rows; ++r) pointers[r] = staged[r];
  for (int64_t word = 0; word < num_words; word += kChunkWords) {
    const int64_t words = std::min(kChunkWords, num_words - word);
    const int64_t first = word * per_word;
    const int64_t count = std::clamp<int64_t>(columns - first, 0, words * per_word);
    for (int r = 0; r < num_rows; ++r)
      stage_row(kernels, rows[r], first, count, dtype, words, staged[r]);
    kernels.transpose(pointers.data(), num_rows, words,
                      static_cast<char*>(out) + word * num_rows * 4, num_rows, past_caches);
  }
}

}  // namespace nanovllm
