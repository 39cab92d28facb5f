// Matrix products: y[T,N] = x[T,K] W^T + b. Weights in numbers stay as checkpoints have them, [N,K]
// row by row; those in codes are packed.
#include <algorithm>
#include <cstring>
#include <span>

#include "backend/cuda/backend/cuda_backend.h"
#include "backend/cuda/backend/plan_rows.h"
#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/device/memory.h"
#include "backend/cuda/linear/code_product.h"
#include "backend/cuda/linear/code_stream.h"
#include "backend/cuda/linear/code_wgmma.h"
#include "backend/cuda/linear/linear_float.h"
#include "backend/cuda/linear/linear_plan.h"
#include "backend/cuda/linear/linear_weight.h"
#include "base/check.h"

namespace nanovllm {
namespace {

// Elements [begin, end) of a matrix in `dtype`, counted row by row.
void read_range(void* out, DType dtype, HostMatrix matrix, int64_t begin, int64_t end) {
  if (matrix.is_contiguous()) {  // one long row
    matrix.first_col += matrix.first_row * matrix.cols;
    matrix.cols *= matrix.rows;
    matrix.first_row = 0;
  }
  auto* target = static_cast<char*>(out);
  while (begin < end) {
    const int64_t col = begin % matrix.cols;
    const int64_t count = std::min(end - begin, matrix.cols - col);
    read_elements(matrix, begin / matrix.cols, col, count, dtype, target);
    target += static_cast<size_t>(count) * size_of(dtype);
    begin += count;
  }
}

// What a weight in codes is decoded to at a time, at most, for products of many rows: a part that
// L2 holds most of.
constexpr int64_t kDecodedBytes = int64_t{64} << 20;

// Rows that are decoded at a time.
int64_t decoded_rows(const cuda::CodeShape& shape) {
  const int64_t most = kDecodedBytes / (int64_t{shape.in_features} * 2);
  return std::max<int64_t>(most / cuda::kTileRows, 1) * cuda::kTileRows;
}

void pack_numbers(cuda::Uploader& uploader, std::span<const HostMatrix> pieces,
                  CudaLinearWeight& weight) {
  const DType dtype = weight.dtype;
  const size_t row_bytes = static_cast<size_t>(weight.in_features) * size_of(dtype);
  weight.format = to_string(dtype);
  weight.memory =
      std::make_unique<cuda::DeviceBuffer>(row_bytes * static_cast<size_t>(weight.out_features));
  weight.data = weight.memory->data();
  auto* target = static_cast<char*>(weight.memory->data());
  const auto element_bytes = static_cast<int64_t>(size_of(dtype));
  for (const HostMatrix& piece : pieces) {
    const size_t bytes = row_bytes * static_cast<size_t>(piece.rows);
    uploader.copy(target, bytes, [&](char* chunk, size_t begin, size_t count) {
      const auto first = static_cast<int64_t>(begin) / element_bytes;
      read_range(chunk, dtype, piece, first, first + static_cast<int64_t>(count) / element_bytes);
    });
    target += bytes;
  }
}

void pack_parts(cuda::Uploader& uploader, std::span<const cuda::CodePart> parts,
                CudaLinearWeight& weight) {
  constexpr int64_t kPartAlignment = 256;
  const auto aligned = [](int64_t bytes) {
    return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
  };
  int64_t all_bytes = 0;
  for (const cuda::CodePart& part : parts) all_bytes += aligned(part.shape.bytes);
  weight.memory = std::make_unique<cuda::DeviceBuffer>(static_cast<size_t>(all_bytes));
  auto* target = static_cast<char*>(weight.memory->data());
  for (const cuda::CodePart& part : parts) {
    uploader.copy(target, static_cast<size_t>(part.shape.bytes),
                  [&](char* chunk, size_t begin, size_t count) {
                    cuda::pack_codes(part, static_cast<int64_t>(begin), static_cast<int64_t>(count),
                                     chunk);
                  });
    weight.parts.push_back({part.shape, target});
    add_layout(weight.parts_by_layout,
               {part.pieces[0].codes->layout, 1, aligned(part.shape.bytes)});
    target += aligned(part.shape.bytes);
  }
  weight.layout = std::ranges::max_element(weight.parts_by_layout, {}, &LayoutUse::bytes)->layout;
  weight.format = to_string(weight.layout);
}

}  // namespace

std::unique_ptr<LinearWeight> CudaBackend::make_linear(std::span<const HostMatrix> pieces,
                                                       const float* bias, DType dtype) {
  return pack_linear(pieces, bias, dtype, 0);
}

// gated_rows: see cuda::CodeShape; of weights in numbers rows are in order in any case.
std::unique_ptr<LinearWeight> CudaBackend::pack_linear(std::span<const HostMatrix> pieces,
                                                       const float* bias, DType dtype,
                                                       int gated_rows) {
  NANOVLLM_CUDA_CHECK(cudaSetDevice(device_));
  auto weight = std::make_unique<CudaLinearWeight>();
  weight->dtype = dtype;
  weight->in_features = pieces.front().cols;
  for (const HostMatrix& piece : pieces) weight->out_features += piece.rows;
  std::vector<cuda::CodePart> parts = cuda::plan_code_parts(pieces, dtype);
  for (cuda::CodePart& part : parts) part.shape.gated_rows = gated_rows;
  if (parts.empty()) {
    pack_numbers(*uploader_, pieces, *weight);
    add_layout(weight->parts_by_layout,
               {WeightLayout::kPlain, 1, static_cast<int64_t>(weight->memory->bytes()),
                num_with_codes(pieces)});
  } else {
    pack_parts(*uploader_, parts, *weight);
    reserve_decoded(*weight);
  }
  weight->bytes = static_cast<int64_t>(weight->memory->bytes());
  if (bias == nullptr) return weight;
  const auto count = static_cast<size_t>(weight->out_features);
  const auto to_device = [&](const void* host, size_t bytes) {
    auto buffer = std::make_unique<cuda::DeviceBuffer>(bytes);
    upload(buffer->data(), host, bytes);
    return buffer;
  };
  weight->bias = to_device(bias, count * sizeof(float));
  if (dtype == DType::kBFloat16) {
    std::vector<BFloat16> rounded(count);
    std::transform(bias, bias + count, rounded.begin(), to_bfloat16);
    weight->rounded_bias = to_device(rounded.data(), count * sizeof(BFloat16));
  }
  return weight;
}

std::unique_ptr<LinearWeight> CudaBackend::make_linear_of_table(Tensor table) {
  auto weight = std::make_unique<CudaLinearWeight>();
  weight->dtype = table.dtype;
  weight->out_features = table.rows();
  weight->in_features = table.row_size();
  weight->data = table.data;
  return weight;
}

// Memory for what products of many rows decode, before the first step.
void CudaBackend::reserve_decoded(const CudaLinearWeight& weight) {
  int64_t bytes = 0;
  for (const auto& [shape, codes] : weight.parts) {
    const int64_t rows = std::min<int64_t>(decoded_rows(shape), shape.out_features);
    bytes = std::max(bytes, rows * shape.in_features * 2);
  }
  const std::lock_guard lock(decoded_mutex_);
  if (decoded_ != nullptr && static_cast<int64_t>(decoded_->bytes()) >= bytes) return;
  decoded_ = allocate(static_cast<size_t>(bytes));
}

// On some devices: some of the rows at a time, each time with all of the weight. The order of sums
// depends on the number of rows.
bool CudaBackend::multiply_some_rows(cuda::CodeProduct product) {
  const int rows = product.rows;
  if (deterministic_ || rows > cuda::kMaxCodeRows) return false;
  product.rows = std::min(rows, cuda::kMaxCodeWgmmaRows);
  const bool by_groups =
      rows > cuda::kBestStreamRows && cuda::plan_code_wgmma(product, traits_).rows > 0;
  const int most = by_groups ? cuda::kMaxCodeWgmmaRows : cuda::kMaxStreamRows;
  product.rows = std::min(rows, most);
  if (!by_groups && cuda::plan_code_stream(product, traits_).row_sets == 0) return false;
  const int64_t x_bytes = int64_t{product.shape.in_features} * 2;
  const int64_t out_bytes = product.out_stride * static_cast<int64_t>(size_of(product.out_dtype));
  for (int row = 0; row < rows; row += most) {
    product.rows = std::min(rows - row, most);
    if (by_groups) {
      cuda::launch_code_wgmma(stream_, product, cuda::plan_code_wgmma(product, traits_));
    } else {
      cuda::launch_code_stream(stream_, product, cuda::plan_code_stream(product, traits_));
    }
    product.x = static_cast<const char*>(product.x) + x_bytes * most;
    product.out = static_cast<char*>(product.out) + out_bytes * most;
  }
  return true;
}

void CudaBackend::multiply_codes(Tensor out, Tensor x, const CudaLinearWeight& w) {
  int64_t first = 0;
  for (const auto& [shape, codes] : w.parts) {
    cuda::CodeProduct product;
    product.shape = shape;
    product.codes = codes;
    product.rows = static_cast<int>(x.rows());
    product.features = shape.out_features;
    if (w.bias != nullptr) product.bias = w.bias_data() + first;
    product.x = x.data;
    product.out = static_cast<char*>(out.data) + first * static_cast<int64_t>(size_of(out.dtype));
    product.out_dtype = out.dtype;
    product.out_stride = out.row_size();
    if (!multiply_some_rows(product)) cuda::launch_code_product(stream_, product, traits_);
    first += shape.out_features;
  }
}

void CudaBackend::multiply_decoded(Tensor out, Tensor x, const CudaLinearWeight& w) {
  const bool rounds = out.dtype == DType::kBFloat16;
  const auto element_bytes = static_cast<int64_t>(size_of(out.dtype));
  int64_t first = 0;  // of the weight's rows
  for (const auto& [shape, codes] : w.parts) {
    const int64_t rows = decoded_rows(shape);
    for (int64_t row = 0; row < shape.out_features; row += rows) {
      const int64_t count = std::min(rows, shape.out_features - row);
      cuda::launch_decode_codes(stream_, shape, codes, row, count, decoded_->data());
      Tensor part = out;
      part.data = static_cast<char*>(out.data) + (first + row) * element_bytes;
      const void* bias = nullptr;
      if (w.bias != nullptr) {
        const auto* const all =
            static_cast<const char*>((rounds ? w.rounded_bias : w.bias)->data());
        bias = all + (first + row) * element_bytes;
      }
      products_->multiply(stream_, workspace_->data(), part, x, decoded_->data(), bias, count);
    }
    first += shape.out_features;
  }
}

void CudaBackend::linear(Tensor out, Tensor x, const LinearWeight& weight) {
  const auto& w = static_cast<const CudaLinearWeight&>(weight);
  if (x.rows() == 0) return;
  NANOVLLM_CHECK(out.row_size() == w.out_features && x.row_size() == w.in_features &&
                 x.dtype == w.dtype);
  cuda::SkinnyProduct product = skinny_product(w);
  product.rows = static_cast<int>(x.rows());
  product.x = x.data;
  product.out = out.data;
  product.out_dtype = out.dtype;
  product.fixed_order = deterministic_;
  const cuda::ProductPlan plan = cuda::plan_product(product, x.dtype, traits_);
  switch (plan.path) {
    case cuda::ProductPath::kStream:
      return cuda::launch_skinny(stream_, product, plan.stream);
    case cuda::ProductPath::kFewParts:
      return cuda::launch_few_parts(stream_, cuda::in_parts(product), plan.few_parts);
    case cuda::ProductPath::kManyParts:
      return cuda::launch_many_parts(stream_, cuda::in_parts(product), plan.many_parts);
    case cuda::ProductPath::kFloat:
      return cuda::launch_linear_float(stream_, out.f32(), x.data, x.dtype, w.data, w.bias_data(),
                                       product.rows, product.out_features, product.in_features);
    case cuda::ProductPath::kCodes:
      return multiply_codes(out, x, w);
    case cuda::ProductPath::kDecoded:
      return multiply_decoded(out, x, w);
    case cuda::ProductPath::kCublas:
      const bool rounds = w.bias != nullptr && out.dtype == DType::kBFloat16;
      products_->multiply(stream_, workspace_->data(), out, x, w.data,
                          rounds ? w.rounded_bias->data() : w.bias_data(), w.out_features);
  }
}

std::vector<PathChoice> CudaBackend::linear_paths(const LinearWeight& weight, DType out) const {
  cuda::SkinnyProduct product = skinny_product(weight);
  product.out_dtype = out;
  return cuda::product_choices(product, weight.dtype, traits_, deterministic_);
}

}  // namespace nanovllm
