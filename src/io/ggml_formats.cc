#include "io/ggml_formats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace nanovllm {
namespace {

constexpr int64_t kMaxBlockElements = 256;

// Those that are not read: of few bits, of integers, of ggml's own computations, removed ones.
// clang-format off
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
    {156, "IQ3_KS"}, {157, "IQ2_KL"}, {158, "IQ1_KT"}, {233, "Q6_0_R4"}, {353, "MXFP4_R8"},
    {398, "Q8_KV_R8"}, {399, "Q8_K_R8"},
};
// clang-format on

class BlockDecoder final : public MatrixDecoder {
 public:
  BlockDecoder(const GgmlFormat& format, const void* data, int64_t cols, std::string place)
      : format_(format),
        codes_(*find_ggml_codes(format.id)),
        data_(static_cast<const uint8_t*>(data)),
        row_bytes_(cols / format.block_elements * format.block_bytes),
        place_(std::move(place)) {}

  void decode(int64_t row, int64_t col, int64_t count, float* out) const override {
    read_blocks(row, col, count, format_.block_elements, out, format_.decode);
  }
  const CodeFormat* code_format() const override { return &codes_.format; }
  void read_codes(int64_t row, int64_t col, int64_t count, uint8_t* out) const override {
    read_blocks(row, col, count, format_.block_elements, out,
                [this](const uint8_t* block, uint8_t* codes) {
                  codes_.unpack(block, codes);
                  return 0.0f;
                });
  }
  void read_scales(int64_t row, int64_t first, int64_t count, GroupScale* out) const override {
    read_blocks(row, first, count, format_.block_elements / codes_.format.group_columns, out,
                codes_.read_scales);
  }

 private:
  // out[0, count) = the items [first, first + count) of a row. read(block, items) writes the
  // `in_block` items of a block and returns something that is finite if its numbers are.
  template <typename Item, typename Read>
  void read_blocks(int64_t row, int64_t first, int64_t count, int64_t in_block, Item* out,
                   const Read& read) const {
    for (int64_t done = 0; done < count;) {
      const int64_t block = (first + done) / in_block, skipped = (first + done) % in_block;
      const int64_t n = std::min(in_block - skipped, count - done);
      const uint8_t* from = data_ + row * row_bytes_ + block * format_.block_bytes;
      float scales = 0;
      if (n == in_block) {
        scales = read(from, out + done);
      } else {
        std::array<Item, kMaxBlockElements> whole;
        scales = read(from, whole.data());
        std::copy_n(whole.data() + skipped, n, out + done);
      }
      if (!std::isfinite(scales)) {
        throw_error(ErrorCode::kCorruptData,
                    "{}: block {} of row {} has a scale that is no number; download the file again",
                    place_, block, row);
      }
      done += n;
    }
  }

  const GgmlFormat& format_;
  const GgmlCodes& codes_;
  const uint8_t* const data_;
  const int64_t row_bytes_;
  const std::string place_;
};

}  // namespace

std::string ggml_type_name(uint32_t id) {
  if (const GgmlFormat* format = find_ggml_format(id)) return format->name;
  const auto* other = std::ranges::find(kOtherTypes, id, &std::pair<uint32_t, const char*>::first);
  if (other != std::end(kOtherTypes)) return other->second;
  // Most of ik_llama.cpp's for several rows side by side.
  if (id >= 200 && id < 400) return "repacked " + ggml_type_name(id - 200);
  return std::to_string(id);
}

std::unique_ptr<MatrixDecoder> make_ggml_decoder(const GgmlFormat& format, const void* data,
                                                 int64_t rows, int64_t cols, std::string place) {
  NANOVLLM_CHECK(format.decode != nullptr && rows >= 0 && cols % format.block_elements == 0);
  return std::make_unique<BlockDecoder>(format, data, cols, std::move(place));
}

}  // namespace nanovllm
