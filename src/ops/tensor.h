// A typed view of memory that somebody else owns.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "base/assert.h"
#include "base/dtype.h"

namespace nanovllm {

// Row-major and contiguous; up to three dimensions. Copying copies the view. The memory is that of
// a backend's device, or of the host in the reference ops.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  // Number of dimensions, and their sizes; further elements of `shape` do not count.
  int rank = 0;
  std::array<int64_t, 3> shape = {};

  Tensor() = default;
  Tensor(void* memory, DType type, std::initializer_list<int64_t> dimensions)
      : data(memory), dtype(type), rank(static_cast<int>(dimensions.size())) {
    NANOVLLM_CHECK(dimensions.size() <= 3);
    int i = 0;
    for (int64_t n : dimensions) shape[i++] = n;
  }

  explicit operator bool() const { return data != nullptr; }
  int64_t rows() const { return shape[0]; }
  int64_t row_size() const {  // elements
    int64_t n = 1;
    for (int i = 1; i < rank; ++i) n *= shape[i];
    return n;
  }
  int64_t num_elements() const { return rank == 0 ? 0 : shape[0] * row_size(); }
  size_t bytes() const { return static_cast<size_t>(num_elements()) * size_of(dtype); }

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  float* f32() const { return as<float>(); }
  BFloat16* bf16() const { return as<BFloat16>(); }
  int32_t* i32() const { return as<int32_t>(); }

  // The first n rows, or rows [begin, end).
  Tensor first_rows(int64_t n) const { return slice_rows(0, n); }
  Tensor slice_rows(int64_t begin, int64_t end) const {
    NANOVLLM_CHECK(0 <= begin && begin <= end && end <= shape[0]);
    Tensor t = *this;
    t.data = static_cast<char*>(data) + static_cast<size_t>(begin * row_size()) * size_of(dtype);
    t.shape[0] = end - begin;
    return t;
  }
};

}  // namespace nanovllm
