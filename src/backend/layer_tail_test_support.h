// What tests of layer tails share: a layer's weights and input, and the steps that its tail is.
#pragma once

#include <algorithm>
#include <optional>

#include "backend/ops_test_support.h"
#include "ops/layer_program.h"

#ifdef NANOVLLM_WITH_CUDA
#  include "backend/cuda/backend/cuda_backend.h"
#  include "backend/cuda/device/device_context.h"
#  include "backend/cuda/layer/layer_plan.h"
#  include "backend/cuda/layer/layer_tail.h"
#endif

namespace nanovllm::test {

#ifdef NANOVLLM_WITH_CUDA
// Whether the GPU is to have kernels that do a layer's tail at once: Hopper, and what has as much
// shared memory.
inline bool has_tail_kernels() {
  const cuda::DeviceTraits& device = cuda::DeviceContext::of(0).traits();
  return device.properties.major >= 9 && device.block_bytes() >= 227 << 10;
}
#endif

struct TailShape {
  int hidden_size, heads, width, next;  // next 0: the last layer's
  bool bias = false;
  Activation activation = Activation::kSilu;
};

constexpr TailShape kSmallQwen = {1024, 2048, 3072, 4096};
constexpr TailShape kLargeLayer = {2048, 2048, 6144, 4096};

// What a layer does behind its core, by the backend's own simple ops.
inline void take_steps(Backend& backend, const Activations& x, const PackedLayer& layer,
                       const NormParams& next_norm, const PackedLayer* next) {
  const auto add = [&](const NormParams& norm) {
    backend.all_reduce_add_rms_norm(x.hidden, x.residual, x.branch, norm.weight, norm.eps);
  };
  backend.linear(x.branch, x.core_out, *layer.out);
  add(layer.before_ffn);
  backend.linear(x.gate_up, x.hidden, *layer.gate_up);
  backend.act_and_mul(x.mlp, x.gate_up, layer.activation);
  backend.linear(x.branch, x.mlp, *layer.down);
  add(next_norm);
  if (next != nullptr) backend.linear(x.core_in, x.hidden, *next->in);
  backend.synchronize();
}

// A layer's weights and what it works on. Ranks have weights and attention of their own, and norms
// and a residual stream in common.
class TailFixture {
 public:
  TailFixture(Backend& backend, DType act, const TailShape& shape, Random& own, Random& common)
      : backend_(backend), act_(act), shape_(shape) {
    const int hidden_size = shape.hidden_size;
    layer.out = weight(hidden_size, shape.heads, own);
    layer.gate_up = weight(2 * shape.width, hidden_size, own);
    layer.down = weight(hidden_size, shape.width, own);
    layer.activation = shape.activation;
    if (shape.next > 0) next_layer_.in = weight(shape.next, hidden_size, own);
    norm_ = upload(backend, common.floats(hidden_size, 0.5f, 2));
    next_norm_ = upload(backend, common.floats(hidden_size, 0.5f, 2));
    layer.before_ffn = {static_cast<float*>(norm_->data()), 1e-5f};
    next_norm = {static_cast<float*>(next_norm_->data()), 1e-5f};
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
    attention.shape[1] = shape_.heads;
    mlp.shape[1] = shape_.width;
    out.shape[1] = next;
    restart();
  }
  void begin(int rows, Random& random) { begin(rows, random, random); }
  void restart() {
    backend_.upload(residual.view.data, start_.bytes.data(), start_.bytes.size());
    backend_.upload(attention.data, x_.bytes.data(), x_.bytes.size());
  }
  const PackedLayer* next() const { return next_layer_.in != nullptr ? &next_layer_ : nullptr; }
#ifdef NANOVLLM_WITH_CUDA
  // On the path that is planned for so many rows, or on one that a test asks for. False if that is
  // op by op.
  bool run(std::optional<cuda::TailPath> wanted = {}) {
    auto* const cuda_backend = dynamic_cast<CudaBackend*>(&backend_);
    if (cuda_backend == nullptr || act_ != DType::kBFloat16) return false;
    const cuda::TailProducts products = cuda_backend->tail_products(layer, next_norm, next());
    const cuda::TailPath path =
        wanted ? *wanted
               : cuda::plan_tail(products, static_cast<int>(residual.view.rows()),
                                 cuda_backend->tail_traits());
    if (path == cuda::TailPath::kOpByOp) return false;
    Activations x;
    x.residual = residual.view;
    x.core_out = attention;
    x.mlp = mlp;
    x.core_in = x.hidden = out;
    cuda_backend->run_tail(path, products, x);
    return true;
  }
#else
  bool run() { return false; }
#endif
  // Of what a run left.
  void expect_what_steps_give() {
    const HostTensor fused_residual = download(backend_, residual.view);
    const HostTensor fused_out = download(backend_, out);
    restart();
    const int64_t rows = out.rows();
    const auto scratch = [&](int64_t cols) { return device_tensor(backend_, act_, {rows, cols}); };
    const DeviceTensor hidden = scratch(shape_.hidden_size), branch = scratch(shape_.hidden_size),
                       gate_up = scratch(2 * shape_.width), steps_mlp = scratch(shape_.width),
                       steps_out = scratch(out.row_size());
    take_steps(backend_,
               {.residual = residual.view,
                .hidden = next() != nullptr ? hidden.view : steps_out.view,
                .branch = branch.view,
                .core_in = steps_out.view,
                .means = {},
                .core_out = attention,
                .gate_up = gate_up.view,
                .mlp = steps_mlp.view},
               layer, next_norm, next());
    expect_near(fused_residual, download(backend_, residual.view));
    expect_near(fused_out, download(backend_, steps_out.view));
  }

  PackedLayer layer;
  NormParams next_norm;
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
  PackedLayer next_layer_;
  std::unique_ptr<Buffer> norm_, next_norm_;
  HostTensor x_, start_;
  DeviceTensor both_;
};

}  // namespace nanovllm::test
