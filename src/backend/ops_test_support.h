// What the op tests share: the backends to test, tensors on both sides, random numbers.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/backend_cases.h"
#include "base/testing.h"
#include "ops/backend.h"
#include "ops/reference.h"

namespace nanovllm::test {

// A tensor in host memory that owns its elements.
struct HostTensor {
  std::vector<char> bytes;
  Tensor view;

  HostTensor() = default;
  HostTensor(DType dtype, std::initializer_list<int64_t> shape) : view(nullptr, dtype, shape) {
    bytes.resize(view.bytes());
    view.data = bytes.data();
  }
  HostTensor(const std::vector<float>& values, DType dtype, std::initializer_list<int64_t> shape)
      : HostTensor(dtype, shape) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::kBFloat16) {
        view.bf16()[i] = to_bfloat16(values[i]);
      } else {
        view.f32()[i] = values[i];
      }
    }
  }
  HostTensor(HostTensor&&) = default;
  HostTensor& operator=(HostTensor&&) = default;

  float at(int64_t i) const { return reference::element(view, i); }
  std::span<const char> row(int64_t r) const {
    const size_t n = view.bytes() / static_cast<size_t>(view.rows());
    return {bytes.data() + static_cast<size_t>(r) * n, n};
  }
};

struct DeviceTensor {
  std::unique_ptr<Buffer> buffer;
  Tensor view;
};

inline DeviceTensor device_tensor(Backend& backend, DType dtype,
                                  std::initializer_list<int64_t> shape) {
  DeviceTensor tensor{nullptr, Tensor(nullptr, dtype, shape)};
  tensor.buffer = backend.allocate(tensor.view.bytes());
  tensor.view.data = tensor.buffer->data();
  return tensor;
}

inline DeviceTensor upload(Backend& backend, const Tensor& host) {
  DeviceTensor tensor{backend.allocate(host.bytes()), host};
  tensor.view.data = tensor.buffer->data();
  backend.upload(tensor.view.data, host.data, host.bytes());
  return tensor;
}

template <typename T>
std::unique_ptr<Buffer> upload(Backend& backend, const std::vector<T>& values) {
  std::unique_ptr<Buffer> buffer = backend.allocate(values.size() * sizeof(T));
  backend.upload(buffer->data(), values.data(), values.size() * sizeof(T));
  return buffer;
}

inline HostTensor download(Backend& backend, const Tensor& device) {
  HostTensor host;
  host.view = device;
  host.bytes.resize(device.bytes());
  host.view.data = host.bytes.data();
  backend.synchronize();
  backend.download(host.view.data, device.data, device.bytes());
  return host;
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int below(int n) { return static_cast<int>(engine_() % static_cast<uint32_t>(n)); }
  int between(int low, int high) { return low + below(high - low + 1); }  // both included
  float uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(engine_() >> 8) * 0x1p-24f;
  }
  std::vector<float> floats(int64_t n, float low, float high) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& value : values) value = uniform(low, high);
    return values;
  }
  template <typename T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[below(static_cast<int>(i))]);
    }
  }

 private:
  std::mt19937 engine_;
};

// Half a unit in the last place of the result, and the error of computing it in float32.
inline double rounding(DType dtype) { return dtype == DType::kBFloat16 ? 0x1.02p-8 : 0x1p-24; }

// Every element within absolute + relative * |expected|.
inline void expect_close(const HostTensor& actual, const std::vector<float>& expected,
                         double relative, double absolute) {
  ASSERT_EQ(actual.view.num_elements(), static_cast<int64_t>(expected.size()));
  int64_t wrong = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const float value = actual.at(static_cast<int64_t>(i));
    const double error = std::abs(static_cast<double>(value) - expected[i]);
    if (error <= absolute + relative * std::abs(static_cast<double>(expected[i]))) continue;
    if (++wrong <= 3) ADD_FAILURE() << "element " << i << ": " << value << " for " << expected[i];
  }
  EXPECT_EQ(wrong, 0) << "of " << expected.size();
}

inline void expect_same_bits(std::span<const char> a, std::span<const char> b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size()), 0);
}

// Parameter: backend and act dtype.
class OpsTest : public ::testing::TestWithParam<std::tuple<BackendCase, DType>> {
 protected:
  const BackendCase& backend_case() const { return std::get<0>(GetParam()); }
  DType act() const { return std::get<1>(GetParam()); }
  std::unique_ptr<Backend> make(int num_threads = 2) const {
    return backend_case().make(num_threads);
  }
};

inline auto every_backend_and_dtype() {
  return ::testing::Combine(::testing::ValuesIn(backends()),
                            ::testing::Values(DType::kBFloat16, DType::kFloat32));
}
inline std::string name_of(const ::testing::TestParamInfo<OpsTest::ParamType>& info) {
  return std::get<0>(info.param).name + "_" + to_string(std::get<1>(info.param));
}

}  // namespace nanovllm::test
