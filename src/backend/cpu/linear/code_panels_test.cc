// Weights in codes: their packing against what decoders give, their products against plain ones.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/isas_testing.h"
#include "backend/cpu/linear/code_pack.h"
#include "backend/cpu/linear/linear_pack.h"
#include "backend/cpu/linear/random_codes_testing.h"

namespace nanovllm {
namespace {

float element(const HostMatrix& matrix, int64_t row, int64_t col) {
  float value;
  matrix.decoder->decode(matrix.file_row(row), matrix.first_col + col, 1, &value);
  return value;
}

// All panels of a matrix decode to decode()'s bits.
void expect_packs_without_loss(const HostMatrix& matrix, Isa isa) {
  const auto shape = plan_code_panels(matrix);
  ASSERT_TRUE(shape.has_value());
  const int64_t num_steps = round_up(matrix.cols, kStepMultiple);
  const auto panel = allocate_host(static_cast<size_t>(shape->panel_bytes));
  std::vector<float> plain(static_cast<size_t>(num_steps * kPanelColumns));
  for (int64_t p = 0; p < divide_up(matrix.rows, kPanelColumns); ++p) {
    pack_code_panel(linear_kernels(isa), *shape, {&matrix, 1}, p,
                    static_cast<char*>(panel->data()));
    decode_to_f32(*shape, static_cast<char*>(panel->data()), num_steps,
                  reinterpret_cast<char*>(plain.data()));
    for (int64_t c = 0; c < kPanelColumns && p * kPanelColumns + c < matrix.rows; ++c) {
      for (int64_t k = 0; k < matrix.cols; ++k) {
        const float wanted = element(matrix, p * kPanelColumns + c, k);
        ASSERT_EQ(std::bit_cast<uint32_t>(plain[k * kPanelColumns + c]),
                  std::bit_cast<uint32_t>(wanted))
            << "column " << c << " of panel " << p << ", k " << k;
      }
    }
  }
}

struct Product {
  Product(int64_t rows, int64_t k, int64_t n, DType act)
      : x_bytes(static_cast<size_t>(rows * k) * size_of(act)),
        out_values(static_cast<size_t>(rows * n), -12345.0f),
        x(x_bytes.data(), act, {rows, k}),
        out(out_values.data(), kF32, {rows, n}) {}
  void set(int64_t i, float value) {
    if (x.dtype == kF32) {
      x.f32()[i] = value;
    } else {
      x.bf16()[i] = to_bfloat16(value);
    }
  }
  void draw(std::mt19937& rng) {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < x.num_elements(); ++i) set(i, normal(rng));
  }
  float x_at(int64_t i) const { return x.dtype == kF32 ? x.f32()[i] : to_float(x.bf16()[i]); }

  std::vector<char> x_bytes;
  std::vector<float> out_values;
  Tensor x, out;
};

class CodePanelsTest : public ::testing::TestWithParam<Isa> {};

TEST_P(CodePanelsTest, EveryFormatComesBackBitForBit) {
  for (const auto& [name, format] : kFormats) {
    SCOPED_TRACE(name);
    const int64_t group = format.group_columns == kAll ? 128 : format.group_columns;
    for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{
             {1, group}, {1, 16}, {33, 2 * group}, {31, 1000}, {70, 768}}) {
      expect_packs_without_loss(RandomDecoder(format, rows, cols).matrix(), GetParam());
    }
  }
}

TEST_P(CodePanelsTest, PanelsDecodeToRoundedWeights) {
  auto decode = decode_to_bf16;
#if defined(__x86_64__)
  if (GetParam() >= Isa::kAvx512) decode = decode_rounded_avx512;
#endif
  constexpr int64_t kDepth = 1000, kSteps = 512;
  for (const auto& [name, format] : kFormats) {
    SCOPED_TRACE(name);
    const RandomDecoder decoder(format, 32, kDepth);
    const HostMatrix matrix = decoder.matrix();
    const auto shape = plan_code_panels(matrix);
    const auto panel = allocate_host(static_cast<size_t>(shape->panel_bytes));
    pack_code_panel(linear_kernels(GetParam()), *shape, {&matrix, 1}, 0,
                    static_cast<char*>(panel->data()));
    const auto plain = allocate_host(kSteps * kPanelStepBytes);
    std::memset(plain->data(), 0xff, plain->bytes());
    decode(*shape, static_cast<char*>(panel->data()), kSteps, static_cast<char*>(plain->data()));
    const auto* weights = static_cast<const BFloat16*>(plain->data());
    for (int64_t k = 0; k < 2 * kSteps; ++k) {
      for (int64_t c = 0; c < kPanelColumns; ++c) {
        if (k >= kDepth && k < round_up(kDepth, kCodeUnitColumns)) continue;
        const float exact = k < kDepth ? element(matrix, c, k) : 0.0f;
        ASSERT_EQ(to_float(weights[(k / 2 * kPanelColumns + c) * 2 + k % 2]),
                  to_float(to_bfloat16(exact)))
            << "column " << c << ", k " << k;
      }
    }
  }
}

// With the identity: what a kernel makes of a code, a scale and an offset, for few and many rows.
TEST_P(CodePanelsTest, ProductsWithTheIdentityGiveTheWeights) {
  constexpr int64_t kDepth = 272, kColumns = 45;
  for (const auto& [name, format] : kFormats) {
    SCOPED_TRACE(name);
    const RandomDecoder decoder(format, kColumns, kDepth);
    const HostMatrix matrix = decoder.matrix();
    for (const DType dtype : {kBf16, kF32}) {
      CpuBackend cpu({2, GetParam()});
      const auto weight = cpu.make_linear({&matrix, 1}, nullptr, dtype);
      EXPECT_EQ(weight->layout, format.layout);
      const bool rounds =
          linear_path(linear_kernels(cpu.isa()), format.layout, dtype).decode != nullptr &&
          dtype == kBf16;
      Product all(kDepth, kDepth, kColumns, dtype);
      for (int64_t i = 0; i < kDepth; ++i) all.set(i * kDepth + i, 1);
      for (const int64_t m : {int64_t{1}, int64_t{3}, kDepth}) {
        for (int64_t first = 0; first + m <= kDepth; first += m) {
          cpu.linear(all.out.slice_rows(first, first + m), all.x.slice_rows(first, first + m),
                     *weight);
        }
        for (int64_t k = 0; k < kDepth; ++k) {
          for (int64_t n = 0; n < kColumns; ++n) {
            const float exact = element(matrix, n, k);
            const float wanted = rounds ? to_float(to_bfloat16(exact)) : exact;
            const float got = all.out_values[k * kColumns + n];
            // Zeros are taken off after the product.
            const float bound = format.offset == Offset::kZero ? std::abs(wanted) * 0x1p-18f : 0;
            ASSERT_NEAR(got, wanted, bound) << m << " rows, k " << k << ", column " << n;
          }
        }
      }
    }
  }
}

// So formats that have the same codes and scales give the same results.
TEST_P(CodePanelsTest, TheTypeThatHoldsScalesChangesNoBit) {
  constexpr int64_t kDepth = 512, kColumns = 45;
  for (const auto& [name, format] : kFormats) {
    SCOPED_TRACE(name);
    for (const DType act : {kBf16, kF32}) {
      for (const int64_t rows : {1, 5, 40}) {
        std::vector<std::vector<float>> results;
        for (const ScaleKind scales : {kFloat16, kBFloat16, kFloat32}) {
          CodeFormat same = format;
          same.scales = scales;
          const RandomDecoder decoder(same, kColumns, kDepth);
          const HostMatrix matrix = decoder.matrix();
          CpuBackend cpu({2, GetParam()});
          Product product(rows, kDepth, kColumns, act);
          std::mt19937 rng(3);
          product.draw(rng);
          cpu.linear(product.out, product.x, *cpu.make_linear({&matrix, 1}, nullptr, act));
          results.push_back(product.out_values);
        }
        EXPECT_EQ(results[0], results[1]) << rows << " rows";
        EXPECT_EQ(results[0], results[2]) << rows << " rows";
      }
    }
  }
}

TEST_P(CodePanelsTest, ProductsAreThoseOfTheDecodedWeights) {
  std::mt19937 rng(1);
  for (const auto& [name, format] : kFormats) {
    SCOPED_TRACE(name);
    for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{{1, 16}, {40, 500}}) {
      const RandomDecoder decoder(format, n, k);
      const HostMatrix matrix = decoder.matrix();
      std::vector<float> bias(static_cast<size_t>(n), 0.5f);
      for (const DType dtype : {kBf16, kF32}) {
        CpuBackend cpu({2, GetParam()});
        const auto weight = cpu.make_linear({&matrix, 1}, bias.data(), dtype);
        const bool rounds =
            linear_path(linear_kernels(cpu.isa()), format.layout, dtype).decode != nullptr;
        for (const int64_t m : {1, 5, 40}) {
          Product product(m, k, n, dtype);
          product.draw(rng);
          cpu.linear(product.out, product.x, *weight);
          for (int64_t i = 0; i < m * n; ++i) {
            double sum = 0.5, magnitude = 0.5;
            for (int64_t c = 0; c < k; ++c) {
              const double term =
                  static_cast<double>(product.x_at(i / n * k + c)) * element(matrix, i % n, c);
              sum += term;
              magnitude += std::abs(term);
            }
            const double unit = rounds && dtype == kBf16 ? 0x1p-9 : 0x1p-18;
            ASSERT_NEAR(product.out_values[i], sum, magnitude * unit) << m << " rows, at " << i;
          }
        }
      }
    }
  }
}

// Also one whose pieces have several formats: as if each were a weight of its own.
TEST_P(CodePanelsTest, ARowHasTheSameBitsInEveryBatchWithAnyNumberOfThreadsAndAnyNeighbours) {
  std::mt19937 rng(2);
  constexpr int64_t kDepth = 1056, kNumRows = 70;
  std::vector<RandomDecoder> decoders;
  decoders.reserve(std::size(kFormats) * 2);
  for (const auto& [name, format] : kFormats) {
    for (const int64_t n : {33, 20}) {
      decoders.emplace_back(format, n, kDepth);
    }
  }
  std::vector<HostMatrix> pieces;
  int64_t columns = 0;
  for (const RandomDecoder& decoder : decoders) {
    pieces.push_back(decoder.matrix());
    columns += pieces.back().rows;
  }
  for (const DType dtype : {kBf16, kF32}) {
    Product one(kNumRows, kDepth, columns, dtype);
    one.draw(rng);
    {
      CpuBackend cpu({1, GetParam()});
      int64_t first = 0;
      for (const HostMatrix& piece : pieces) {
        const auto weight = cpu.make_linear({&piece, 1}, nullptr, dtype);
        std::vector<float> out(static_cast<size_t>(piece.rows));
        for (int64_t r = 0; r < kNumRows; ++r) {
          cpu.linear(Tensor(out.data(), kF32, {1, piece.rows}), one.x.slice_rows(r, r + 1),
                     *weight);
          std::copy(out.begin(), out.end(), one.out_values.begin() + r * columns + first);
        }
        first += piece.rows;
      }
    }
    for (const int threads : {1, 3}) {
      CpuBackend cpu({threads, GetParam()});
      const auto weight = cpu.make_linear(pieces, nullptr, dtype);
      for (const int64_t m : {1, 2, 5, 12, 13, 70}) {
        std::vector<float> out(static_cast<size_t>(m * columns), -1.0f);
        cpu.linear(Tensor(out.data(), kF32, {m, columns}), one.x.first_rows(m), *weight);
        ASSERT_EQ(std::memcmp(out.data(), one.out_values.data(), out.size() * 4), 0)
            << m << " rows, " << threads << " threads";
      }
    }
  }
}

// Many rows go through a long panel in parts.
TEST_P(CodePanelsTest, ALongRowHasTheSameBitsInEveryBatch) {
  std::mt19937 rng(3);
  constexpr int64_t kDepth = 4400, kNumRows = 13, kColumns = 40;
  CpuBackend cpu({1, GetParam()});
  for (const auto& [name, format] : kFormats) {
    SCOPED_TRACE(name);
    const RandomDecoder decoder(format, kColumns, kDepth);
    const HostMatrix matrix = decoder.matrix();
    for (const DType dtype : {kBf16, kF32}) {
      const auto weight = cpu.make_linear({&matrix, 1}, nullptr, dtype);
      Product product(kNumRows, kDepth, kColumns, dtype);
      product.draw(rng);
      cpu.linear(product.out, product.x, *weight);
      for (int64_t r = 0; r < kNumRows; ++r) {
        std::array<float, kColumns> out;
        cpu.linear(Tensor(out.data(), kF32, {1, kColumns}), product.x.slice_rows(r, r + 1),
                   *weight);
        ASSERT_EQ(std::memcmp(out.data(), &product.out_values[r * kColumns], sizeof out), 0)
            << "row " << r;
      }
    }
  }
}

TEST_P(CodePanelsTest, AShareOfColumnsKeepsItsScales) {
  for (const auto& [name, format] : kFormats) {
    SCOPED_TRACE(name);
    const RandomDecoder decoder(format, 33, 1024);
    for (const int64_t first : {0, 128, 384, 512}) {
      HostMatrix share = decoder.matrix();
      share.first_col = first;
      share.cols = 128;
      share.first_row = 1;
      share.rows = 32;
      expect_packs_without_loss(share, GetParam());
    }
  }
}

// As shares of ranks may: groups of 32 and 128 columns are cut, and scales of 256.
TEST_P(CodePanelsTest, AShareMayBeginAndEndWithinAGroup) {
  std::mt19937 rng(3);
  for (const auto& [name, format] : kFormats) {
    SCOPED_TRACE(name);
    const RandomDecoder decoder(format, 33, 1024);
    for (const auto& [first, cols] : std::vector<std::pair<int64_t, int64_t>>{
             {16, 1008}, {0, 1000}, {48, 500}, {192, 192}, {320, 704}, {592, 432}}) {
      SCOPED_TRACE(first);
      HostMatrix share = decoder.matrix();
      share.first_col = first;
      share.cols = cols;
      expect_packs_without_loss(share, GetParam());
      CpuBackend cpu({1, GetParam()});
      const auto weight = cpu.make_linear({&share, 1}, nullptr, kF32);
      EXPECT_EQ(weight->layout, format.layout);
      HostMatrix numbers = share;
      numbers.codes = nullptr;
      const auto plain = cpu.make_linear({&numbers, 1}, nullptr, kF32);
      Product product(3, cols, 33, kF32), wanted(3, cols, 33, kF32);
      product.draw(rng);
      cpu.linear(product.out, product.x, *weight);
      cpu.linear(wanted.out, product.x, *plain);
      float largest = 0;
      for (const float value : wanted.out_values) largest = std::max(largest, std::abs(value));
      for (size_t i = 0; i < product.out_values.size(); ++i) {
        ASSERT_NEAR(product.out_values[i], wanted.out_values[i], largest * 0x1p-14f);
      }
    }
  }
}

TEST_P(CodePanelsTest, AShareThatBeginsWithinSixteenColumnsIsDecoded) {
  for (const auto& [name, format] : kFormats) {
    SCOPED_TRACE(name);
    const RandomDecoder decoder(format, 33, 1024);
    const bool is_one_group = format.group_columns == kAll;
    HostMatrix cut = decoder.matrix();
    cut.first_col = 8;
    cut.cols = 1016;
    EXPECT_EQ(plan_code_panels(cut).has_value(), is_one_group);
    CpuBackend cpu({1, GetParam()});
    const auto weight = cpu.make_linear({&cut, 1}, nullptr, kF32);
    EXPECT_EQ(weight->layout, is_one_group ? kByte : WeightLayout::kPlain);
    ASSERT_EQ(weight->parts_by_layout.size(), 1);
    EXPECT_EQ(weight->parts_by_layout[0].num_decoded, is_one_group ? 0 : 1);
  }
}

TEST_P(CodePanelsTest, EveryLayoutHasAPath) {
  const LinearKernels& kernels = linear_kernels(GetParam());
  for (const DType dtype : {kBf16, kF32}) {
    const auto plain = (dtype == kBf16 ? kernels.bf16 : kernels.f32).multiply;
    for (const WeightLayout layout : {WeightLayout::kPlain, WeightLayout::kCoded12}) {
      EXPECT_EQ(linear_path(kernels, layout, dtype).multiply, plain);
      EXPECT_EQ(linear_path(kernels, layout, dtype).decode, nullptr);
    }
    const bool on_codes =
        GetParam() != Isa::kPortable && (GetParam() != Isa::kAmx || dtype == kF32);
    for (const WeightLayout layout : {kGroup, kByte, kSuper}) {
      const LinearPath path = linear_path(kernels, layout, dtype);
      EXPECT_EQ(path.decode != nullptr, !on_codes);
      EXPECT_EQ(path.multiply == plain, !on_codes);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, CodePanelsTest, ::testing::ValuesIn(available_isas()),
                         [](const auto& param) { return std::string(to_string(param.param)); });

}  // namespace
}  // namespace nanovllm
