// Blocks of ggml's quantised types to numbers, one function a type.
#include <algorithm>
#include <cstring>

#include "io/ggml_formats.h"
#include "io/ggml_unpack.h"

namespace nanovllm::ggml {
namespace {

template <int kCount, int kOffset = 0, typename Code>
void multiply(const Code* codes, float scale, float* out, float minimum = 0) {
  for (int i = 0; i < kCount; ++i) {
    out[i] = scale * static_cast<float>(codes[i] - kOffset) - minimum;
  }
}

// 32 codes in 16 bytes that choose one of 16 values.
void look_up(const int8_t* values, const uint8_t* codes, float scale, float* out) {
  float scaled[16];
  multiply<16>(values, scale, scaled);
  for (int i = 0; i < kSmall / 2; ++i) {
    out[i] = scaled[codes[i] & 15];
    out[i + kSmall / 2] = scaled[codes[i] >> 4];
  }
}

template <bool kHasFifthBits>
float decode_q45_k(const uint8_t* block, float* out) {
  const float d = read_half(block), d_min = read_half(block + 2);
  const ScalesAndMinima packed(block + 4);
  uint8_t codes[kSuper];
  unpack_q45_k<kHasFifthBits>(block, codes);
  for (int group = 0; group < kSuper / 32; ++group) {
    multiply<32>(codes + 32 * group, d * static_cast<float>(packed.scale[group]), out + 32 * group,
                 d_min * static_cast<float>(packed.minimum[group]));
  }
  return d + d_min;
}

template <bool kHasFifthBits, bool kHasMinimum>
float decode_q45(const uint8_t* block, float* out) {
  constexpr int kOffset = kHasMinimum ? 0 : kHasFifthBits ? 16 : 8;
  const float d = read_half(block), minimum = kHasMinimum ? -read_half(block + 2) : 0.0f;
  uint8_t codes[kSmall];
  unpack_q45<kHasFifthBits, kHasMinimum>(block, codes);
  multiply<kSmall, kOffset>(codes, d, out, minimum);
  return d - minimum;
}

float decode_q8_0(const uint8_t* block, float* out) {
  const float d = read_half(block);
  int8_t codes[kSmall];
  std::memcpy(codes, block + 2, sizeof codes);
  multiply<kSmall>(codes, d, out);
  return d;
}

float decode_q2_k(const uint8_t* block, float* out) {
  const float d = read_half(block + 80), d_min = read_half(block + 82);
  uint8_t codes[kSuper];
  unpack_q2_k(block, codes);
  for (int group = 0; group < kSuper / 16; ++group) {
    const float scale = d * static_cast<float>(block[group] & 15);
    const float minimum = d_min * static_cast<float>(block[group] >> 4);
    multiply<16>(codes + 16 * group, scale, out + 16 * group, minimum);
  }
  return d + d_min;
}

float decode_q3_k(const uint8_t* block, float* out) {
  const float d = read_half(block + 108);
  uint8_t codes[kSuper];
  unpack_q3_k(block, codes);
  for (int group = 0; group < kSuper / 16; ++group) {
    multiply<16, 4>(codes + 16 * group, d * static_cast<float>(scale_of_q3_k(block, group)),
                    out + 16 * group);
  }
  return d;
}

float decode_q6_k(const uint8_t* block, float* out) {
  const float d = read_half(block + 208);
  int8_t scales[kSuper / 16];
  std::memcpy(scales, block + 192, sizeof scales);
  uint8_t codes[kSuper];
  unpack_q6_k(block, codes);
  for (int group = 0; group < kSuper / 16; ++group) {
    multiply<16, 32>(codes + 16 * group, d * static_cast<float>(scales[group]), out + 16 * group);
  }
  return d;
}

float decode_iq4_nl(const uint8_t* block, float* out) {
  const float d = read_half(block);
  look_up(kIq4Values, block + 2, d, out);
  return d;
}

float decode_iq4_xs(const uint8_t* block, float* out) {
  const float d = read_half(block);
  for (int group = 0; group < kSuper / 32; ++group) {
    const float scale = d * static_cast<float>(scale_of_iq4_xs(block, group));
    look_up(kIq4Values, block + 8 + 16 * group, scale, out + 32 * group);
  }
  return d;
}

float decode_mxfp4(const uint8_t* block, float* out) {
  look_up(kMxfp4Values, block + 1, scale_of_mxfp4(block), out);
  return largest_of_mxfp4(block);
}

constexpr GgmlFormat kFormats[] = {
    {0, "F32", 1, 4, DType::kFloat32},
    {1, "F16", 1, 2, DType::kFloat16},
    {2, "Q4_0", 32, 18, {}, decode_q45<false, false>},
    {3, "Q4_1", 32, 20, {}, decode_q45<false, true>},
    {6, "Q5_0", 32, 22, {}, decode_q45<true, false>},
    {7, "Q5_1", 32, 24, {}, decode_q45<true, true>},
    {8, "Q8_0", 32, 34, {}, decode_q8_0},
    {10, "Q2_K", 256, 84, {}, decode_q2_k},
    {11, "Q3_K", 256, 110, {}, decode_q3_k},
    {12, "Q4_K", 256, 144, {}, decode_q45_k<false>},
    {13, "Q5_K", 256, 176, {}, decode_q45_k<true>},
    {14, "Q6_K", 256, 210, {}, decode_q6_k},
    {20, "IQ4_NL", 32, 18, {}, decode_iq4_nl},
    {23, "IQ4_XS", 256, 136, {}, decode_iq4_xs},
    {30, "BF16", 1, 2, DType::kBFloat16},
    {39, "MXFP4", 32, 17, {}, decode_mxfp4},
};

}  // namespace
}  // namespace nanovllm::ggml

namespace nanovllm {

const GgmlFormat* find_ggml_format(uint32_t id) {
  const auto* found = std::ranges::find(ggml::kFormats, id, &GgmlFormat::id);
  return found == std::end(ggml::kFormats) ? nullptr : found;
}

}  // namespace nanovllm
