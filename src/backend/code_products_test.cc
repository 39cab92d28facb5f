// Products with weights in codes, on every backend, of every format that there is a layout for.
#include <fmt/format.h>

#include <algorithm>

#include "backend/cpu/linear/random_codes_testing.h"
#include "backend/ops_test_support.h"

namespace nanovllm::test {
namespace {

// Elements of the matrix in float32.
std::vector<float> decoded(const HostMatrix& matrix) {
  std::vector<float> all(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t row = 0; row < matrix.rows; ++row) {
    read_elements(matrix, row, 0, matrix.cols, DType::kFloat32, &all[row * matrix.cols]);
  }
  return all;
}

class CodeProductsTest : public ::testing::TestWithParam<BackendCase> {
 protected:
  std::unique_ptr<Backend> make() const { return GetParam().make(2); }

  // The product as float32, of x rounded to bfloat16.
  static HostTensor multiply(Backend& backend, const LinearWeight& weight,
                             const std::vector<float>& x, int64_t rows) {
    const HostTensor host(x, DType::kBFloat16, {rows, weight.in_features});
    const DeviceTensor on_device = upload(backend, host.view);
    const DeviceTensor out = device_tensor(backend, DType::kFloat32, {rows, weight.out_features});
    backend.linear(out.view, on_device.view, weight);
    return download(backend, out.view);
  }

  // Within what sums in float32 lose, or what rounding a weight to bfloat16 does.
  static void expect_product(const HostTensor& y, const std::vector<float>& x,
                             const std::vector<float>& w, const std::vector<float>& bias,
                             int64_t k) {
    const int64_t n = y.view.row_size();
    for (int64_t row = 0; row < y.view.rows(); ++row) {
      for (int64_t column = 0; column < n; ++column) {
        double sum = bias.empty() ? 0 : bias[column], size = 0, largest = 0;
        for (int64_t i = 0; i < k; ++i) {
          const double factor = to_float(to_bfloat16(x[row * k + i]));
          sum += factor * w[column * k + i];
          size += std::abs(factor);
          largest = std::max(largest, std::abs(static_cast<double>(w[column * k + i])));
        }
        ASSERT_NEAR(y.at(row * n + column), sum, size * largest * 0x1p-9 + 1e-6)
            << "row " << row << ", column " << column;
      }
    }
  }
};

TEST_P(CodeProductsTest, OfEveryFormatAreThoseOfTheDecodedWeights) {
  const auto backend = make();
  for (const auto& [name, format] : kFormats) {
    const int64_t group = format.group_columns == kAll ? 128 : format.group_columns;
    for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 16}, {1, group}, {33, 2 * group}, {150, 1000}, {270, 1344}}) {
      const RandomDecoder decoder(format, n, k);
      const HostMatrix matrix = decoder.matrix();
      const std::vector<float> w = decoded(matrix);
      Random random(static_cast<uint32_t>(n));
      const std::vector<float> bias = random.floats(n, -1, 1);
      const auto weight = backend->make_linear({&matrix, 1}, bias.data(), DType::kBFloat16);
      EXPECT_EQ(weight->layout, format.layout) << name;
      for (const int64_t rows : {1, 7, 12, 30, 64, 70}) {
        SCOPED_TRACE(std::string(name) + ", " + std::to_string(n) + " x " + std::to_string(k) +
                     ", rows " + std::to_string(rows));
        const std::vector<float> x = random.floats(rows * k, -1, 1);
        expect_product(multiply(*backend, *weight, x, rows), x, w, bias, k);
      }
    }
  }
}

// What a kernel makes of a code, a scale and an offset, for few and many rows.
TEST_P(CodeProductsTest, WithTheIdentityGiveTheWeights) {
  constexpr int64_t kDepth = 272, kColumns = 45;
  const auto backend = make();
  for (const auto& [name, format] : kFormats) {
    SCOPED_TRACE(name);
    const RandomDecoder decoder(format, kColumns, kDepth);
    const HostMatrix matrix = decoder.matrix();
    const std::vector<float> w = decoded(matrix);
    const auto weight = backend->make_linear({&matrix, 1}, nullptr, DType::kBFloat16);
    std::vector<float> identity(kDepth * kDepth);
    for (int64_t i = 0; i < kDepth; ++i) identity[i * kDepth + i] = 1;
    for (const int64_t rows : {int64_t{1}, int64_t{60}, kDepth}) {
      SCOPED_TRACE(rows);
      const std::vector<float> x(identity.begin(), identity.begin() + rows * kDepth);
      const HostTensor y = multiply(*backend, *weight, x, rows);
      for (int64_t k = 0; k < rows; ++k) {
        for (int64_t column = 0; column < kColumns; ++column) {
          const float exact = w[column * kDepth + k], got = y.at(k * kColumns + column);
          if (got == to_float(to_bfloat16(exact))) continue;  // decoded to bfloat16
          ASSERT_NEAR(got, exact,
                      std::abs(exact) * 0x1p-22 + 1e-4 * (format.offset != Offset::kNone))
              << "column " << column << ", k " << k;
        }
      }
    }
  }
}

TEST_P(CodeProductsTest, OfPiecesOfSeveralFormatsStandSideBySide) {
  constexpr int64_t kDepth = 512;
  const auto backend = make();
  const RandomDecoder a(kFormats[15].format, 40, kDepth), b(kFormats[15].format, 24, kDepth),
      c(kFormats[17].format, 24, kDepth);
  const HostMatrix pieces[] = {a.matrix(), b.matrix(), c.matrix()};
  std::vector<float> w;
  for (const HostMatrix& piece : pieces) {
    const std::vector<float> own = decoded(piece);
    w.insert(w.end(), own.begin(), own.end());
  }
  Random random(5);
  const std::vector<float> bias = random.floats(88, -1, 1);
  const auto weight = backend->make_linear(pieces, bias.data(), DType::kBFloat16);
  for (const int64_t rows : {1, 20, 100}) {
    const std::vector<float> x = random.floats(rows * kDepth, -1, 1);
    expect_product(multiply(*backend, *weight, x, rows), x, w, bias, kDepth);
  }
}

TEST_P(CodeProductsTest, OfARowHaveTheSameBitsForAnyNumberOfRows) {
  if (!GetParam().is_deterministic) return;
  constexpr int64_t kRows = 150, kDepth = 1536, kColumns = 100;
  const auto backend = make();
  for (const auto& [name, format] : kFormats) {
    SCOPED_TRACE(name);
    const RandomDecoder decoder(format, kColumns, kDepth);
    const HostMatrix matrix = decoder.matrix();
    const auto weight = backend->make_linear({&matrix, 1}, nullptr, DType::kBFloat16);
    Random random(7);
    const std::vector<float> x = random.floats(kRows * kDepth, -1, 1);
    const HostTensor all = multiply(*backend, *weight, x, kRows);
    for (const int64_t rows : {1, 2, 9, 17, 40, 65}) {
      const std::vector<float> some(x.begin(), x.begin() + rows * kDepth);
      const HostTensor y = multiply(*backend, *weight, some, rows);
      for (int64_t row = 0; row < rows; ++row) expect_same_bits(y.row(row), all.row(row));
    }
  }
}

// The rows that decoding gives, to the bit: where a matrix begins and ends, of one group, and of a
// part of a vocabulary that is no multiple of a tile.
TEST_P(CodeProductsTest, EmbeddingsAreTheDecodedRows) {
  constexpr int32_t kFirstId = 5;
  const auto backend = make();
  for (const auto& [name, format] : kFormats) {
    const int64_t group = format.group_columns == kAll ? 128 : format.group_columns;
    for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 16}, {7, group}, {33, 2 * group}, {150, 1000}, {45, 9 * 256 + 64}}) {
      const RandomDecoder decoder(format, n, k);
      std::vector<int32_t> ids;
      for (int64_t row = n; row >= -1; --row) ids.push_back(static_cast<int32_t>(row) + kFirstId);
      const int64_t num_ids = std::ssize(ids);
      const auto device_ids = upload(*backend, ids);
      const DeviceTensor out = device_tensor(*backend, DType::kFloat32, {num_ids, k});
      for (const DType act : {DType::kBFloat16, DType::kFloat32}) {
        EmbeddingTable table;
        table.host = decoder.matrix();
        table.rows = Tensor(nullptr, act, {n, k});
        table.packed = backend->make_linear({&table.host, 1}, nullptr, act);
        for (const float scale : {1.0f, 0.37f}) {
          SCOPED_TRACE(fmt::format("{}, {} x {}, {}, scale {}", name, n, k, to_string(act), scale));
          table.scale = scale;
          backend->embedding(out.view, static_cast<const int32_t*>(device_ids->data()), table,
                             kFirstId);
          const auto rounded = [&](float x) {
            return act == DType::kFloat32 ? x : to_float(to_bfloat16(x));
          };
          std::vector<float> expected = decoded(table.host);
          for (float& x : expected) x = rounded(rounded(x) * scale);
          const HostTensor got = download(*backend, out.view);
          for (int64_t i = 0; i < num_ids; ++i) {
            const int64_t row = ids[i] - kFirstId;
            const std::vector<float> zeros(k);
            const float* const want =
                row < 0 || row >= n ? zeros.data() : expected.data() + row * k;
            SCOPED_TRACE(row);
            expect_same_bits(got.row(i), {reinterpret_cast<const char*>(want), k * sizeof(float)});
          }
        }
      }
    }
  }
}

// A mixture whose experts are in codes, and its router in numbers.
class CodedMixture {
 public:
  static constexpr int kHidden = 256, kWidth = 64, kNumExperts = 6;

  explicit CodedMixture(const CodeFormat& format) {
    router_ = HostTensor(Random(3).floats(kNumExperts * kHidden, -1, 1), DType::kBFloat16,
                         {kNumExperts, kHidden});
    spec.router.pieces = {{.data = router_.bytes.data(),
                           .dtype = DType::kBFloat16,
                           .rows = kNumExperts,
                           .cols = kHidden,
                           .row_stride = kHidden}};
    spec.routing.num_active = 2;
    spec.routing.renormalise = true;
    for (int i = 0; i < kNumExperts; ++i) {
      Dense& dense = spec.experts.emplace_back();
      dense.gate_up.pieces = {matrix(format, kWidth, kHidden), matrix(format, kWidth, kHidden)};
      dense.down.pieces = {matrix(format, kHidden, kWidth)};
    }
  }

  Experts spec;

 private:
  HostMatrix matrix(const CodeFormat& format, int rows, int cols) {
    kept_.push_back(std::make_unique<RandomDecoder>(format, rows, cols));
    return kept_.back()->matrix();
  }
  HostTensor router_;
  std::vector<std::unique_ptr<RandomDecoder>> kept_;
};

TEST_P(CodeProductsTest, OfExpertsMatchTheReference) {
  const auto backend = make();
  for (const auto& [name, format] : kFormats) {
    const CodedMixture mixture(format);
    const auto weights = backend->make_experts(mixture.spec, DType::kBFloat16, 120);
    EXPECT_EQ(weights->layout, format.layout) << name;
    for (const int rows : {1, 5, 40, 120}) {
      SCOPED_TRACE(std::string(name) + ", rows " + std::to_string(rows));
      constexpr int kHidden = CodedMixture::kHidden;
      const HostTensor x(Random(rows).floats(rows * kHidden, -0.02f, 0.02f), DType::kBFloat16,
                         {rows, kHidden});
      const DeviceTensor in = upload(*backend, x.view);
      const DeviceTensor out = device_tensor(*backend, DType::kBFloat16, {rows, kHidden});
      backend->experts(out.view, in.view, *weights);
      const HostTensor y = download(*backend, out.view);
      const std::vector<float> expected = reference::experts(x.view, mixture.spec);
      for (int row = 0; row < rows; ++row) {
        double error = 0, size = 0;
        for (int i = row * kHidden; i < (row + 1) * kHidden; ++i) {
          error += std::pow(y.at(i) - expected[i], 2);
          size += std::pow(expected[i], 2);
        }
        EXPECT_LE(std::sqrt(error), 1.5e-2 * std::sqrt(size)) << "row " << row;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryBackend, CodeProductsTest, ::testing::ValuesIn(backends()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace nanovllm::test
