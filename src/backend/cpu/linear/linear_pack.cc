#include "backend/cpu/linear/linear_pack.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "backend/cpu/linear/code_pack.h"
#include "base/check.h"

namespace nanovllm {
namespace {

// element(i) is that of column i. In sixteen sums, which are added up by halves: the same however
// rows are packed.
template <typename Element>
void sum_groups_of(Element element, int64_t columns, int64_t group_columns, float* out,
                   int64_t stride) {
  constexpr int64_t kLanes = 16;
  for (int64_t begin = 0; begin < columns; begin += group_columns) {
    const int64_t end = std::min(columns, begin + group_columns);
    std::array<float, kLanes> sums = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += element(i + lane);
    }
    for (; i < end; ++i) sums[(i - begin) % kLanes] += element(i);
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (int64_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    }
    *out = sums[0];
    out += stride;
  }
}

}  // namespace

const LinearKernels& linear_kernels(Isa isa) {
  constexpr RowFormat kFloats = RowFormat::kTileFloats;
  static constexpr LinearKernels kPortable = {
      .bf16 = {linear_bf16_portable, kFloats, 4},
      .f32 = {linear_f32_portable, kFloats, 4},
      .codes_bf16 = {linear_bf16_portable, kFloats, 4, decode_to_bf16},
      .codes_f32 = {linear_f32_portable, kFloats, 4, decode_to_f32},
      .transpose = transpose_portable,
      .code_panel = nullptr,
      .bf16_to_f32 = bf16_to_f32_portable,
      .f16_to_f32 = f16_to_f32_portable,
      .f32_to_bf16 = f32_to_bf16_portable};
#if defined(__x86_64__)
  static constexpr LinearKernels kAvx2 = {.bf16 = {linear_bf16_avx2, kFloats, 5},
                                          .f32 = {linear_f32_avx2, kFloats, 6},
                                          .codes_bf16 = {linear_codes_avx2, kFloats, 5},
                                          .codes_f32 = {linear_codes_avx2, kFloats, 5},
                                          .transpose = transpose_avx2,
                                          .code_panel = code_panel_avx2,
                                          .bf16_to_f32 = bf16_to_f32_avx2,
                                          .f16_to_f32 = f16_to_f32_avx2,
                                          .f32_to_bf16 = f32_to_bf16_avx2};
  static constexpr LinearKernels kAvx512 = [] {
    LinearKernels kernels = kAvx2;
    kernels.bf16 = {linear_bf16_avx512, kFloats, 12};
    kernels.f32 = {linear_f32_avx512, kFloats, 12};
    kernels.codes_bf16 = kernels.codes_f32 = {linear_codes_avx512, kFloats, 12};
    kernels.transpose = transpose_avx512;
    kernels.code_panel = code_panel_avx512;
    return kernels;
  }();
  static constexpr LinearKernels kAvx512Bf16 = [] {
    LinearKernels kernels = kAvx512;
    kernels.bf16 = {linear_bf16_avx512bf16, RowFormat::kTilePairs, 12};
    kernels.codes_bf16 = {linear_codes_avx512bf16, RowFormat::kTilePairs, 12};
    return kernels;
  }();
  static constexpr LinearKernels kAmx = [] {
    LinearKernels kernels = kAvx512;
    kernels.bf16 = {linear_bf16_amx, RowFormat::kRows, 32};
    kernels.codes_bf16 = {linear_bf16_amx, RowFormat::kRows, 32, decode_rounded_avx512};
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

// Where an element of a row of plain numbers is.
const char* address(const SourceRow& row, int64_t col) {
  return row.data + col * static_cast<int64_t>(size_of(row.dtype));
}

void read_floats(const LinearKernels& kernels, const SourceRow& row, int64_t first, int64_t n,
                 float* out) {
  if (row.coded != nullptr) {
    const HostMatrix& matrix = *row.coded;
    return matrix.decoder->decode(matrix.file_row(row.row), matrix.first_col + first, n, out);
  }
  const bool is_bf16 = row.dtype == DType::kBFloat16;
  (is_bf16 ? kernels.bf16_to_f32 : kernels.f16_to_f32)(address(row, first), out, n);
}

// `count` elements of a row in another dtype; bfloat16 is rounded to nearest even.
void convert(const LinearKernels& kernels, const SourceRow& row, int64_t first, int64_t count,
             DType to, void* out) {
  if (row.coded == nullptr && row.dtype == to) {
    std::memcpy(out, address(row, first), static_cast<size_t>(count) * size_of(to));
  } else if (to == DType::kFloat32) {
    read_floats(kernels, row, first, count, static_cast<float*>(out));
  } else if (row.coded == nullptr && row.dtype == DType::kFloat32) {
    kernels.f32_to_bf16(address(row, first), static_cast<uint16_t*>(out), count);
  } else {
    // In pieces that stay in the cache; no block of a format is longer.
    constexpr int64_t kChunk = 256;
    float floats[kChunk];
    const int64_t begin = row.coded != nullptr ? row.coded->first_col + first : 0;
    for (int64_t i = 0, n = 0; i < count; i += n) {
      n = std::min(count - i, kChunk - (begin + i) % kChunk);
      read_floats(kernels, row, first + i, n, floats);
      kernels.f32_to_bf16(floats, static_cast<uint16_t*>(out) + i, n);
    }
  }
}

// A stretch of a row, converted to `dtype`: `columns` elements from `first` on, zeros behind them
// up to num_words words of 4 bytes.
void stage_row(const LinearKernels& kernels, const SourceRow& row, int64_t first, int64_t columns,
               DType dtype, int64_t num_words, void* out) {
  const bool is_there = row.data != nullptr || row.coded != nullptr;
  if (is_there) convert(kernels, row, first, columns, dtype, out);
  const size_t used = is_there ? static_cast<size_t>(columns) * size_of(dtype) : 0;
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
    for (const SourceRow& row : rows) {
      if (row.data == nullptr || row.dtype != dtype) return false;
    }
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
    for (int r = 0; r < num_rows; ++r) {
      stage_row(kernels, rows[r], first, count, dtype, words, staged[r]);
    }
    kernels.transpose(pointers.data(), num_rows, words,
                      static_cast<char*>(out) + word * num_rows * 4, num_rows, past_caches);
  }
}

void sum_groups(const void* row, DType dtype, bool to_bf16, int64_t columns, int64_t group_columns,
                float* out, int64_t stride) {
  if (dtype == DType::kBFloat16) {
    const auto* values = static_cast<const BFloat16*>(row);
    return sum_groups_of([=](int64_t i) { return to_float(values[i]); }, columns, group_columns,
                         out, stride);
  }
  const auto* values = static_cast<const float*>(row);
  if (to_bf16) {
    return sum_groups_of([=](int64_t i) { return to_float(to_bfloat16(values[i])); }, columns,
                         group_columns, out, stride);
  }
  sum_groups_of([=](int64_t i) { return values[i]; }, columns, group_columns, out, stride);
}

}  // namespace nanovllm
