// Matrix products: y[T,N] = x[T,K] W^T + b. Weights stay as checkpoints have them, [N,K] row by
// row.
#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/layer_tail.h"
#include "backend/cuda/memory.h"
#include "base/check.h"

namespace nanovllm {
namespace {

struct CudaLinearWeight final : LinearWeight {
  const void* data = nullptr;      // [N, K] of dtype
  std::unique_ptr<Buffer> memory;  // that `data` lies in, or none: a table's
  std::unique_ptr<Buffer> bias;    // [N] float32, or none
};

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

// Fills in what the tensors say.
template <typename Product>
void describe(Product& product, Tensor out, Tensor x, const LinearWeight& weight) {
  const auto& w = static_cast<const CudaLinearWeight&>(weight);
  NANOVLLM_CHECK(x.row_size() == w.in_features && w.dtype == DType::kBFloat16);
  product.rows = static_cast<int>(x.rows());
  product.out_features = static_cast<int>(w.out_features);
  product.in_features = static_cast<int>(w.in_features);
  product.weight = w.data;
  product.bias = w.bias == nullptr ? nullptr : static_cast<const float*>(w.bias->data());
  product.x = x.data;
  product.out = out.data;
  if constexpr (requires { product.out_dtype; }) product.out_dtype = out.dtype;
}

}  // namespace

std::unique_ptr<LinearWeight> CudaBackend::make_linear(std::span<const HostMatrix> pieces,
                                                       const float* bias, DType dtype) {
  NANOVLLM_CUDA_CHECK(cudaSetDevice(device_));
  auto weight = std::make_unique<CudaLinearWeight>();
  weight->dtype = dtype;
  weight->in_features = pieces.front().cols;
  for (const HostMatrix& piece : pieces) weight->out_features += piece.rows;
  const size_t row_bytes = static_cast<size_t>(weight->in_features) * size_of(dtype);
  weight->memory =
      std::make_unique<cuda::DeviceBuffer>(row_bytes * static_cast<size_t>(weight->out_features));
  weight->data = weight->memory->data();
  weight->bytes = static_cast<int64_t>(weight->memory->bytes());
  auto* target = static_cast<char*>(weight->memory->data());
  const auto element_bytes = static_cast<int64_t>(size_of(dtype));
  for (const HostMatrix& piece : pieces) {
    const size_t bytes = row_bytes * static_cast<size_t>(piece.rows);
    uploader_->copy(target, bytes, [&](char* chunk, size_t begin, size_t count) {
      const auto first = static_cast<int64_t>(begin) / element_bytes;
      read_range(chunk, dtype, piece, first, first + static_cast<int64_t>(count) / element_bytes);
    });
    target += bytes;
  }
  if (bias != nullptr) {
    const size_t bytes = static_cast<size_t>(weight->out_features) * sizeof(float);
    weight->bias = std::make_unique<cuda::DeviceBuffer>(bytes);
    upload(weight->bias->data(), bias, bytes);
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

void CudaBackend::multiply(Tensor out, Tensor x, const LinearWeight& weight, bool accumulate) {
  const auto& w = static_cast<const CudaLinearWeight&>(weight);
  if (deterministic_ && x.dtype == DType::kFloat32) {
    cuda::launch_linear_float(lane_->stream, out.f32(), x.f32(), static_cast<const float*>(w.data),
                              x.rows(), static_cast<int>(w.out_features),
                              static_cast<int>(w.in_features), accumulate);
  } else {
    products_->multiply({lane_->stream, lane_->workspace->data(), multiprocessors_for_products()},
                        out, x, w.data, w.out_features, accumulate);
  }
}

bool CudaBackend::launch_if_skinny(Tensor out, Tensor x, const LinearWeight& weight) {
  if (x.dtype != DType::kBFloat16) return false;
  cuda::SkinnyProduct product = {.fixed_order = deterministic_};
  describe(product, out, x, weight);
  return cuda::launch_skinny(lane_->stream, product, properties_);
}

void CudaBackend::linear(Tensor out, Tensor x, const LinearWeight& weight) {
  const auto& w = static_cast<const CudaLinearWeight&>(weight);
  if (x.rows() == 0) return;
  NANOVLLM_CHECK(out.row_size() == w.out_features && x.dtype == w.dtype);
  if (launch_if_skinny(out, x, w)) return;
  // The product is added to the bias, so that the sum is rounded once.
  if (w.bias != nullptr) {
    cuda::launch_bias(lane_->stream, out.data, out.dtype, static_cast<float*>(w.bias->data()),
                      static_cast<int>(out.rows()), static_cast<int>(out.row_size()), false);
  }
  multiply(out, x, w, w.bias != nullptr);
}

// The products of a layer's tail, in their order.
std::array<cuda::SkinnyProduct, 4> CudaBackend::tail_products(Tensor out, Tensor residual,
                                                              Tensor attention, Tensor mlp,
                                                              const LayerTail& tail) const {
  std::array<cuda::SkinnyProduct, 4> products;
  products[0].epilogue = cuda::Epilogue::kAdd;
  describe(products[0], residual, attention, *tail.output_proj);
  products[1].norm = tail.norm;
  products[1].epilogue = cuda::Epilogue::kActAndMul;
  products[1].activation = tail.activation;
  describe(products[1], mlp, residual, *tail.gate_up_proj);
  products[2].epilogue = cuda::Epilogue::kAdd;
  describe(products[2], residual, mlp, *tail.down_proj);
  products[3].norm = tail.next_norm;
  if (tail.next_proj != nullptr) {
    describe(products[3], out, residual, *tail.next_proj);
  } else {
    products[3].out = out.data;
    products[3].out_dtype = out.dtype;
  }
  return products;
}

// In a fixed order a row must be normalised as it is with any number of rows: apart. In a lane the
// tails' kernels, which want all multiprocessors, would keep the other lane waiting.
bool CudaBackend::may_fuse_tail(Tensor attention) const {
  return !deterministic_ && !in_lanes_ && attention.dtype == DType::kBFloat16 &&
         attention.rows() > 0;
}

bool CudaBackend::layer_tail(Tensor out, Tensor residual, Tensor attention, Tensor mlp,
                             const LayerTail& tail) {
  if (!may_fuse_tail(attention)) return false;
  const auto products = tail_products(out, residual, attention, mlp, tail);
  if (tail_kernel_ != nullptr && tail_kernel_->launch(lane_->stream, products)) return true;
  const bool is_done = (tail_kernel_ != nullptr &&
                        tail_kernel_->launch_large({.stream = lane_->stream}, products)) ||
                       launch_chain(products);
  if (!is_done) return wgmma_tail(out, residual, attention, mlp, tail);
  norm_after_tail(out, residual, tail);
  return true;
}

int CudaBackend::tail_kernel_blocks() const {
  return tail_kernel_ != nullptr ? properties_.multiProcessorCount : 0;
}

bool CudaBackend::layer_tail_of_ranks(const cuda::PeerQueue& queue, Tensor out, Tensor residual,
                                      Tensor attention, Tensor mlp, const LayerTail& tail) {
  NANOVLLM_CHECK(tail_kernel_ != nullptr);
  if (!may_fuse_tail(attention)) return false;
  const auto products = tail_products(out, residual, attention, mlp, tail);
  if (!tail_kernel_->launch_large(queue, products)) return false;
  norm_after_tail(out, residual, tail);
  return true;
}

// The last layer's norm, which is no part of the chains and of the large kernel.
void CudaBackend::norm_after_tail(Tensor out, Tensor residual, const LayerTail& tail) {
  if (tail.next_proj == nullptr)
    rms_norm(out, residual, tail.next_norm.weight, tail.next_norm.eps, tail.next_norm.offset);
}

bool CudaBackend::launch_chain(std::span<const cuda::SkinnyProduct, 4> products) {
  const auto chain = products.first(products.back().weight != nullptr ? 4 : 3);
  const auto is_skinny = [&](const auto& p) { return cuda::is_skinny(p, properties_); };
  if (!std::ranges::all_of(chain, is_skinny)) return false;
  for (const cuda::SkinnyProduct& product : chain)
    cuda::launch_skinny(lane_->stream, product, properties_);
  return true;
}

bool CudaBackend::wgmma_tail(Tensor out, Tensor residual, Tensor attention, Tensor mlp,
                             const LayerTail& tail) {
  const auto hidden_size = static_cast<int>(residual.row_size());
  // Of a norm between two products, for one at a time.
  cuda::SplitNorm norm = {.weighted = split_norm_->data(),
                          .squares = static_cast<float*>(split_norm_->data()) +
                                     cuda::kMaxWgmmaRows * cuda::kMaxSplitNorm / 2,
                          .parts = cuda::square_parts(hidden_size)};
  std::array<cuda::WgmmaProduct, 4> products;
  norm.norm = tail.norm;
  products[0].epilogue = cuda::Epilogue::kAdd;
  products[0].next_norm = norm;
  describe(products[0], residual, attention, *tail.output_proj);
  products[1].norm = norm;
  products[1].epilogue = cuda::Epilogue::kActAndMul;
  products[1].activation = tail.activation;
  describe(products[1], mlp, residual, *tail.gate_up_proj);
  norm.norm = tail.next_norm;
  products[2].epilogue = cuda::Epilogue::kAdd;
  if (tail.next_proj != nullptr) products[2].next_norm = norm;
  describe(products[2], residual, mlp, *tail.down_proj);
  products[3].norm = norm;
  if (tail.next_proj != nullptr) describe(products[3], out, residual, *tail.next_proj);

  const auto chain = std::span(products).first(tail.next_proj != nullptr ? 4 : 3);
  for (const cuda::WgmmaProduct& product : chain) {
    if (!cuda::takes_wgmma(product, properties_)) return false;
  }
  for (const cuda::WgmmaProduct& product : chain)
    cuda::launch_wgmma(lane_->stream, product, properties_);
  norm_after_tail(out, residual, tail);
  return true;
}

}  // namespace nanovllm
