#include "io/ggml_formats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "io/ggml_blocks.h"

namespace nanovllm {
namespace {

struct Format : GgmlFormat {
  DecodeBlock decode = nullptr;  // null: plain
};

constexpr int64_t kMaxBlockElements = 256;

// clang-format off
constexpr Format kFormats[] = {
    {{0, "F32", 1, 4, DType::kFloat32}},
    {{1, "F16", 1, 2, DType::kFloat16}},
    {{2, "Q4_0", 32, 18, {}}, decode_q4_0},
    {{3, "Q4_1", 32, 20, {}}, decode_q4_1},
    {{6, "Q5_0", 32, 22, {}}, decode_q5_0},
    {{7, "Q5_1", 32, 24, {}}, decode_q5_1},
    {{8, "Q8_0", 32, 34, {}}, decode_q8_0},
    {{10, "Q2_K", 256, 84, {}}, decode_q2_k},
    {{11, "Q3_K", 256, 110, {}}, decode_q3_k},
    {{12, "Q4_K", 256, 144, {}}, decode_q4_k},
    {{13, "Q5_K", 256, 176, {}}, decode_q5_k},
    {{14, "Q6_K", 256, 210, {}}, decode_q6_k},
    {{20, "IQ4_NL", 32, 18, {}}, decode_iq4_nl},
    {{23, "IQ4_XS", 256, 136, {}}, decode_iq4_xs},
    {{30, "BF16", 1, 2, DType::kBFloat16}},
    {{39, "MXFP4", 32, 17, {}}, decode_mxfp4},
};

// Those that are not read: of few bits, of integers, of ggml's own computations, removed ones.
constexpr std::pair<uint32_t, const char*> kOtherTypes[] = {
    {4, "Q4_2"},      {5, "Q4_3"},      {9, "Q8_1"},       {15, "Q8_K"},      {16, "IQ2_XXS"},
    {17, "IQ2_XS"},   {18, "IQ3_XXS"},  {19, "IQ1_S"},     {21, "IQ3_S"},     {22, "IQ2_S"},
    {24, "I8"},       {25, "I16"},      {26, "I32"},       {27, "I64"},       {28, "F64"},
    {29, "IQ1_M"},    {31, "Q4_0_4_4"}, {32, "Q4_0_4_8"},  {33, "Q4_0_8_8"},  {34, "TQ1_0"},
    {35, "TQ2_0"},    {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"}, {40, "NVFP4"},
    {41, "Q1_0"},
    // ik_llama.cpp's own.
    {133, "Q6_0"}, {134, "IQ1_BN"}, {135, "IQ2_BN"}, {137, "IQ2_K"}, {138, "IQ3_K"}, {139, "IQ4_K"},
    {140, "IQ5_K"}, {141, "IQ6_K"}, {144, "IQ4_KS"}, {145, "IQ2_KS"}, {146, "IQ4_KSS"},
    {151, "Q8_KV"}, {152, "IQ5_KS"}, {153, "IQ2_KT"}, {154, "IQ3_KT"}, {155, "IQ4_KT"},
    {156, "IQ3_KS"}, {157, "IQ2_KL"}, {158, "IQ1_KT"}, {202, "Q4_0_R8"}, {206, "Q5_0_R4"},
    {208, "Q8_0_R8"}, {210, "Q2_K_R4"}, {211, "Q3_K_R4"}, {212, "Q4_K_R4"}, {213, "Q5_K_R4"},
    {214, "Q6_K_R4"}, {216, "IQ2_XXS_R4"}, {217, "IQ2_XS_R4"}, {218, "IQ3_XXS_R4"},
    {219, "IQ1_S_R4"}, {220, "IQ4_NL_R4"}, {221, "IQ3_S_R4"}, {222, "IQ2_S_R4"}, {223, "IQ4_XS_R8"},
    {229, "IQ1_M_R4"}, {230, "BF16_R16"}, {233, "Q6_0_R4"}, {335, "IQ2_BN_R4"}, {337, "IQ2_K_R4"},
    {338, "IQ3_K_R4"}, {339, "IQ4_K_R4"}, {340, "IQ5_K_R4"}, {344, "IQ4_KS_R4"}, {352, "IQ5_KS_R4"},
    {353, "MXFP4_R8"}, {398, "Q8_KV_R8"}, {399, "Q8_K_R8"},
};
// clang-format on

class BlockDecoder final : public MatrixDecoder {
 public:
  BlockDecoder(const Format& format, const void* data, int64_t cols, std::string place)
      : format_(format),
        data_(static_cast<const uint8_t*>(data)),
        row_bytes_(cols / format.block_elements * format.block_bytes),
        place_(std::move(place)) {}

  void decode(int64_t row, int64_t col, int64_t count, float* out) const override {
    const int64_t size = format_.block_elements;
    for (int64_t done = 0; done < count;) {
      const int64_t block = (col + done) / size, skipped = (col + done) % size;
      const int64_t n = std::min(size - skipped, count - done);
      const uint8_t* from = data_ + row * row_bytes_ + block * format_.block_bytes;
      if (n == size) {
        decode_block(from, out + done, row, block);
      } else {
        std::array<float, kMaxBlockElements> whole;
        decode_block(from, whole.data(), row, block);
        std::copy_n(whole.data() + skipped, n, out + done);
      }
      done += n;
    }
  }

 private:
  void decode_block(const uint8_t* from, float* out, int64_t row, int64_t block) const {
    if (std::isfinite(format_.decode(from, out))) return;
    throw_error(ErrorCode::kCorruptData,
                "{}: block {} of row {} has a scale that is no number; download the file again",
                place_, block, row);
  }

  const Format& format_;
  const uint8_t* const data_;
  const int64_t row_bytes_;
  const std::string place_;
};

const Format* find_format(uint32_t id) {
  const auto* found = std::ranges::find(kFormats, id, &Format::id);
  return found == std::end(kFormats) ? nullptr : found;
}

}  // namespace

const GgmlFormat* find_ggml_format(uint32_t id) { return find_format(id); }

std::string_view ggml_type_name(uint32_t id) {
  if (const Format* format = find_format(id)) return format->name;
  const auto* other = std::ranges::find(kOtherTypes, id, &std::pair<uint32_t, const char*>::first);
  return other == std::end(kOtherTypes) ? "" : other->second;
}

std::unique_ptr<MatrixDecoder> make_ggml_decoder(const GgmlFormat& format, const void* data,
                                                 int64_t rows, int64_t cols, std::string place) {
  const Format* found = find_format(format.id);
  NANOVLLM_CHECK(found != nullptr && found->decode != nullptr && rows >= 0 &&
                 cols % format.block_elements == 0);
  return std::make_unique<BlockDecoder>(*found, data, cols, std::move(place));
}

}  // namespace nanovllm
