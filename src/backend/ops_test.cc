// Every op but attention and sampling against its scalar reference, on every backend.
#include "backend/ops_test_support.h"
#ifdef NANOVLLM_WITH_CUDA
#  include <cuda_runtime_api.h>
#endif

namespace nanovllm::test {
namespace {

constexpr int kThreadCounts[] = {1, 2, 3};

using Ops = OpsTest;
INSTANTIATE_TEST_SUITE_P(Backends, Ops, every_backend_and_dtype(), name_of);

TEST_P(Ops, EmbeddingCopiesRowsOfTheShardAndZerosElsewhere) {
  const auto backend = make();
  Random random(1);
  for (const int width : {8, 40, 96, 1001}) {
    const HostTensor table(random.floats(37 * width, -3, 3), act(), {37, width});
    std::vector<int32_t> ids = {5, 41, 4, 42, 0, -1, 17, 17};
    for (int i = 0; i < 60; ++i) ids.push_back(random.between(0, 50));
    const DeviceTensor device = upload(*backend, table.view);
    const auto device_ids = upload(*backend, ids);
    const auto rows = static_cast<int64_t>(ids.size());
    const DeviceTensor out = device_tensor(*backend, DType::kFloat32, {rows, width});
    backend->embedding(out.view, static_cast<int32_t*>(device_ids->data()), device.view, 5);
    expect_close(download(*backend, out.view), reference::embedding(ids, table.view, 5), 0, 0);
  }
}

TEST_P(Ops, RmsNormMatchesReference) {
  const auto backend = make();
  Random random(2);
  for (const int width : {1, 7, 16, 63, 128, 1000, 1024, 2049}) {
    for (const float offset : {0.0f, 1.0f}) {
      const int rows = random.between(1, 40);
      const float scale = width % 2 == 0 ? 1e-3f : 50.0f;
      const HostTensor x(random.floats(rows * width, -scale, scale), DType::kFloat32,
                         {rows, width});
      const std::vector<float> weight = random.floats(width, -2, 2);
      const DeviceTensor device = upload(*backend, x.view);
      const auto device_weight = upload(*backend, weight);
      const DeviceTensor out = device_tensor(*backend, act(), {rows, width});
      backend->rms_norm(out.view, device.view, static_cast<float*>(device_weight->data()), 1e-6f,
                        offset);
      expect_close(download(*backend, out.view), reference::rms_norm(x.view, weight, 1e-6f, offset),
                   rounding(act()) + 1e-6, 0);
    }
  }
}

TEST_P(Ops, AddRmsNormUpdatesTheResidualAndNormalisesIt) {
  const auto backend = make();
  Random random(3);
  for (const int width : {3, 64, 100, 1024}) {
    const int rows = random.between(1, 30);
    const HostTensor residual(random.floats(rows * width, -4, 4), DType::kFloat32, {rows, width});
    const HostTensor x(random.floats(rows * width, -4, 4), act(), {rows, width});
    const std::vector<float> weight = random.floats(width, -2, 2);
    const DeviceTensor device_residual = upload(*backend, residual.view);
    const DeviceTensor device_x = upload(*backend, x.view);
    const auto device_weight = upload(*backend, weight);
    const DeviceTensor out = device_tensor(*backend, act(), {rows, width});
    backend->add_rms_norm(out.view, device_residual.view, device_x.view,
                          static_cast<float*>(device_weight->data()), 1e-5f, 0);
    const HostTensor sum(reference::add(residual.view, x.view), DType::kFloat32, {rows, width});
    const HostTensor actual_sum = download(*backend, device_residual.view);
    expect_same_bits(actual_sum.bytes, sum.bytes);
    expect_close(download(*backend, out.view), reference::rms_norm(sum.view, weight, 1e-5f, 0),
                 rounding(act()) + 1e-6, 0);
  }
}

TEST_P(Ops, RmsNormOfARowIsTheSameAloneAndWithAnyNumberOfThreads) {
  Random random(4);
  const int rows = 33, width = 777;
  const HostTensor x(random.floats(rows * width, -1, 1), DType::kFloat32, {rows, width});
  const std::vector<float> weight = random.floats(width, -2, 2);
  HostTensor first;
  for (const int threads : kThreadCounts) {
    const auto backend = make(threads);
    const DeviceTensor device = upload(*backend, x.view);
    const auto device_weight = upload(*backend, weight);
    const DeviceTensor out = device_tensor(*backend, act(), {rows, width});
    const auto* w = static_cast<float*>(device_weight->data());
    backend->rms_norm(out.view, device.view, w, 1e-6f, 0);
    HostTensor all = download(*backend, out.view);
    for (const int r : {0, 13, 32}) {
      backend->rms_norm(out.view.first_rows(1), device.view.slice_rows(r, r + 1), w, 1e-6f, 0);
      expect_same_bits(download(*backend, out.view.first_rows(1)).bytes, all.row(r));
    }
    if (first.bytes.empty())
      first = std::move(all);
    else
      expect_same_bits(all.bytes, first.bytes);
  }
}

TEST_P(Ops, ActAndMulMatchesReference) {
  const auto backend = make();
  Random random(5);
  for (const Activation activation :
       {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh}) {
    for (const int width : {1, 8, 33, 768, 3072}) {
      const int rows = random.between(1, 9);
      std::vector<float> values = random.floats(rows * 2 * width, -6, 6);
      // Gates far out, where the activation is 0, tiny or the identity.
      const float far[] = {-1e30f, -300, -88, -40, -12, 0, 12, 40, 88, 300, 1e30f};
      for (size_t i = 0; i < std::size(far) && static_cast<int>(i) < width; ++i) values[i] = far[i];
      const HostTensor x(values, act(), {rows, 2 * width});
      const DeviceTensor device = upload(*backend, x.view);
      const DeviceTensor out = device_tensor(*backend, act(), {rows, width});
      backend->act_and_mul(out.view, device.view, activation);
      expect_close(download(*backend, out.view), reference::act_and_mul(x.view, activation),
                   rounding(act()) + 5e-6, 1e-30);
    }
  }
}

TEST_P(Ops, GatherRowsCopiesBits) {
  const auto backend = make();
  Random random(6);
  const HostTensor x(random.floats(50 * 321, -1, 1), act(), {50, 321});
  std::vector<int32_t> rows;
  for (int i = 0; i < 70; ++i) rows.push_back(random.below(50));
  const DeviceTensor device = upload(*backend, x.view);
  const auto device_rows = upload(*backend, rows);
  const DeviceTensor out = device_tensor(*backend, act(), {70, 321});
  backend->gather_rows(out.view, device.view, static_cast<int32_t*>(device_rows->data()));
  const HostTensor actual = download(*backend, out.view);
  for (int r = 0; r < 70; ++r) expect_same_bits(actual.row(r), x.row(rows[r]));
}

TEST_P(Ops, LinearMatchesReference) {
  const auto backend = make();
  Random random(7);
  for (const auto& [depth, first_rows, second_rows] :
       {std::tuple{8, 3, 1}, {64, 48, 16}, {200, 33, 64}, {1024, 17, 5}}) {
    const int rows = random.between(1, 20);
    const int width = first_rows + second_rows;
    const HostTensor weight(random.floats(width * depth, -1, 1), act(), {width, depth});
    const HostTensor x(random.floats(rows * depth, -1, 1), act(), {rows, depth});
    const std::vector<float> bias = random.floats(width, -1, 1);
    const size_t offset = static_cast<size_t>(first_rows) * depth * size_of(act());
    const HostMatrix pieces[] = {{weight.bytes.data(), act(), first_rows, depth, depth},
                                 {weight.bytes.data() + offset, act(), second_rows, depth, depth}};
    const auto packed = backend->make_linear(pieces, bias.data(), act());
    const DeviceTensor device = upload(*backend, x.view);
    const DeviceTensor out = device_tensor(*backend, DType::kFloat32, {rows, width});
    backend->linear(out.view, device.view, *packed);
    expect_close(download(*backend, out.view), reference::linear(x.view, weight.view, bias), 2e-6,
                 1e-5);
  }
}

// Sizes on both sides of the boundaries where a backend may change its kernel.
constexpr struct {
  int rows, depth, width;
} kProducts[] = {{1, 8, 6},     {1, 1024, 384}, {2, 256, 64},   {5, 3072, 40}, {7, 200, 34},
                 {8, 2048, 96}, {9, 1024, 64},  {17, 512, 130}, {33, 64, 48},  {70, 1032, 20}};

TEST_P(Ops, LinearMatchesReferenceForAnyNumberOfRows) {
  const auto backend = make();
  Random random(8);
  for (const auto& [rows, depth, width] : kProducts) {
    const HostTensor weight(random.floats(width * depth, -0.1f, 0.1f), act(), {width, depth});
    const HostTensor x(random.floats(rows * depth, -1, 1), act(), {rows, depth});
    const std::vector<float> bias(width, 3);
    const HostMatrix piece{weight.bytes.data(), act(), width, depth, depth};
    const auto packed = backend->make_linear({&piece, 1}, bias.data(), act());
    const DeviceTensor device = upload(*backend, x.view);
    const DeviceTensor out = device_tensor(*backend, act(), {rows, width});
    backend->linear(out.view, device.view, *packed);
    // A device may round the product before it adds the bias.
    expect_close(download(*backend, out.view), reference::linear(x.view, weight.view, bias),
                 rounding(act()) + 2e-6, 8 * rounding(act()) + 1e-5);
  }
}

TEST_P(Ops, LinearOfARowIsTheSameInAnyCompany) {
  if (!backend_case().is_deterministic) GTEST_SKIP() << "promised with `deterministic` only";
  const auto backend = make();
  Random random(9);
  for (const int depth : {64, 1032, 3072}) {
    constexpr int kRows = 75, kWidth = 96;
    const HostTensor weight(random.floats(kWidth * depth, -1, 1), act(), {kWidth, depth});
    const HostTensor x(random.floats(kRows * depth, -1, 1), act(), {kRows, depth});
    const HostMatrix piece{weight.bytes.data(), act(), kWidth, depth, depth};
    const auto packed = backend->make_linear({&piece, 1}, nullptr, act());
    const DeviceTensor device = upload(*backend, x.view);
    const DeviceTensor out = device_tensor(*backend, DType::kFloat32, {kRows, kWidth});
    backend->linear(out.view, device.view, *packed);
    const HostTensor all = download(*backend, out.view);
    for (const auto& [begin, end] : {std::pair{0, 1}, {3, 5}, {13, 31}, {40, 75}}) {
      backend->linear(out.view.slice_rows(begin, end), device.view.slice_rows(begin, end), *packed);
      const HostTensor some = download(*backend, out.view.slice_rows(begin, end));
      for (int row = begin; row < end; ++row) expect_same_bits(some.row(row - begin), all.row(row));
    }
  }
}

TEST_P(Ops, LinearOfATableIsThatOfAWeightOfItsOwn) {
  const auto backend = make();
  Random random(13);
  for (const auto& [rows, depth, width] : kProducts) {
    const HostTensor matrix(random.floats(width * depth, -1, 1), act(), {width, depth});
    const HostTensor x(random.floats(rows * depth, -1, 1), act(), {rows, depth});
    const DeviceTensor table = device_tensor(*backend, act(), {width, depth});
    const auto shared = backend->make_linear_of_table(table.view);
    ASSERT_EQ(shared == nullptr, backend->is_cpu());
    if (shared == nullptr) GTEST_SKIP() << "this backend's weights have a layout of their own";
    // Filled in later, as loading does.
    backend->upload(table.view.data, matrix.bytes.data(), matrix.bytes.size());
    const HostMatrix piece{matrix.bytes.data(), act(), width, depth, depth};
    const auto own = backend->make_linear({&piece, 1}, nullptr, act());
    const DeviceTensor device = upload(*backend, x.view);
    const DeviceTensor expected = device_tensor(*backend, DType::kFloat32, {rows, width});
    const DeviceTensor actual = device_tensor(*backend, DType::kFloat32, {rows, width});
    backend->linear(expected.view, device.view, *own);
    backend->linear(actual.view, device.view, *shared);
    expect_same_bits(download(*backend, actual.view).bytes,
                     download(*backend, expected.view).bytes);
  }
}

// The steps that layer_tail() stands for, by the backend's own simple ops.
void take_steps(Backend& backend, Tensor out, Tensor residual, Tensor attention, int width,
                const LayerTail& tail) {
  const int64_t rows = residual.rows(), hidden_size = residual.row_size();
  const DType act = attention.dtype;
  const DeviceTensor branch = device_tensor(backend, act, {rows, hidden_size});
  const DeviceTensor hidden = device_tensor(backend, act, {rows, hidden_size});
  const DeviceTensor gate_up = device_tensor(backend, act, {rows, 2 * width});
  const DeviceTensor mlp = device_tensor(backend, act, {rows, width});
  const auto add = [&](const NormParams& norm, Tensor to) {
    backend.add_rms_norm(to, residual, branch.view, norm.weight, norm.eps, norm.offset);
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

struct TailShape {
  int hidden_size, heads, width, next;  // next 0: the last layer's
  bool bias = false;
  Activation activation = Activation::kSilu;
  float offset = 0;  // of the norms
};

// A layer's weights and what it works on.
class TailFixture {
 public:
  TailFixture(Backend& backend, DType act, const TailShape& shape, Random& random)
      : backend_(backend), act_(act), shape_(shape) {
    const int hidden_size = shape.hidden_size;
    o_ = weight(hidden_size, shape.heads, random);
    gate_up_ = weight(2 * shape.width, hidden_size, random);
    down_ = weight(hidden_size, shape.width, random);
    if (shape.next > 0) next_ = weight(shape.next, hidden_size, random);
    norm_ = upload(backend, random.floats(hidden_size, 0.5f, 2));
    next_norm_ = upload(backend, random.floats(hidden_size, 0.5f, 2));
    tail = {.output_proj = o_.get(),
            .norm = {static_cast<float*>(norm_->data()), 1e-5f, shape.offset},
            .gate_up_proj = gate_up_.get(),
            .activation = shape.activation,
            .down_proj = down_.get(),
            .next_norm = {static_cast<float*>(next_norm_->data()), 1e-5f, shape.offset},
            .next_proj = next_.get()};
  }

  // Fresh input of some rows.
  void begin(int rows, Random& random) {
    const int64_t hidden_size = shape_.hidden_size;
    x_ = HostTensor(random.floats(rows * shape_.heads, -1, 1), act_, {rows, shape_.heads});
    start_ =
        HostTensor(random.floats(rows * hidden_size, -2, 2), DType::kFloat32, {rows, hidden_size});
    attention_ = upload(backend_, x_.view);
    residual = upload(backend_, start_.view);
    out = device_tensor(backend_, act_, {rows, shape_.next > 0 ? shape_.next : hidden_size});
    mlp_ = device_tensor(backend_, act_, {rows, shape_.width});
  }
  void restart() { backend_.upload(residual.view.data, start_.bytes.data(), start_.bytes.size()); }
  bool run() {
    return backend_.layer_tail(out.view, residual.view, attention_.view, mlp_.view, tail);
  }
  // Of what a run left.
  void expect_what_steps_give() {
    const HostTensor fused_residual = download(backend_, residual.view);
    const HostTensor fused_out = download(backend_, out.view);
    restart();
    take_steps(backend_, out.view, residual.view, attention_.view, shape_.width, tail);
    expect_near(fused_residual, download(backend_, residual.view));
    expect_near(fused_out, download(backend_, out.view));
  }

  LayerTail tail;
  DeviceTensor residual, out;

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
    double error = 0, sum = 0;
    for (int64_t i = 0; i < actual.view.num_elements(); ++i) {
      error += std::pow(actual.at(i) - wanted.at(i), 2);
      sum += std::pow(wanted.at(i), 2);
    }
    EXPECT_LE(std::sqrt(error / sum), 2 * rounding(act_))
        << actual.view.rows() << " rows of " << shape_.hidden_size;
  }

  Backend& backend_;
  const DType act_;
  const TailShape shape_;
  std::unique_ptr<LinearWeight> o_, gate_up_, down_, next_;
  std::unique_ptr<Buffer> norm_, next_norm_;
  HostTensor x_, start_;
  DeviceTensor attention_, mlp_;
};

constexpr TailShape kSmallQwen = {1024, 2048, 3072, 4096};

// Of up to 8 rows. Backends need not do it; CUDA is expected to.
bool fuses_layer_tail(const BackendCase& backend, DType act) {
  return backend.name == "cuda" && act == DType::kBFloat16;
}

// Tails of 9 to 128 rows, of layers that are large enough.
bool fuses_many_rows([[maybe_unused]] const BackendCase& backend, [[maybe_unused]] DType act) {
#ifdef NANOVLLM_WITH_CUDA
  int major = 0, minor = 0;
  return fuses_layer_tail(backend, act) &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) == cudaSuccess &&
         major == 9 && minor == 0;
#else
  return false;
#endif
}

TEST_P(Ops, LayerTailIsWhatItsStepsAre) {
  const auto backend = make();
  Random random(10);
  if (!fuses_layer_tail(backend_case(), act())) {
    TailFixture layer(*backend, act(), {64, 64, 160, 128}, random);
    layer.begin(4, random);
    ASSERT_FALSE(layer.run());
    GTEST_SKIP() << "takes the steps one by one";
  }
  const struct {
    std::vector<int> row_counts;
    TailShape shape;
  } cases[] = {{{1, 2, 3, 4, 5, 6, 7, 8}, kSmallQwen},
               {{1, 8, 5}, {1024, 2048, 3072, 0}},
               {{1, 3, 8}, {896, 1152, 2944, 4072, true, Activation::kGelu, 1}},
               {{4, 9, 1}, {64, 64, 160, 128}},
               {{2, 7}, {256, 512, 128, 0, true, Activation::kGeluTanh, 1}},
               {{2}, {200, 96, 344, 66, true, Activation::kGeluTanh}},
               {{3}, {256, 520, 72, 0}},
               {{8}, {2048, 1024, 1032, 600}}};
  for (const auto& [row_counts, shape] : cases) {
    TailFixture layer(*backend, act(), shape, random);
    for (const int rows : row_counts) {
      layer.begin(rows, random);
      const bool is_done = layer.run();
      EXPECT_EQ(is_done, rows <= 8);  // 9 of so small a layer are no rows for Hopper's kernels
      if (is_done) layer.expect_what_steps_give();
    }
  }
}

TEST_P(Ops, LayerTailOfManyRowsIsWhatItsStepsAre) {
  if (!fuses_many_rows(backend_case(), act())) GTEST_SKIP() << "takes the steps one by one";
  const auto backend = make();
  Random random(13);
  const struct {
    std::vector<int> row_counts;
    TailShape shape;
  } cases[] = {{{9, 16, 17, 31, 32, 33, 48, 64, 65, 96, 97, 128, 129}, kSmallQwen},
               // Eight blocks share K.
               {{70, 96, 128}, {512, 2048, 1536, 1536}},
               {{16, 31, 50, 90, 111}, {1024, 2048, 3072, 0, true, Activation::kGelu, 1}},
               // Tiles with features missing.
               {{11, 32, 48, 61, 70, 127}, {960, 2048, 2560, 6000, true, Activation::kGeluTanh}}};
  for (const auto& [row_counts, shape] : cases) {
    TailFixture layer(*backend, act(), shape, random);
    for (const int rows : row_counts) {
      layer.begin(rows, random);
      const bool is_done = layer.run();
      EXPECT_EQ(is_done, rows <= 128);
      if (is_done) layer.expect_what_steps_give();
    }
  }
}

TEST_P(Ops, LayerTailIsOfEveryBackendOfADevice) {
  if (!fuses_layer_tail(backend_case(), act())) GTEST_SKIP() << "takes the steps one by one";
  const auto first = make(), second = make();
  Random random(12);
  for (Backend* backend : {first.get(), second.get()}) {
    TailFixture layer(*backend, act(), kSmallQwen, random);
    layer.begin(2, random);
    ASSERT_TRUE(layer.run());
    layer.expect_what_steps_give();
  }
}

TEST_P(Ops, LayerTailRepeatsItselfInGraphs) {
  if (!fuses_layer_tail(backend_case(), act())) GTEST_SKIP() << "takes the steps one by one";
  const auto backend = make();
  Random random(11);
  TailFixture layer(*backend, act(), kSmallQwen, random);
  for (const int rows : {1, 8, 3, 9, 32, 17, 48, 64, 80, 128}) {
    layer.begin(rows, random);
    const bool is_done = layer.run();
    ASSERT_EQ(is_done, rows <= 8 || fuses_many_rows(backend_case(), act()));
    if (!is_done) continue;
    layer.run();
    layer.run();
    const HostTensor residual = download(*backend, layer.residual.view);
    const HostTensor out = download(*backend, layer.out.view);
    const auto graph = backend->capture([&] {
      for (int i = 0; i < 3; ++i) layer.run();
    });
    for (int i = 0; i < 100; ++i) {
      layer.restart();
      backend->launch(*graph);
      expect_same_bits(download(*backend, layer.residual.view).row(rows - 1),
                       residual.row(rows - 1));
      expect_same_bits(download(*backend, layer.out.view).row(rows - 1), out.row(rows - 1));
    }
  }
}

}  // namespace
}  // namespace nanovllm::test
