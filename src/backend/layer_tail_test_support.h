// What tests of layer tails share: a layer's weights and input, and the steps that its tail is.
#pragma once

#include <algorithm>

#include "backend/ops_test_support.h"
#include "ops/communicator.h"

#ifdef NANOVLLM_WITH_CUDA
#  include "backend/cuda/cuda_backend.h"
#  include "backend/cuda/device_properties.h"
#endif

namespace nanovllm::test {

#ifdef NANOVLLM_WITH_CUDA
// Whether the GPU is to have kernels that do a layer's tail at once: Hopper, and what has as much
// shared memory.
inline bool has_tail_kernels() {
  const cudaDeviceProp device = cuda::device_properties(0);
  return device.major >= 9 && device.sharedMemPerBlockOptin >= 227 << 10;
}
#endif

struct TailShape {
  int hidden_size, heads, width, next;  // next 0: the last layer's
  bool bias = false;
  Activation activation = Activation::kSilu;
  float offset = 0;  // of the norms
};

constexpr TailShape kSmallQwen = {1024, 2048, 3072, 4096};
constexpr TailShape kLargeLayer = {2048, 2048, 6144, 4096};

// The steps that layer_tail() stands for, by the backend's own simple ops.
inline void take_steps(Communicator& communicator, Backend& backend, Tensor out, Tensor residual,
                       Tensor attention, int width, const LayerTail& tail) {
  const int64_t rows = residual.rows(), hidden_size = residual.row_size();
  const DType act = attention.dtype;
  const DeviceTensor branch = device_tensor(backend, act, {rows, hidden_size});
  const DeviceTensor hidden = device_tensor(backend, act, {rows, hidden_size});
  const DeviceTensor gate_up = device_tensor(backend, act, {rows, 2 * width});
  const DeviceTensor mlp = device_tensor(backend, act, {rows, width});
  const auto add = [&](const NormParams& norm, Tensor to) {
    communicator.all_reduce_add_rms_norm(backend, to, residual, branch.view, norm.weight, norm.eps,
                                         norm.offset);
  };
  backend.linear(branch.view, attention, *tail.output_proj);
  add(tail.norm, hidden.view);
  backend.linear(gate_up.view, hidden.view, *tail.gate_up_proj);
  backend.act_and_mul(mlp.view, gate_up.view, tail.activation);
  backend.linear(branch.view, mlp.view, *tail.down_proj);
  add(tail.next_norm, tail.next_proj != nullptr ? hidden.view : out);
  if (tail.next_proj != nullptr) backend.linear(out, hidden.view, *tail.next_proj);
  backend.synchronize();
}

// A layer's weights and what it works on. Ranks have weights and attention of their own, and norms
// and a residual stream in common.
class TailFixture {
 public:
  TailFixture(Backend& backend, DType act, const TailShape& shape, Random& own, Random& common)
      : backend_(backend), act_(act), shape_(shape) {
    const int hidden_size = shape.hidden_size;
    o_ = weight(hidden_size, shape.heads, own);
    gate_up_ = weight(2 * shape.width, hidden_size, own);
    down_ = weight(hidden_size, shape.width, own);
    if (shape.next > 0) next_ = weight(shape.next, hidden_size, own);
    norm_ = upload(backend, common.floats(hidden_size, 0.5f, 2));
    next_norm_ = upload(backend, common.floats(hidden_size, 0.5f, 2));
    tail = {.output_proj = o_.get(),
            .norm = {static_cast<float*>(norm_->data()), 1e-5f, shape.offset},
            .gate_up_proj = gate_up_.get(),
            .activation = shape.activation,
            .down_proj = down_.get(),
            .next_norm = {static_cast<float*>(next_norm_->data()), 1e-5f, shape.offset},
            .next_proj = next_.get()};
  }
  TailFixture(Backend& backend, DType act, const TailShape& shape, Random& random)
      : TailFixture(backend, act, shape, random, random) {}

  // Fresh input of some rows. As in a model, the output lies over the attention.
  void begin(int rows, Random& own, Random& common) {
    const int64_t hidden_size = shape_.hidden_size;
    x_ = HostTensor(own.floats(rows * shape_.heads, -1, 1), act_, {rows, shape_.heads});
    start_ =
        HostTensor(common.floats(rows * hidden_size, -2, 2), DType::kFloat32, {rows, hidden_size});
    residual = upload(backend_, start_.view);
    const int next = shape_.next > 0 ? shape_.next : shape_.hidden_size;
    both_ = device_tensor(backend_, act_, {rows, std::max({next, shape_.heads, shape_.width})});
    attention = mlp = out = both_.view;
    attention.shape[1] = shape_.heads, mlp.shape[1] = shape_.width, out.shape[1] = next;
    restart();
  }
  void begin(int rows, Random& random) { begin(rows, random, random); }
  void restart() {
    backend_.upload(residual.view.data, start_.bytes.data(), start_.bytes.size());
    backend_.upload(attention.data, x_.bytes.data(), x_.bytes.size());
  }
  bool run() { return backend_.layer_tail(out, residual.view, attention, mlp, tail); }
  bool run(Communicator& communicator) {
    return communicator.layer_tail(backend_, out, residual.view, attention, mlp, tail);
  }
  // Of what a run left.
  void expect_what_steps_give(Communicator& communicator) {
    const HostTensor fused_residual = download(backend_, residual.view);
    const HostTensor fused_out = download(backend_, out);
    restart();
    const DeviceTensor steps_out = device_tensor(backend_, act_, {out.rows(), out.row_size()});
    take_steps(communicator, backend_, steps_out.view, residual.view, attention, shape_.width,
               tail);
    expect_near(fused_residual, download(backend_, residual.view));
    expect_near(fused_out, download(backend_, steps_out.view));
  }
  void expect_what_steps_give() {
    Communicator alone;
    expect_what_steps_give(alone);
  }

  LayerTail tail;
  DeviceTensor residual;
  Tensor attention, mlp, out;

 private:
  std::unique_ptr<LinearWeight> weight(int rows, int cols, Random& random) {
    const HostTensor w(random.floats(int64_t{rows} * cols, -0.1f, 0.1f), act_, {rows, cols});
    const HostMatrix piece{w.bytes.data(), act_, rows, cols, cols};
    const std::vector<float> b = random.floats(rows, -1, 1);
    auto packed = backend_.make_linear({&piece, 1}, shape_.bias ? b.data() : nullptr, act_);
    backend_.synchronize();
    return packed;
  }

  // Values on the edge of two roundings go either way, and take others with them.
  void expect_near(const HostTensor& actual, const HostTensor& wanted) const {
    double errors = 0, largest = 0, sum = 0;
    const int64_t count = actual.view.num_elements();
    for (int64_t i = 0; i < count; ++i) {
      const double error = std::abs(actual.at(i) - wanted.at(i));
      errors += error * error;
      largest = std::max(largest, error);
      sum += std::pow(wanted.at(i), 2);
    }
    EXPECT_LE(std::sqrt(errors / sum), 2 * rounding(act_))
        << actual.view.rows() << " rows of " << shape_.hidden_size;
    EXPECT_LE(largest / std::sqrt(sum / static_cast<double>(count)), 16 * rounding(act_))
        << actual.view.rows() << " rows of " << shape_.hidden_size;
  }

  Backend& backend_;
  const DType act_;
  const TailShape shape_;
  std::unique_ptr<LinearWeight> o_, gate_up_, down_, next_;
  std::unique_ptr<Buffer> norm_, next_norm_;
  HostTensor x_, start_;
  DeviceTensor both_;
};

}  // namespace nanovllm::test
