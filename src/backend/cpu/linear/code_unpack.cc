// Panels in codes, read back to plain ones.
#include <array>
#include <cstring>

#include "backend/cpu/linear/code_blocks.h"
#include "backend/cpu/linear/code_pack.h"
#include "base/code_format.h"
#include "base/dtype.h"

namespace nanovllm {
namespace {

// The code of word i of a unit's vector q.
unsigned code_at(CodeKind kind, const char* unit, int q, int i) {
  const auto word = [&](int j) -> unsigned {
    uint16_t value;
    std::memcpy(&value, unit + (j * kVectorWords + i) * 2, sizeof value);
    return value;
  };
  switch (kind) {
    case CodeKind::k4:
      return word(q / 4) >> 4 * (q % 4) & 15;
    case CodeKind::k5: {
      if (q < 15) return word(q / 3) >> 5 * (q % 3) & 31;
      unsigned code = 0;
      for (int bit = 0; bit < 5; ++bit) code |= word(bit) >> 15 << bit;
      return code;
    }
    case CodeKind::k6: {
      const int first = q / 8 * 3, in_half = q % 8;
      if (in_half < 6) return word(first + in_half / 2) >> 6 * (in_half % 2) & 63;
      const bool is_seventh = in_half == 6;
      const unsigned high = word(first + 1) >> (is_seventh ? 12 : 14) & 3;
      return word(first + (is_seventh ? 0 : 2)) >> 12 | high << 4;
    }
    case CodeKind::kInt8:
    case CodeKind::kE4M3:
      break;
  }
  return word(q / 2) >> 8 * (q % 2) & 255;
}

// What a code stands for, as bfloat16.
uint16_t value_of(const CodePanels& shape, unsigned code) {
  switch (shape.kind) {
    case CodeKind::k4:
    case CodeKind::k5:
    case CodeKind::k6:
      return shape.values[code];
    case CodeKind::kInt8:
      return to_bfloat16(static_cast<float>(static_cast<int8_t>(code))).bits;
    case CodeKind::kE4M3:
      break;
  }
  return to_bfloat16(e4m3_to_float(static_cast<uint8_t>(code))).bits;
}

// An element is scale v + offset or, where offsets are zeros, scale (v - offset).
GroupScale scale_of(const CodeGroup<const char>& group, int column) {
  const CodePanels& shape = group.shape;
  const auto code = [](const char* at) { return static_cast<float>(static_cast<int8_t>(*at)); };
  GroupScale got;
  got.scale = read_scale(shape.scales, group.scale(column));
  if (shape.has_offsets) got.offset = read_scale(shape.scales, group.offset(column));
  if (shape.is_super) {
    got.scale *= code(group.scale_code(column));
    if (shape.has_offsets) got.offset *= -code(group.offset_code(column));
  } else if (shape.divides_by_factor) {
    got.scale /= shape.factor;
  } else {
    got.scale *= shape.factor;
  }
  return got;
}

void decode_to_plain(const CodePanels& shape, const char* panel, bool to_bf16, int64_t num_steps,
                     char* out) {
  int64_t k = 0;
  // Two k that are side by side for each column as bfloat16, one after the other as float32.
  const auto put = [&](int64_t at, int column, float value) {
    if (to_bf16) {
      const BFloat16 rounded = to_bfloat16(value);
      std::memcpy(out + at / 2 * kPanelStepBytes + column * 4 + at % 2 * 2, &rounded, 2);
    } else {
      std::memcpy(out + at * kPanelStepBytes + column * 4, &value, 4);
    }
  };
  const auto unpack_group = [&](const CodeGroup<const char>& group) {
    std::array<GroupScale, kPanelColumns> scales;
    for (int i = 0; i < kPanelColumns; ++i) scales[i] = scale_of(group, i);
    for (int64_t unit = 0; unit < group.num_units; ++unit, k += kCodeUnitColumns) {
      for (int q = 0; q < kUnitVectors; ++q) {
        for (int i = 0; i < kVectorWords; ++i) {
          const uint16_t bits =
              value_of(shape, code_at(shape.kind, group.units + unit * shape.unit_bytes, q, i));
          const int column = q % 2 * (kVectorWords / 2) + i / 2;
          const float v = to_float(BFloat16{bits});
          const auto& [s, offset, t, n] = scales[column];
          const float value = shape.offsets_are_zeros ? s * (v - offset)
                              : shape.has_offsets     ? s * v + offset
                                                      : s * v;
          put(k + q / 2 * 2 + i % 2, column, value);
        }
      }
    }
  };
  for_each_group(shape, panel, shape.num_groups, shape.num_units, unpack_group);
  const int64_t steps = to_bf16 ? k / 2 : k;
  std::memset(out + steps * kPanelStepBytes, 0,
              static_cast<size_t>((num_steps - steps) * kPanelStepBytes));
}

}  // namespace

void decode_to_f32(const CodePanels& shape, const char* panel, int64_t num_steps, char* out) {
  decode_to_plain(shape, panel, false, num_steps, out);
}

void decode_to_bf16(const CodePanels& shape, const char* panel, int64_t num_steps, char* out) {
  decode_to_plain(shape, panel, true, num_steps, out);
}

}  // namespace nanovllm
