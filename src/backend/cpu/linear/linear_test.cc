#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/isas_testing.h"
#include "base/dtype.h"
#include "base/testing.h"
#include "ops/reference.h"

namespace nanovllm {
namespace {

// A matrix of small numbers in a dtype, with the values it stands for.
struct PlainMatrix {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::kFloat32;
  std::vector<double> values;
  std::vector<char> bytes;

  Tensor tensor() const { return Tensor(const_cast<char*>(bytes.data()), dtype, {rows, cols}); }
  HostMatrix host() const { return {bytes.data(), dtype, rows, cols, cols}; }
};

template <typename Draw>
PlainMatrix make_matrix(int64_t rows, int64_t cols, DType dtype, Draw draw) {
  PlainMatrix m{rows, cols, dtype, {}, {}};
  m.values.resize(static_cast<size_t>(rows * cols));
  m.bytes.resize(m.values.size() * size_of(dtype));
  for (size_t i = 0; i < m.values.size(); ++i) {
    float value = draw();
    char* p = m.bytes.data() + i * size_of(dtype);
    if (dtype == DType::kFloat32) {
      std::memcpy(p, &value, 4);
    } else if (dtype == DType::kBFloat16) {
      const BFloat16 rounded = to_bfloat16(value);
      value = to_float(rounded);
      std::memcpy(p, &rounded, 2);
    } else {
      const uint16_t half = float_to_half(value);
      std::memcpy(p, &half, 2);
    }
    m.values[i] = value;
  }
  return m;
}

// Multiples of 1/4 up to 2: sums of thousands of products are exact in float32, in any order.
PlainMatrix small_numbers(int64_t rows, int64_t cols, DType dtype, std::mt19937& rng) {
  return make_matrix(rows, cols, dtype,
                     [&] { return static_cast<float>(static_cast<int>(rng() % 17) - 8) / 4; });
}

PlainMatrix normal_numbers(int64_t rows, int64_t cols, DType dtype, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  return make_matrix(rows, cols, dtype, [&] { return normal(rng); });
}

double reference(const PlainMatrix& x, const PlainMatrix& w, const std::vector<float>& bias,
                 int64_t m, int64_t n) {
  double sum = bias.empty() ? 0 : bias[n];
  for (int64_t k = 0; k < x.cols; ++k) sum += x.values[m * x.cols + k] * w.values[n * w.cols + k];
  return sum;
}

PlainMatrix output(int64_t rows, int64_t cols, DType dtype) {
  // Filled with a pattern, so that what is not written shows.
  return make_matrix(rows, cols, dtype, [] { return -12345.0f; });
}

class LinearTest : public ::testing::TestWithParam<Isa> {
 protected:
  // How a backend computes, which must not change a bit.
  struct Way {
    int threads;
    WeightStreams streams;
  };
  static constexpr Way kWays[] = {
      {1, WeightStreams::kSeveral}, {1, WeightStreams::kOne}, {1, WeightStreams::kOneForeseen},
      {2, WeightStreams::kSeveral}, {2, WeightStreams::kOne}, {2, WeightStreams::kOneForeseen}};
  CpuBackend backend(Way way) { return CpuBackend({way.threads, GetParam(), way.streams}); }
};

struct Types {
  DType weight, x, out;
};
constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16, kF16 = DType::kFloat16;
constexpr Types kTypes[] = {{kBf16, kBf16, kBf16}, {kBf16, kBf16, kF32}, {kBf16, kF32, kF32},
                            {kF32, kF32, kF32},    {kF32, kBf16, kBf16}, {kF32, kF32, kBf16}};

TEST_P(LinearTest, ExactOnShapesThatAreMultiplesOfNothing) {
  std::mt19937 rng(1);
  CpuBackend cpu({2, GetParam()});
  const int64_t sizes[] = {1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 65, 100, 257};
  for (const int64_t k : sizes) {
    for (const int64_t n : sizes) {
      const int64_t m = 1 + static_cast<int64_t>(rng() % 40);
      const Types types = kTypes[rng() % std::size(kTypes)];
      const bool with_bias = rng() % 2 == 0;
      PlainMatrix x = small_numbers(m, k, types.x, rng);
      const PlainMatrix w = small_numbers(n, k, kBf16, rng);
      std::vector<float> bias(with_bias ? static_cast<size_t>(n) : 0);
      for (float& b : bias) b = static_cast<float>(rng() % 9) - 4;
      const HostMatrix source = w.host();
      const auto weight =
          cpu.make_linear({&source, 1}, with_bias ? bias.data() : nullptr, types.weight);
      EXPECT_EQ(weight->in_features, k);
      EXPECT_EQ(weight->out_features, n);
      PlainMatrix out = output(m, n, types.out);
      cpu.linear(out.tensor(), x.tensor(), *weight);
      for (int64_t i = 0; i < m * n; ++i) {
        const double expected = reference(x, w, bias, i / n, i % n);
        const double rounded =
            types.out == kF32 ? expected : to_float(to_bfloat16(static_cast<float>(expected)));
        ASSERT_EQ(reference::element(out.tensor(), i), rounded)
            << m << "x" << k << "x" << n << " at " << i;
      }
    }
  }
}

TEST_P(LinearTest, EveryCombinationOfTypesIsAccurate) {
  std::mt19937 rng(2);
  CpuBackend cpu({2, GetParam()});
  const int64_t k = 771, n = test::full_or_reduced(203, 53);
  for (const Types types : kTypes) {
    for (const int64_t m : {1, 2, 7, 12, 13, 33, 70}) {
      PlainMatrix x = normal_numbers(m, k, types.x, rng);
      const PlainMatrix w = normal_numbers(n, k, types.weight, rng);
      std::vector<float> bias(static_cast<size_t>(n), 0.5f);
      const HostMatrix source = w.host();
      const auto weight = cpu.make_linear({&source, 1}, bias.data(), types.weight);
      PlainMatrix out = output(m, n, types.out);
      cpu.linear(out.tensor(), x.tensor(), *weight);
      for (int64_t i = 0; i < m * n; ++i) {
        const double expected = reference(x, w, bias, i / n, i % n);
        double magnitude = 0.5;
        for (int64_t j = 0; j < k; ++j) {
          magnitude += std::abs(x.values[i / n * k + j] * w.values[i % n * k + j]);
        }
        // The bound for a sum of k terms in any order. Kernels for bfloat16 weights may round
        // float32 activations to bfloat16.
        const bool rounds_x = types.weight == kBf16 && types.x == kF32;
        const double bound =
            magnitude * (static_cast<double>(k + 2) * 0x1p-24 + (rounds_x ? 0x1p-9 : 0)) +
            (types.out == kBf16 ? std::abs(expected) * 0x1p-8 : 0);
        ASSERT_NEAR(reference::element(out.tensor(), i), expected, bound) << m << " rows, at " << i;
      }
    }
  }
}

TEST_P(LinearTest, PiecesOfSeveralTypesAndStridesAreStacked) {
  std::mt19937 rng(3);
  CpuBackend cpu({3, GetParam()});
  const int64_t k = 129, m = 5;
  for (const DType dtype : {kBf16, kF32}) {
    std::vector<PlainMatrix> storage;
    storage.push_back(small_numbers(37, k + 3, kF16, rng));  // columns 0 to k-1 of wider rows
    storage.push_back(small_numbers(5, k, kF32, rng));
    storage.push_back(small_numbers(70, k, kBf16, rng));
    std::vector<HostMatrix> pieces;
    PlainMatrix all{0, k, kF32, {}, {}};
    for (const PlainMatrix& part : storage) {
      HostMatrix piece = part.host();
      piece.cols = k;
      pieces.push_back(piece);
      for (int64_t r = 0; r < part.rows; ++r, ++all.rows) {
        for (int64_t c = 0; c < k; ++c) all.values.push_back(part.values[r * part.cols + c]);
      }
    }
    const auto weight = cpu.make_linear(pieces, nullptr, dtype);
    ASSERT_EQ(weight->out_features, all.rows);
    PlainMatrix x = small_numbers(m, k, kBf16, rng);
    PlainMatrix out = output(m, all.rows, kF32);
    cpu.linear(out.tensor(), x.tensor(), *weight);
    for (int64_t i = 0; i < m * all.rows; ++i) {
      ASSERT_EQ(reference::element(out.tensor(), i),
                reference(x, all, {}, i / all.rows, i % all.rows))
          << i;
    }
  }
}

TEST_P(LinearTest, ARowHasTheSameBitsInEveryBatchAndWithAnyNumberOfThreads) {
  std::mt19937 rng(4);
  constexpr int64_t kRows = 512;
  struct Shape {
    int64_t k, n;
  };
  for (const Types types : {kTypes[0], kTypes[1], kTypes[3]}) {
    for (const Shape shape : {Shape{192, 161}, Shape{99, 64}}) {
      PlainMatrix x = normal_numbers(kRows, shape.k, types.x, rng);
      const PlainMatrix w = normal_numbers(shape.n, shape.k, types.weight, rng);
      const HostMatrix source = w.host();
      std::vector<float> bias(static_cast<size_t>(shape.n), 0.1f);
      PlainMatrix expected;
      for (const Way way : {Way{1, WeightStreams::kSeveral}, Way{1, WeightStreams::kOne},
                            Way{2, WeightStreams::kOneForeseen}, Way{3, WeightStreams::kSeveral},
                            Way{5, WeightStreams::kOne}}) {
        CpuBackend cpu = backend(way);
        const auto weight = cpu.make_linear({&source, 1}, bias.data(), types.weight);
        for (const int64_t m : {1, 2, 3, 5, 8, 16, 17, 64, 512}) {
          if (expected.rows == 0) {
            // One row at a time is what everything else is compared with.
            expected = output(kRows, shape.n, types.out);
            for (int64_t r = 0; r < kRows; ++r) {
              cpu.linear(expected.tensor().slice_rows(r, r + 1), x.tensor().slice_rows(r, r + 1),
                         *weight);
            }
          }
          const int64_t first = (kRows - m) / 3;
          PlainMatrix out = output(m, shape.n, types.out);
          cpu.linear(out.tensor(), x.tensor().slice_rows(first, first + m), *weight);
          const Tensor same = expected.tensor().slice_rows(first, first + m);
          ASSERT_EQ(std::memcmp(out.bytes.data(), same.data, same.bytes()), 0)
              << m << " rows, " << way.threads << " threads";
        }
      }
    }
  }
}

// So long rows that a task of several tiles takes fewer panels than one of a single tile.
TEST_P(LinearTest, ALongRowHasTheSameBitsInEveryBatch) {
  std::mt19937 rng(8);
  constexpr int64_t kRows = 33, kDepth = 4128, kColumns = 9 * 32 - 5;
  PlainMatrix x = normal_numbers(kRows, kDepth, kBf16, rng);
  const PlainMatrix w = normal_numbers(kColumns, kDepth, kBf16, rng);
  const HostMatrix source = w.host();
  PlainMatrix expected;
  for (const Way way : kWays) {
    CpuBackend cpu = backend(way);
    const auto weight = cpu.make_linear({&source, 1}, nullptr, kBf16);
    for (const int64_t m : {kRows, int64_t{1}, int64_t{3}, int64_t{4}, int64_t{16}}) {
      PlainMatrix out = output(m, kColumns, kF32);
      cpu.linear(out.tensor(), x.tensor().slice_rows(0, m), *weight);
      if (expected.rows == 0) expected = out;
      ASSERT_EQ(std::memcmp(out.bytes.data(), expected.bytes.data(), out.bytes.size()), 0)
          << m << " rows, " << way.threads << " threads";
    }
    for (const int64_t i : {int64_t{0}, kColumns - 1, kRows * kColumns - 1}) {
      EXPECT_NEAR(reference::element(expected.tensor(), i),
                  reference(x, w, {}, i / kColumns, i % kColumns), 0.1);
    }
  }
}

// Factors, products and sums below what float32 has in full: kernels for few rows must take them
// for zero where those for many do.
TEST_P(LinearTest, ARowOfTinyNumbersHasTheSameBitsInEveryBatch) {
  std::mt19937 rng(6);
  constexpr int64_t kRows = 40, kDepth = 160, kColumns = 100;
  const auto power = [&](int low, int high) {
    const int exponent = low + static_cast<int>(rng() % static_cast<unsigned>(high - low));
    return std::ldexp(rng() % 2 == 0 ? 1.25f : -1.75f, exponent);
  };
  PlainMatrix x = make_matrix(kRows, kDepth, kBf16, [&] { return power(-133, -120); });
  // Sums with them are denormals too.
  std::vector<float> bias(kColumns);
  for (float& b : bias) b = power(-133, -126);
  // Few exponents for weights that are coded where kernels can decode them.
  for (const int lowest : {-20, -10}) {
    const PlainMatrix w = make_matrix(kColumns, kDepth, kBf16, [&] { return power(lowest, 0); });
    const HostMatrix source = w.host();
    CpuBackend cpu({2, GetParam()});
    const auto weight = cpu.make_linear({&source, 1}, bias.data(), kBf16);
    PlainMatrix expected = output(kRows, kColumns, kF32);
    cpu.linear(expected.tensor(), x.tensor(), *weight);
    for (const int64_t m : {1, 2, 3, 4, 5, 16}) {
      PlainMatrix out = output(m, kColumns, kF32);
      cpu.linear(out.tensor(), x.tensor().slice_rows(7, 7 + m), *weight);
      const Tensor same = expected.tensor().slice_rows(7, 7 + m);
      EXPECT_EQ(std::memcmp(out.bytes.data(), same.data, same.bytes()), 0) << m << " rows";
    }
  }
}

// Where the kernels can decode weights, those whose exponents vary little are coded in 12 bits; a
// product with a part of the identity shows the weights themselves.
TEST_P(LinearTest, ProductsWithTheIdentityGiveTheWeightsBitForBit) {
  std::mt19937 rng(7);
  constexpr int64_t kDepth = 160, kColumns = 23 * 32 - 5;
  std::normal_distribution<float> normal;
  PlainMatrix w = make_matrix(kColumns, kDepth, kBf16, [&] { return normal(rng); });
  auto* weights = reinterpret_cast<BFloat16*>(w.bytes.data());
  // In every panel some of far smaller and larger size, among them its first and its last; less
  // than one in 512.
  const int64_t odd_positions[] = {0, 1, 3, 4, 25 * kDepth + 7, 26 * kDepth + kDepth - 1};
  for (int64_t panel = 0; panel < kColumns; panel += 32) {
    for (const int64_t position : odd_positions) {
      weights[panel * kDepth + position] =
          to_bfloat16(std::ldexp(1.5f, static_cast<int>(rng() % 2) * 160 - 100));
    }
  }
  PlainMatrix identity = make_matrix(kDepth, kDepth, kBf16, [] { return 0.0f; });
  for (int64_t i = 0; i < kDepth; ++i) {
    reinterpret_cast<BFloat16*>(identity.bytes.data())[i * kDepth + i] = to_bfloat16(1.0f);
  }
  const HostMatrix source = w.host();
  for (const Way way : kWays) {
    CpuBackend cpu = backend(way);
    const auto weight = cpu.make_linear({&source, 1}, nullptr, kBf16);
    EXPECT_EQ(weight->bytes < kColumns * kDepth * 2, cpu.isa() >= Isa::kAvx2);
    for (const int64_t m : test::full_or_reduced<std::vector<int64_t>>(
             {1, 2, 3, 4, 5, 12, 13, 16, 17, 32, 33, 64, 160}, {1, 2, 3, 4, 5, 13, 33, 160})) {
      PlainMatrix out = output(m, kColumns, kF32);
      for (int64_t first = 0; first + m <= kDepth; first += m) {
        cpu.linear(out.tensor(), identity.tensor().slice_rows(first, first + m), *weight);
        for (int64_t i = 0; i < m * kColumns; ++i) {
          ASSERT_EQ(reference::element(out.tensor(), i),
                    to_float(weights[i % kColumns * kDepth + first + i / kColumns]))
              << m << " rows, " << way.threads << " threads, row " << first + i / kColumns
              << ", column " << i % kColumns;
        }
      }
    }
  }
}

TEST_P(LinearTest, AColumnHasTheSameBitsWhateverItsNeighboursExponents) {
  std::mt19937 rng(8);
  constexpr int64_t kDepth = 544, kColumns = 9 * 32, kRows = 70;
  const PlainMatrix w = normal_numbers(kColumns, kDepth, kBf16, rng);
  const PlainMatrix wild = make_matrix(32, kDepth, kBf16, [&] {
    const int exponent = static_cast<int>(rng() % 200) - 100;
    return std::ldexp(1.5f, exponent);
  });
  PlainMatrix x = normal_numbers(kRows, kDepth, kBf16, rng);
  const HostMatrix tame[] = {w.host()}, both[] = {w.host(), wild.host()};
  for (const Way way : kWays) {
    CpuBackend cpu = backend(way);
    const auto alone = cpu.make_linear(tame, nullptr, kBf16);
    const auto beside_wild = cpu.make_linear(both, nullptr, kBf16);
    EXPECT_EQ(alone->bytes < kColumns * kDepth * 2, cpu.isa() >= Isa::kAvx2);
    EXPECT_GE(beside_wild->bytes, (kColumns + 32) * kDepth * 2);
    for (const int64_t m : {1, 2, 3, 4, 5, 12, 13, 16, 37, 70}) {
      PlainMatrix out = output(m, kColumns, kF32), wider = output(m, kColumns + 32, kF32);
      cpu.linear(out.tensor(), x.tensor().first_rows(m), *alone);
      cpu.linear(wider.tensor(), x.tensor().first_rows(m), *beside_wild);
      for (int64_t r = 0; r < m; ++r) {
        const char* row = wider.bytes.data() + r * (kColumns + 32) * 4;
        ASSERT_EQ(std::memcmp(out.bytes.data() + r * kColumns * 4, row, kColumns * 4), 0)
            << "row " << r << " of " << m;
      }
    }
  }
}

// Coding pays as long as one weight in 512 at most has an exponent far from the others'.
TEST_P(LinearTest, WeightsAreCodedAsLongAsThatPays) {
  constexpr int64_t kDepth = 32, kColumns = 40 * 32;
  CpuBackend cpu({2, GetParam()});
  // With so many weights, `distance` apart, far smaller than all others.
  const auto is_coded = [&](int64_t num_odd, int64_t distance) {
    PlainMatrix w = make_matrix(kColumns, kDepth, kBf16, [] { return 1.0f; });
    auto* weights = reinterpret_cast<BFloat16*>(w.bytes.data());
    for (int64_t i = 0; i < num_odd; ++i) weights[i * distance] = {0x0080};
    const HostMatrix source = w.host();
    return cpu.make_linear({&source, 1}, nullptr, kBf16)->bytes < kColumns * kDepth * 2;
  };
  const bool may_code = cpu.isa() >= Isa::kAvx2;
  EXPECT_EQ(is_coded(80, 500), may_code);
  EXPECT_FALSE(is_coded(81, 500));
  EXPECT_EQ(is_coded(80, 1), may_code);  // all in one panel
}

TEST_P(LinearTest, MoreRowsThanArePackedAtOnce) {
  std::mt19937 rng(5);
  CpuBackend cpu({2, GetParam()});
  const int64_t m = 2500, k = 32, n = 40;
  PlainMatrix x = small_numbers(m, k, kBf16, rng);
  const PlainMatrix w = small_numbers(n, k, kBf16, rng);
  const HostMatrix source = w.host();
  const auto weight = cpu.make_linear({&source, 1}, nullptr, kBf16);
  PlainMatrix out = output(m, n, kF32);
  cpu.linear(out.tensor(), x.tensor(), *weight);
  for (int64_t i = 0; i < m * n; ++i) {
    ASSERT_EQ(reference::element(out.tensor(), i), reference(x, w, {}, i / n, i % n)) << i;
  }
  cpu.linear(out.tensor().first_rows(0), x.tensor().first_rows(0), *weight);
}

INSTANTIATE_TEST_SUITE_P(Isas, LinearTest, ::testing::ValuesIn(available_isas()),
                         [](const auto& param) { return std::string(to_string(param.param)); });

}  // namespace
}  // namespace nanovllm
