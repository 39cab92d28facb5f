// Codes and scales in blocks of ggml's quantised types, one entry and one function a type.
#include <algorithm>
#include <array>
#include <cstring>

#include "io/coded_matrix.h"
#include "io/ggml_formats.h"
#include "io/ggml_unpack.h"

namespace nanovllm::ggml {
namespace {

// 0, 1, 2, ... less an offset.
template <int kBits, int kOffset>
constexpr auto kIntegers = [] {
  std::array<float, 1 << kBits> values{};
  for (int i = 0; i < 1 << kBits; ++i) values[i] = static_cast<float>(i - kOffset);
  return values;
}();

constexpr std::array<float, 16> floats(const int8_t (&from)[16]) {
  std::array<float, 16> values{};
  std::copy(std::begin(from), std::end(from), values.begin());
  return values;
}
constexpr auto kIq4Floats = floats(kIq4Values), kMxfp4Floats = floats(kMxfp4Values);

float read_one_scale(const uint8_t* block, GroupScale* scales) {
  scales[0] = {.scale = read_half(block)};
  return scales[0].scale;
}

float read_scale_and_minimum(const uint8_t* block, GroupScale* scales) {
  scales[0] = {.scale = read_half(block), .offset = read_half(block + 2)};
  return scales[0].scale + scales[0].offset;
}

float read_mxfp4_scale(const uint8_t* block, GroupScale* scales) {
  scales[0] = {.scale = scale_of_mxfp4(block)};
  return largest_of_mxfp4(block);
}

float read_q45_k_scales(const uint8_t* block, GroupScale* scales) {
  const float d = read_half(block), d_min = read_half(block + 2);
  const ScalesAndMinima packed(block + 4);
  for (int group = 0; group < kSuper / 32; ++group) {
    scales[group] = {d, d_min, static_cast<int8_t>(packed.scale[group]),
                     static_cast<int8_t>(packed.minimum[group])};
  }
  return d + d_min;
}

float read_q2_k_scales(const uint8_t* block, GroupScale* scales) {
  const float d = read_half(block + 80), d_min = read_half(block + 82);
  for (int group = 0; group < kSuper / 16; ++group) {
    scales[group] = {d, d_min, static_cast<int8_t>(block[group] & 15),
                     static_cast<int8_t>(block[group] >> 4)};
  }
  return d + d_min;
}

float read_q3_k_scales(const uint8_t* block, GroupScale* scales) {
  const float d = read_half(block + 108);
  for (int group = 0; group < kSuper / 16; ++group) {
    scales[group] = {.scale = d, .scale_code = static_cast<int8_t>(scale_of_q3_k(block, group))};
  }
  return d;
}

float read_q6_k_scales(const uint8_t* block, GroupScale* scales) {
  const float d = read_half(block + 208);
  for (int group = 0; group < kSuper / 16; ++group) {
    scales[group] = {.scale = d, .scale_code = static_cast<int8_t>(block[192 + group])};
  }
  return d;
}

float read_iq4_xs_scales(const uint8_t* block, GroupScale* scales) {
  const float d = read_half(block);
  for (int group = 0; group < kSuper / 32; ++group) {
    scales[group] = {.scale = d, .scale_code = static_cast<int8_t>(scale_of_iq4_xs(block, group))};
  }
  return d;
}

constexpr auto kNone = CodeFormat::Offset::kNone, kMinimum = CodeFormat::Offset::kMinimum;

constexpr CodeFormat group_codes(int bits, const float* values, CodeFormat::Offset offset = kNone,
                                 ScaleKind scales = ScaleKind::kFloat16) {
  return {WeightLayout::kGroup, bits, values, kSmall, 0, scales, offset};
}

constexpr CodeFormat super_codes(int bits, const float* values, int group,
                                 CodeFormat::Offset offset = kNone) {
  return {WeightLayout::kSuper, bits, values, group, kSuper, ScaleKind::kFloat16, offset};
}

constexpr GgmlCodes kCodes[] = {
    {2, group_codes(4, kIntegers<4, 8>.data()), unpack_q45<false, false>, read_one_scale},
    {3, group_codes(4, kIntegers<4, 0>.data(), kMinimum), unpack_q45<false, true>,
     read_scale_and_minimum},
    {6, group_codes(5, kIntegers<5, 16>.data()), unpack_q45<true, false>, read_one_scale},
    {7, group_codes(5, kIntegers<5, 0>.data(), kMinimum), unpack_q45<true, true>,
     read_scale_and_minimum},
    {8,
     {WeightLayout::kByte, 8, kSignedCodes.data(), kSmall},
     [](const uint8_t* block, uint8_t* codes) { std::memcpy(codes, block + 2, kSmall); },
     read_one_scale},
    // Codes of 2 and 3 bits take 4.
    {10, super_codes(4, kIntegers<4, 0>.data(), 16, kMinimum), unpack_q2_k, read_q2_k_scales},
    {11, super_codes(4, kIntegers<4, 4>.data(), 16), unpack_q3_k, read_q3_k_scales},
    {12, super_codes(4, kIntegers<4, 0>.data(), 32, kMinimum), unpack_q45_k<false>,
     read_q45_k_scales},
    {13, super_codes(5, kIntegers<5, 0>.data(), 32, kMinimum), unpack_q45_k<true>,
     read_q45_k_scales},
    {14, super_codes(6, kIntegers<6, 32>.data(), 16), unpack_q6_k, read_q6_k_scales},
    {20, group_codes(4, kIq4Floats.data()),
     [](const uint8_t* block, uint8_t* codes) { unpack_nibbles<16>(block + 2, codes); },
     read_one_scale},
    {23, super_codes(4, kIq4Floats.data(), 32), unpack_iq4_xs, read_iq4_xs_scales},
    {39, group_codes(4, kMxfp4Floats.data(), kNone, ScaleKind::kBFloat16),
     [](const uint8_t* block, uint8_t* codes) { unpack_nibbles<16>(block + 1, codes); },
     read_mxfp4_scale},
};

}  // namespace
}  // namespace nanovllm::ggml

namespace nanovllm {

const GgmlCodes* find_ggml_codes(uint32_t id) {
  const auto* found = std::ranges::find(ggml::kCodes, id, &GgmlCodes::id);
  return found == std::end(ggml::kCodes) ? nullptr : found;
}

int wider_code_bits(std::string_view name) {
  for (const GgmlCodes& codes : ggml::kCodes) {
    const GgmlFormat* format = find_ggml_format(codes.id);
    if (format == nullptr || format->name != name) continue;
    const int bits = codes.format.code_bits;
    return bits * format->block_elements > format->block_bytes * 8 ? bits : 0;
  }
  return 0;
}

}  // namespace nanovllm
