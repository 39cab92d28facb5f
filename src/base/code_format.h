// How a product computes with a quantised matrix in its codes, without making numbers of them.
#pragma once

#include <cstdint>

#include "base/scale_kind.h"

namespace nanovllm {

// What a weight is in memory.
enum class WeightLayout {
  kPlain,    // numbers
  kCoded12,  // bfloat16 in 12 bits, without loss
  kGroup,    // codes of 4 or 5 bits, a scale of 16 bits a group of columns
  kByte,     // codes of 8 bits, a scale a group of columns
  kSuper,    // codes of 4 to 6 bits, a scale of 8 bits a group, a scale of 16 bits for 256 columns
};
constexpr const char* to_string(WeightLayout layout) {
  switch (layout) {
    case WeightLayout::kPlain:
      return "plain";
    case WeightLayout::kCoded12:
      return "12-bit codes";
    case WeightLayout::kGroup:
      return "group";
    case WeightLayout::kByte:
      return "byte";
    case WeightLayout::kSuper:
      return "super";
  }
  return "";
}

// What the codes of a matrix stand for. With v = values[code], an element is
//   kGroup, kByte   s v           Offset::kNone
//                   s (v - z)     Offset::kZero: z is a whole number
//                   s v + m       Offset::kMinimum
//   where s is the group's scale times or over `factor`, rounded to float32;
//   kSuper          (s t) v - (m n), without offset (s t) v
//   where t and n are whole numbers of the group, s and m numbers of `super_columns` columns.
// Each operation is rounded to float32. That is what MatrixDecoder::decode gives, bit for bit.
struct CodeFormat {
  WeightLayout layout = WeightLayout::kGroup;  // or kByte or kSuper
  // 4, 5, 6 or 8
  int code_bits = 4;
  // [1 << code_bits]; bfloat16 has each of them. It lives as long as the program.
  const float* values = nullptr;
  // Columns that have a scale in common, from the matrix's first column on: 16 to 256, or all
  // (kByte), a multiple of 16 in any case but the last group's.
  int64_t group_columns = 32;
  // Of kSuper: a multiple of group_columns.
  int64_t super_columns = 0;
  // What holds every scale s and minimum m without loss: of kByte any kind, else not float32.
  ScaleKind scales = ScaleKind::kFloat16;
  enum class Offset { kNone, kZero, kMinimum } offset = Offset::kNone;
  float factor = 1;
  bool divides_by_factor = false;

  bool operator==(const CodeFormat&) const = default;
};
// Of 8 bits, whether codes are two's complement, or E4M3 but for NaN, which no code is.
bool are_int8(const CodeFormat& format);
bool are_e4m3(const CodeFormat& format);

// Of a group of columns of one row.
struct GroupScale {
  float scale = 0;   // s; of kSuper that of its super_columns
  float offset = 0;  // z or m; likewise
  // Of kSuper: t and n, which are in -128 .. 127.
  int8_t scale_code = 0;
  int8_t offset_code = 0;

  bool operator==(const GroupScale&) const = default;
};

constexpr int size_of(ScaleKind kind) { return kind == ScaleKind::kFloat32 ? 4 : 2; }  // bytes
// A scale or an offset at any address. What is written must be a number of that kind.
float read_scale(ScaleKind kind, const char* at);
void write_scale(ScaleKind kind, float number, char* at);

}  // namespace nanovllm
