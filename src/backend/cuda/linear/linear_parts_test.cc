// Products in parts: a row's bits are the same for any number of rows, and those of the sums that
// linear_parts.h defines, as a model of the tensor cores in whole numbers has them.
#include "backend/cuda/linear/linear_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/device/device_context.h"
#include "base/dtype.h"

namespace nanovllm::cuda {
namespace {

TEST(PartSteps, LieBehindEachOtherAndTheFirstAreLonger) {
  for (const int k : {128, 136, 200, 896, 1032, 3072}) {
    int next = 0, before = k;
    for (int part = 0; part < kNumParts; ++part) {
      const auto [first, count] = steps_of_part(k, part);
      EXPECT_EQ(first, next);
      EXPECT_LE(count, before);
      EXPECT_GE(count, k / 16 / kNumParts);
      next += count;
      before = count;
    }
    EXPECT_EQ(next, (k + 15) / 16);
  }
}

TEST(PartsPlans, AreOfAllProductsThatTakePartsForAnyNumberOfRows) {
  for (const int n : {8, 136, 1024, 4096, 6144, 24576, 151936}) {
    for (const int k : {8, 128, 200, 1024, 4096, 12288}) {
      for (const int rows : {1, 8, 9, 16, 17, 100, 128, 129, 300, 8192}) {
        PartsProduct p;
        p.out_features = n;
        p.in_features = k;
        p.rows = rows;
        const FewPartsPlan few = plan_few_parts(p, 132);
        EXPECT_EQ(few.tiles > 0, k >= 128 && rows <= kMaxFewPartsRows);
        if (few.tiles > 0) EXPECT_GE(few.groups * few.tiles * 8, n);
        const ManyPartsPlan many = plan_many_parts(p, 132);
        EXPECT_EQ(many.rows > 0, k >= 128);
        if (many.rows == 0) continue;
        // A ring, or all of a block's K at once.
        EXPECT_TRUE(many.stages >= 3 || many.stages * 64 * many.cluster >= k);
        EXPECT_EQ(kNumParts % many.cluster, 0);
        EXPECT_GE(many.row_tiles * many.rows, rows);
        EXPECT_LE(many.shared_bytes, 226 << 10);
      }
    }
  }
}

class PartProducts : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
      GTEST_SKIP() << "no CUDA device on this machine";
    }
    if (!DeviceContext::of(0).traits().has_wgmma) GTEST_SKIP() << "this GPU has no wgmma";
    multiprocessors_ = DeviceContext::of(0).traits().properties.multiProcessorCount;
  }

  int multiprocessors_ = 0;
};

template <typename T>
class OnDevice {
 public:
  explicit OnDevice(size_t count) : count_(count) {
    NANOVLLM_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)));
  }
  explicit OnDevice(const std::vector<T>& values) : OnDevice(values.size()) { set(values); }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  void set(const std::vector<T>& values) {
    NANOVLLM_CUDA_CHECK(
        cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  // The first `count`.
  std::vector<T> get(size_t count) const {
    std::vector<T> values(count);
    NANOVLLM_CUDA_CHECK(
        cudaMemcpy(values.data(), data_, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  std::vector<T> get() const { return get(count_); }
  T* data() const { return data_; }

 private:
  size_t count_;
  T* data_ = nullptr;
};

std::vector<BFloat16> random_numbers(size_t count, int seed) {
  std::mt19937 engine(static_cast<uint32_t>(seed));
  std::vector<BFloat16> values(count);
  for (BFloat16& value : values) {
    const float x = static_cast<float>(engine() >> 8) * 0x1p-23f - 1;
    value = to_bfloat16(std::ldexp(x, static_cast<int>(engine() % 7) - 3));
  }
  return values;
}

float cut_to_float(double x) {
  const auto near = static_cast<float>(x);
  return std::abs(static_cast<double>(near)) > std::abs(x) ? std::nextafter(near, 0.f) : near;
}

// A step of the tensor cores, as MMA-Sim (arXiv 2511.10909) has it: products and the sum so far are
// cut 25 bits below the largest exponent, a product's being the sum of its factors', added exactly,
// and cut to float32.
float add_step(float sum, const BFloat16* a, const BFloat16* b, int count) {
  const auto exponent = [](float v) { return v == 0 ? -500 : std::ilogb(v); };
  int largest = exponent(sum);
  for (int i = 0; i < count; ++i) {
    largest = std::max(largest, exponent(to_float(a[i])) + exponent(to_float(b[i])));
  }
  if (largest <= -500) return 0;
  const double unit = std::ldexp(1., largest - 25);
  double total = std::trunc(sum / unit);
  for (int i = 0; i < count; ++i) {
    total += std::trunc(static_cast<double>(to_float(a[i])) * to_float(b[i]) / unit);
  }
  return cut_to_float(total * unit);
}

float model_sum(const BFloat16* a, const BFloat16* b, int k) {
  float total = 0;
  for (int part = 0; part < kNumParts; ++part) {
    const auto [first, count] = steps_of_part(k, part);
    float sum = 0;
    for (int step = first; step < first + count; ++step) {
      const int at = step * kPartStep;
      sum = add_step(sum, a + at, b + at, std::min(kPartStep, k - at));
    }
    total += sum;
  }
  return total;
}

// Rows [first, first + rows) of x, into the same rows of out.
void multiply_rows(PartsProduct p, int first, int rows, bool few, int multiprocessors) {
  const size_t out_bytes = p.epilogue == Epilogue::kAdd || p.out_dtype == DType::kFloat32 ? 4 : 2;
  p.x = static_cast<const BFloat16*>(p.x) + int64_t{first} * p.in_features;
  p.out = static_cast<char*>(p.out) + static_cast<size_t>(first) * p.out_features * out_bytes;
  p.rows = rows;
  if (few) {
    launch_few_parts(nullptr, p, plan_few_parts(p, multiprocessors));
  } else {
    launch_many_parts(nullptr, p, plan_many_parts(p, multiprocessors));
  }
  NANOVLLM_CUDA_CHECK(cudaDeviceSynchronize());
}

struct PartShape {
  int n, k;
};
constexpr PartShape kPartShapes[] = {{4096, 1024}, {1024, 2048}, {1024, 3072}, {6144, 1024},
                                     {8, 128},     {1003, 200},  {1032, 1096}, {136, 12288},
                                     {896, 896},   {40, 136},    {4096, 4096}, {3000, 5128}};
constexpr int kMostRows = 4096;

TEST_F(PartProducts, HaveTheSameBitsForAnyNumberOfRows) {
  for (const auto& [n, k] : kPartShapes) {
    SCOPED_TRACE(std::to_string(n) + " x " + std::to_string(k));
    const std::vector<BFloat16> weight = random_numbers(size_t(n) * k, 1);
    const std::vector<BFloat16> rows_of_x = random_numbers(size_t{kMostRows} * k, 2);
    const OnDevice<BFloat16> w(weight), x(rows_of_x);
    OnDevice<float> out(size_t{kMostRows} * n);
    PartsProduct p;
    p.out_features = n;
    p.in_features = k;
    p.weight = w.data();
    p.x = x.data();
    p.out = out.data();
    p.out_dtype = DType::kFloat32;
    out.set(std::vector<float>(size_t{kMostRows} * n, NAN));
    multiply_rows(p, 0, kMostRows, false, multiprocessors_);
    const std::vector<float> expected = out.get();
    std::mt19937 engine(3);
    int others = 0;
    for (int i = 0; i < 400; ++i) {
      const int row = static_cast<int>(engine() % kMostRows),
                feature = static_cast<int>(engine() % n);
      const float model =
          model_sum(weight.data() + int64_t{feature} * k, rows_of_x.data() + int64_t{row} * k, k);
      others += model != expected[size_t(row) * n + feature];
    }
    EXPECT_EQ(others, 0) << "of 400 sums are not the model's";
    const auto expect_equal = [&](int first, int rows, bool few) {
      // A tile's rows more, that nobody may write.
      const size_t at = size_t(first) * n, count = size_t(rows) * n;
      const size_t end = size_t(std::min(first + rows + 128, kMostRows)) * n;
      out.set(std::vector<float>(end, NAN));
      multiply_rows(p, first, rows, few, multiprocessors_);
      const std::vector<float> got = out.get(end);
      EXPECT_EQ(std::memcmp(got.data() + at, expected.data() + at, count * 4), 0)
          << rows << " rows from " << first << (few ? ", few" : "");
      EXPECT_TRUE(std::all_of(got.begin() + static_cast<int64_t>(at + count), got.end(),
                              [](float y) { return std::isnan(y); }))
          << rows << " rows wrote behind their end";
    };
    for (const int rows : {1, 2, 5, 8}) {
      expect_equal(0, rows, true);
      expect_equal(1003, rows, true);
    }
    for (const int rows : {1, 9, 16, 17, 33, 64, 100, 128, 129, 300, 1024}) {
      expect_equal(rows == 300 ? 40 : 0, rows, false);
    }
  }
}

TEST_F(PartProducts, AddBiasAndResidualAndRound) {
  for (const auto& [n, k] : {PartShape{1024, 2048}, PartShape{1003, 200}, PartShape{4096, 4096}}) {
    SCOPED_TRACE(std::to_string(n) + " x " + std::to_string(k));
    constexpr int kRows = 140;
    const OnDevice<BFloat16> w(random_numbers(size_t(n) * k, 1)), x(random_numbers(kRows * k, 2));
    std::vector<float> bias(n), residual(size_t{kRows} * n);
    for (int i = 0; i < n; ++i) bias[i] = static_cast<float>(i % 17) - 8.3f;
    for (size_t i = 0; i < residual.size(); ++i) residual[i] = static_cast<float>(i % 13) - 6.7f;
    const OnDevice<float> bias_there(bias);
    OnDevice<float> wide(residual.size());
    OnDevice<BFloat16> narrow(residual.size());
    PartsProduct p;
    p.out_features = n;
    p.in_features = k;
    p.weight = w.data();
    p.x = x.data();
    for (const int rows : {3, 8, 12, 40, 140}) {
      const bool few = rows <= kMaxFewPartsRows;
      p.bias = nullptr;
      p.epilogue = Epilogue::kStore;
      p.out_dtype = DType::kFloat32;
      p.out = wide.data();
      multiply_rows(p, 0, rows, few, multiprocessors_);
      const std::vector<float> sums = wide.get();
      p.bias = bias_there.data();
      p.out_dtype = DType::kBFloat16;
      p.out = narrow.data();
      multiply_rows(p, 0, rows, few, multiprocessors_);
      const std::vector<BFloat16> rounded = narrow.get();
      wide.set(residual);
      p.epilogue = Epilogue::kAdd;
      p.out = wide.data();
      multiply_rows(p, 0, rows, few, multiprocessors_);
      const std::vector<float> added = wide.get();
      int others = 0;
      for (size_t i = 0; i < size_t(rows) * n; ++i) {
        const BFloat16 y = to_bfloat16(sums[i] + bias[i % n]);
        others += to_float(rounded[i]) != to_float(y);
        others += added[i] != residual[i] + to_float(y);
      }
      EXPECT_EQ(others, 0) << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace nanovllm::cuda
