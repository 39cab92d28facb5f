// Matrix products on a GPU: ours beside cuBLASLt, for the shapes of Qwen3-0.6B and 8B, and a whole
// decode step's products in one graph, for those of Qwen2.5-0.5B and Qwen3 up to 32B. Weights are
// rotated so that none is found in L2; all times are of CUDA graphs with enough launches that the
// start does not count.
//
//   cuda_linear_bench [check|products|step|repeat [SECONDS of each number of rows]]
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/device/device_context.h"
#include "backend/cuda/layer/layer_tail.h"
#include "backend/cuda/layer/row_kernels.h"
#include "backend/cuda/linear/linear_skinny_plan.h"
#include "backend/cuda/linear/linear_wgmma.h"
#include "backend/cuda/linear/linear_wgmma_plan.h"
#include "cuda_timer.h"

namespace nanovllm::cuda {
namespace {

using Bf16 = BFloat16;

const DeviceTraits& device() { return DeviceContext::of(0).traits(); }

// False, having done nothing, for products that no plan divides.
bool try_skinny(cudaStream_t stream, const SkinnyProduct& product) {
  const skinny::Plan plan = skinny::plan_of(product, device().properties);
  if (plan.tiles == 0) return false;
  launch_skinny(stream, product, plan);
  return true;
}

struct Shape {
  const char* name;
  int n, k;
  Epilogue epilogue;
  bool norm;
};
const Shape kSmall[] = {{"qkv", 4096, 1024, Epilogue::kStore, true},
                        {"o", 1024, 2048, Epilogue::kAdd, false},
                        {"gate_up", 6144, 1024, Epilogue::kActAndMul, true},
                        {"down", 1024, 3072, Epilogue::kAdd, false},
                        {"head", 151936, 1024, Epilogue::kStore, false}};
const Shape kLarge[] = {{"qkv 8B", 6144, 4096, Epilogue::kStore, true},
                        {"o 8B", 4096, 4096, Epilogue::kAdd, false},
                        {"gate_up 8B", 24576, 4096, Epilogue::kActAndMul, true},
                        {"down 8B", 4096, 12288, Epilogue::kAdd, false}};

// n numbers in [-scale, scale) on the device; the seed moves them along.
template <typename T>
T* device_array(int64_t n, float scale = 1, int seed = 1) {
  static const std::vector<float> random = [] {
    std::mt19937 engine(1);
    std::vector<float> values(1000003);
    for (float& value : values) value = static_cast<float>(engine() >> 8) * 0x1p-23f - 1;
    return values;
  }();
  std::vector<T> host(std::min<int64_t>(n, 32 << 20));
  for (size_t i = 0; i < host.size(); ++i) {
    const float value = random[(i + static_cast<size_t>(seed) * 7919) % random.size()] * scale;
    if constexpr (sizeof(T) == 2) {
      host[i] = to_bfloat16(value);
    } else {
      host[i] = value;
    }
  }
  T* p = nullptr;
  NANOVLLM_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&p), n * sizeof(T)));
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(host.size())) {
    NANOVLLM_CUDA_CHECK(cudaMemcpy(p + i, host.data(),
                                   std::min<int64_t>(n - i, host.size()) * sizeof(T),
                                   cudaMemcpyHostToDevice));
  }
  return p;
}

// The one that all kernels are launched on: those that wait for all their blocks must not meet.
cudaStream_t the_stream() {
  static const cudaStream_t stream = [] {
    cudaStream_t s;
    NANOVLLM_CUDA_CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
  }();
  return stream;
}

using Enqueue = std::function<void(cudaStream_t)>;

// What `enqueue` puts on the stream, which it has done once before.
cudaGraphExec_t capture(const Enqueue& enqueue) {
  const cudaStream_t stream = the_stream();
  enqueue(stream);
  NANOVLLM_CUDA_CHECK(cudaStreamSynchronize(stream));
  cudaGraph_t graph;
  cudaGraphExec_t instance;
  NANOVLLM_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  enqueue(stream);
  NANOVLLM_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  NANOVLLM_CUDA_CHECK(cudaGraphInstantiate(&instance, graph, 0));
  cudaGraphDestroy(graph);
  return instance;
}

// Microseconds of one replay, the median of several.
double time_graph(const Enqueue& enqueue) {
  constexpr size_t kReplays = 5;
  const cudaStream_t stream = the_stream();
  const cudaGraphExec_t instance = capture(enqueue);
  const double time = CudaTimer(stream).median(
      kReplays, [&] { NANOVLLM_CUDA_CHECK(cudaGraphLaunch(instance, stream)); });
  cudaGraphExecDestroy(instance);
  return time;
}

// out = x W^T through cuBLASLt with the best of the first `tries` algorithms.
class Cublas {
 public:
  Cublas() {
    NANOVLLM_CUDA_CHECK(cublasLtCreate(&handle_));
    NANOVLLM_CUDA_CHECK(cudaMalloc(&workspace_, kWorkspace));
  }
  struct Problem {
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t w, x, out;
    std::vector<cublasLtMatmulHeuristicResult_t> results;
  };
  Problem problem(int rows, int n, int k, bool float_out, int tries) {
    Problem p;
    cublasLtMatmulDescCreate(&p.description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t transpose = CUBLAS_OP_T;
    cublasLtMatmulDescSetAttribute(p.description, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                   sizeof transpose);
    cublasLtMatrixLayoutCreate(&p.w, CUDA_R_16BF, k, n, k);
    cublasLtMatrixLayoutCreate(&p.x, CUDA_R_16BF, k, rows, k);
    cublasLtMatrixLayoutCreate(&p.out, float_out ? CUDA_R_32F : CUDA_R_16BF, n, rows, n);
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulPreferenceCreate(&preference);
    const size_t workspace = kWorkspace;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &workspace, sizeof workspace);
    p.results.resize(tries);
    int count = 0;
    NANOVLLM_CUDA_CHECK(cublasLtMatmulAlgoGetHeuristic(handle_, p.description, p.w, p.x, p.out,
                                                       p.out, preference, tries, p.results.data(),
                                                       &count));
    p.results.resize(count);
    return p;
  }
  void run(cudaStream_t stream, const Problem& p, int algorithm, const Bf16* w, const Bf16* x,
           void* out) {
    const float one = 1, zero = 0;
    NANOVLLM_CUDA_CHECK(cublasLtMatmul(handle_, p.description, &one, w, p.w, x, p.x, &zero, out,
                                       p.out, out, p.out, &p.results[algorithm].algo, workspace_,
                                       kWorkspace, stream));
  }

 private:
  static constexpr size_t kWorkspace = size_t{32} << 20;
  cublasLtHandle_t handle_;
  void* workspace_;
};

template <typename T>
std::vector<T> to_host(const T* p, int64_t n) {
  std::vector<T> v(n);
  NANOVLLM_CUDA_CHECK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
  return v;
}

// Every epilogue and prologue against simple kernels.
int check() {
  int failures = 0;
  Cublas cublas;
  constexpr int kShapes[][2] = {{4096, 1024}, {1024, 2048}, {1024, 3072}, {6144, 1024}, {50, 8},
                                {1003, 200},  {8200, 1032}, {256, 12288}, {24576, 4096}};
  for (const auto& shape : kShapes) {
    const int n = shape[0], k = shape[1];
    for (const int rows : {1, 2, 5, 8, 9, 16, 17, 32}) {
      Bf16* w = device_array<Bf16>(int64_t{n} * k, 1, 3);
      Bf16* x = device_array<Bf16>(int64_t{rows} * k, 1, 4);
      float* residual_in = device_array<float>(int64_t{rows} * k, 1, 5);
      float* norm = device_array<float>(k, 1, 6);
      float* bias = device_array<float>(n, 1, 7);
      Bf16* hidden = device_array<Bf16>(int64_t{rows} * k);
      float* y = device_array<float>(int64_t{rows} * n);
      float* out = device_array<float>(int64_t{rows} * n, 1, 8);
      const std::vector<float> before = to_host(out, int64_t{rows} * n);
      const std::vector<float> b = to_host(bias, n);
      for (const bool with_norm : {false, true}) {
        if (with_norm) {
          launch_rms_norm(nullptr, hidden, DType::kBFloat16, nullptr, nullptr, 1, residual_in, norm,
                          rows, k, 1e-6f);
        }
        const auto problem = cublas.problem(rows, n, k, true, 1);
        cublas.run(nullptr, problem, 0, w, with_norm ? hidden : x, y);
        const std::vector<float> expected = to_host(y, int64_t{rows} * n);
        for (const Epilogue e : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kActAndMul}) {
          if (e == Epilogue::kActAndMul && n % 2 != 0) continue;
          SkinnyProduct p;
          p.rows = rows;
          p.out_features = n;
          p.in_features = k;
          p.weight = w;
          p.bias = bias;
          p.x = with_norm ? static_cast<void*>(residual_in) : x;
          if (with_norm) p.norm = {norm, 1e-6f};
          p.epilogue = e;
          p.out = out;
          p.out_dtype = e == Epilogue::kStore ? DType::kFloat32 : DType::kBFloat16;
          NANOVLLM_CUDA_CHECK(
              cudaMemcpy(out, before.data(), before.size() * 4, cudaMemcpyHostToDevice));
          if (!try_skinny(nullptr, p)) continue;
          NANOVLLM_CUDA_CHECK(cudaDeviceSynchronize());
          double error = 0, norm2 = 0;
          const int width = e == Epilogue::kActAndMul ? n / 2 : n;
          const std::vector<float> f = to_host(out, int64_t{rows} * n);
          const std::vector<Bf16> h = to_host(reinterpret_cast<Bf16*>(out), int64_t{rows} * width);
          for (int64_t i = 0; i < int64_t{rows} * width; ++i) {
            const int64_t row = i / width, c = i % width;
            const auto at = [&](int64_t col) { return double(expected[row * n + col]) + b[col]; };
            double want = at(c), got = f[i];
            if (e == Epilogue::kAdd) want += before[i];
            if (e == Epilogue::kActAndMul) {
              want = want / (1 + std::exp(-want)) * at(width + c);
              got = to_float(h[i]);
            }
            error += (got - want) * (got - want);
            norm2 += want * want;
          }
          const double relative = std::sqrt(error / norm2);
          const double limit = e == Epilogue::kStore ? (with_norm ? 3e-4 : 5e-6) : 6e-3;
          if (!(relative < limit)) {
            ++failures;
            std::printf("WRONG n %d k %d rows %d norm %d epilogue %d: %.2e\n", n, k, rows,
                        with_norm, static_cast<int>(e), relative);
          }
        }
      }
      for (void* p : {(void*)w, (void*)x, (void*)residual_in, (void*)norm, (void*)bias,
                      (void*)hidden, (void*)y, (void*)out}) {
        cudaFree(p);
      }
    }
  }
  std::printf("check: %d failures\n", failures);
  return failures;
}

void products(const std::vector<int>& row_counts, bool large) {
  static Cublas cublas;
  std::printf("%-11s %5s | %8s %6s | %8s %8s %3s | %8s\n", "shape", "rows", "ours us", "GB/s",
              "cublas0", "best", "#", "norm+ours");
  const std::vector<Shape> shapes = large
                                        ? std::vector<Shape>(std::begin(kLarge), std::end(kLarge))
                                        : std::vector<Shape>(std::begin(kSmall), std::end(kSmall));
  for (const Shape& s : shapes) {
    const int64_t bytes = int64_t{2} * s.n * s.k;
    const int copies = static_cast<int>(std::max<int64_t>(2, (int64_t{300} << 20) / bytes + 1));
    const int launches = std::max(copies, 8);
    std::vector<Bf16*> weights;
    for (int i = 0; i < copies; ++i) {
      weights.push_back(device_array<Bf16>(int64_t{s.n} * s.k, 0.03f, i));
    }
    const int max_rows = *std::max_element(row_counts.begin(), row_counts.end());
    Bf16* x = device_array<Bf16>(int64_t{max_rows} * s.k);
    float* residual = device_array<float>(int64_t{max_rows} * s.k);
    float* norm = device_array<float>(s.k);
    auto* out = device_array<float>(int64_t{max_rows} * s.n);
    for (const int rows : row_counts) {
      double ours = 0, fused = 0;
      SkinnyProduct p;
      p.rows = rows;
      p.out_features = s.n;
      p.in_features = s.k;
      p.x = x;
      p.epilogue = s.epilogue;
      p.out = out;
      p.out_dtype = s.n > 100000 ? DType::kFloat32 : DType::kBFloat16;
      const auto run = [&](cudaStream_t stream) {
        for (int i = 0; i < launches; ++i) {
          p.weight = weights[i % copies];
          try_skinny(stream, p);
        }
      };
      p.weight = weights[0];
      if (try_skinny(nullptr, p)) ours = time_graph(run) / launches;
      p.norm = {norm, 1e-6f};
      p.x = residual;
      if (s.norm && try_skinny(nullptr, p)) fused = time_graph(run) / launches;
      const auto problem = cublas.problem(rows, s.n, s.k, p.out_dtype == DType::kFloat32, 8);
      double first = 0, best = 1e9;
      int which = 0;
      for (int a = 0; a < static_cast<int>(problem.results.size()); ++a) {
        const double t = time_graph([&](cudaStream_t stream) {
                           for (int i = 0; i < launches; ++i) {
                             cublas.run(stream, problem, a, weights[i % copies], x, out);
                           }
                         }) /
                         launches;
        if (a == 0) first = t;
        if (t < best) {
          best = t;
          which = a;
        }
      }
      std::printf("%-11s %5d | %8.2f %6.0f | %8.2f %8.2f %3d | %8.2f | %5.0f TFLOP/s\n", s.name,
                  rows, ours, ours > 0 ? bytes / ours * 1e-3 : 0, first, best, which, fused,
                  2e-6 * rows * s.n * s.k / best);
    }
    for (Bf16* w : weights) cudaFree(w);
    cudaFree(x);
    cudaFree(residual);
    cudaFree(norm);
    cudaFree(out);
  }
}

struct LayerWeights {
  Bf16 *qkv, *o, *gate_up, *down;
};

struct Layers {
  const char* name;
  int hidden, heads, width, qkv;  // features
  int count;

  int64_t weight_bytes() const {
    return int64_t{2} * hidden * (int64_t{heads} + 3 * width + qkv);  // of a layer
  }
};
constexpr Layers kQwenSmall = {"0.6B", 1024, 2048, 3072, 4096, 28};
constexpr Layers kSteps[] = {kQwenSmall,
                             {"0.5B", 896, 896, 4864, 1152, 24},
                             {"1.7B", 2048, 2048, 6144, 4096, 14},
                             {"4B", 2560, 4096, 9728, 6144, 8},
                             {"8B", 4096, 4096, 12288, 6144, 8},
                             {"14B", 5120, 5120, 17408, 7168, 6},
                             {"32B", 5120, 8192, 25600, 10240, 4}};

// The products of the layers of one decode step.
class DecodeStep {
 public:
  explicit DecodeStep(const Layers& shape) : shape_(shape) {
    const auto matrix = [](int n, int k, int seed) {
      return device_array<Bf16>(int64_t{n} * k, 0.03f, seed);
    };
    for (int i = 0; i < shape.count; ++i) {
      layers_.push_back({matrix(shape.qkv, shape.hidden, i), matrix(shape.hidden, shape.heads, i),
                         matrix(2 * shape.width, shape.hidden, i),
                         matrix(shape.hidden, shape.width, i)});
    }
  }
  ~DecodeStep() {
    for (const LayerWeights& l : layers_) {
      for (Bf16* w : {l.qkv, l.o, l.gate_up, l.down}) cudaFree(w);
    }
    for (float* x : {residual_, norm_, squares_}) cudaFree(x);
    for (Bf16* x : {hidden_, branch_, gate_up_, qkv_, attention_, mlp_}) cudaFree(x);
  }
  DecodeStep(const DecodeStep&) = delete;
  DecodeStep& operator=(const DecodeStep&) = delete;

  void set_rows(int rows) { rows_ = rows; }

  // What is between two attentions: from one layer's output projection to the next one's q, k, v;
  // with `kernel` in one launch a layer. False if one is not for these kernels.
  bool run(cudaStream_t stream, const LayerTailKernel* kernel) const {
    const auto [name, hidden, heads, width, qkv, count] = shape_;
    for (int i = 0; i < count; ++i) {
      const LayerWeights &l = layers_[i], &next = layers_[(i + 1) % count];
      const std::array products = {
          product(hidden, heads, l.o, attention_, false, Epilogue::kAdd, residual_),
          product(2 * width, hidden, l.gate_up, residual_, true, Epilogue::kActAndMul, mlp_),
          product(hidden, width, l.down, mlp_, false, Epilogue::kAdd, residual_),
          product(qkv, hidden, next.qkv, residual_, true, Epilogue::kStore, qkv_)};
      if (kernel != nullptr) {
        const int multiprocessors = device().num_multiprocessors();
        if (LayerTailKernel::takes(products, multiprocessors)) {
          kernel->launch(stream, products);
        } else if (LayerTailKernel::takes_large(products, multiprocessors)) {
          kernel->launch_large({.stream = stream}, products);
        } else {
          return false;
        }
      } else {
        for (const SkinnyProduct& p : products) {
          if (!try_skinny(stream, p)) return false;
        }
      }
    }
    return true;
  }

  // For more rows. False if they are not for this device's kernels.
  bool run_wgmma(cudaStream_t stream) const {
    const auto [name, hidden, heads, width, qkv, count] = shape_;
    for (int i = 0; i < count; ++i) {
      const LayerWeights &l = layers_[i], &next = layers_[(i + 1) % count];
      for (const WgmmaProduct& p :
           {wgmma(hidden, heads, l.o, attention_, false, Epilogue::kAdd, residual_),
            wgmma(2 * width, hidden, l.gate_up, nullptr, true, Epilogue::kActAndMul, mlp_),
            wgmma(hidden, width, l.down, mlp_, false, Epilogue::kAdd, residual_),
            wgmma(qkv, hidden, next.qkv, nullptr, true, Epilogue::kStore, qkv_)}) {
        const int multiprocessors = device().num_multiprocessors();
        if (!device().has_wgmma || plan_wgmma(p, multiprocessors).features == 0) return false;
        launch_wgmma(stream, p, multiprocessors);
      }
    }
    return true;
  }

  // The same step from the same start again and again, which has to end in the same bits: a race
  // between a kernel's warps can be so rare that nothing else shows it. Returns how many times it
  // did not.
  int repeat_wgmma(double seconds) const {
    std::printf("%s, %d rows: ", shape_.name, rows_);
    const std::vector<float> start = to_host(residual_, rows_ * shape_.hidden);
    if (!run_wgmma(the_stream())) {
      std::printf("skipped, not for this device's kernels\n");
      return 0;
    }
    const int64_t residual_bytes = int64_t{4} * rows_ * shape_.hidden;
    const int64_t qkv_bytes = int64_t{2} * rows_ * shape_.qkv;
    const auto again = [&] {
      NANOVLLM_CUDA_CHECK(cudaMemcpyAsync(residual_, start.data(), residual_bytes,
                                          cudaMemcpyHostToDevice, the_stream()));
      NANOVLLM_CUDA_CHECK(cudaMemsetAsync(qkv_, 0, qkv_bytes, the_stream()));
    };
    const cudaGraphExec_t step = capture([&](cudaStream_t s) { run_wgmma(s); });
    const auto result = [&] {
      again();
      NANOVLLM_CUDA_CHECK(cudaGraphLaunch(step, the_stream()));
      NANOVLLM_CUDA_CHECK(cudaStreamSynchronize(the_stream()));
      return std::pair(to_host(reinterpret_cast<const char*>(residual_), residual_bytes),
                       to_host(reinterpret_cast<const char*>(qkv_), qkv_bytes));
    };
    const auto expected = result();
    int steps = 0, failures = 0;
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(seconds)) {
      failures += result() != expected;
      ++steps;
    }
    again();
    cudaGraphExecDestroy(step);
    std::printf("%d of %d steps ended in other bits\n", failures, steps);
    return failures;
  }

  // cuBLASLt and the kernels between its products.
  void run_cublas(cudaStream_t stream) {
    const auto [name, hidden, heads, width, qkv, count] = shape_;
    const auto multiply = [&](int n, int k, const Bf16* w, const Bf16* x, Bf16* out) {
      cublas_.run(stream, cublas_.problem(rows_, n, k, false, 1), 0, w, x, out);
    };
    const auto add_and_norm = [&, size = hidden] {
      launch_rms_norm(stream, hidden_, DType::kBFloat16, residual_, branch_, 1, nullptr, norm_,
                      rows_, size, 1e-6f);
    };
    for (int i = 0; i < count; ++i) {
      const LayerWeights &l = layers_[i], &next = layers_[(i + 1) % count];
      multiply(hidden, heads, l.o, attention_, branch_);
      add_and_norm();
      multiply(2 * width, hidden, l.gate_up, hidden_, gate_up_);
      launch_act_and_mul(stream, mlp_, gate_up_, DType::kBFloat16, rows_, width, Activation::kSilu);
      multiply(hidden, width, l.down, mlp_, branch_);
      add_and_norm();
      multiply(qkv, hidden, next.qkv, hidden_, qkv_);
    }
  }

 private:
  WgmmaProduct wgmma(int n, int k, const void* weight, const void* x, bool norm, Epilogue epilogue,
                     void* out) const {
    WgmmaProduct p;
    p.rows = rows_;
    p.out_features = n;
    p.in_features = k;
    p.weight = weight;
    p.x = x;
    const SplitNorm split = {{norm_, 1e-6f}, hidden_, squares_, square_parts(shape_.hidden)};
    if (norm) p.norm = split;
    if (epilogue == Epilogue::kAdd) p.next_norm = split;
    p.epilogue = epilogue;
    p.out = out;
    return p;
  }
  SkinnyProduct product(int n, int k, const void* weight, const void* x, bool norm,
                        Epilogue epilogue, void* out) const {
    SkinnyProduct p;
    p.rows = rows_;
    p.out_features = n;
    p.in_features = k;
    p.weight = weight;
    p.x = x;
    if (norm) p.norm = {norm_, 1e-6f};
    p.epilogue = epilogue;
    p.out = out;
    return p;
  }

  static constexpr int kMaxRows = 256;

  const Layers shape_;
  int rows_ = 1;
  Cublas cublas_;
  std::vector<LayerWeights> layers_;
  float* residual_ = device_array<float>(kMaxRows * shape_.hidden);
  float* norm_ = device_array<float>(shape_.hidden);
  float* squares_ = device_array<float>(kMaxRows * 16);
  Bf16* hidden_ = device_array<Bf16>(kMaxRows * shape_.hidden);
  Bf16* branch_ = device_array<Bf16>(kMaxRows * shape_.hidden);
  Bf16* gate_up_ = device_array<Bf16>(kMaxRows * 2 * shape_.width);
  Bf16* qkv_ = device_array<Bf16>(kMaxRows * shape_.qkv);
  Bf16* attention_ = device_array<Bf16>(kMaxRows * shape_.heads);
  Bf16* mlp_ = device_array<Bf16>(kMaxRows * shape_.width);
};

void step() {
  const auto kernel = LayerTailKernel::make(DeviceContext::of(0), "this benchmark").kernel;
  for (const Layers& layers : kSteps) {
    DecodeStep decode(layers);
    for (const int rows : {1, 2, 4, 8}) {
      decode.set_rows(rows);
      std::printf("%s, %d rows, us a layer (memory floor %.2f):", layers.name, rows,
                  static_cast<double>(layers.weight_bytes()) / 4.65e6);
      for (const LayerTailKernel* way : {static_cast<LayerTailKernel*>(nullptr), kernel.get()}) {
        if (!decode.run(the_stream(), way)) continue;
        const double time = time_graph([&](cudaStream_t s) { decode.run(s, way); });
        std::printf(" %s %.2f,", way == nullptr ? "chain" : "one kernel", time / layers.count);
      }
      const double cublas = time_graph([&](cudaStream_t s) { decode.run_cublas(s); });
      std::printf(" cuBLASLt and kernels %.2f\n", cublas / layers.count);
    }
  }
  DecodeStep decode(kQwenSmall);
  for (const int rows : {9, 16, 32, 48, 64, 96, kMaxWgmmaRows}) {
    decode.set_rows(rows);
    std::printf("0.6B, %d rows, us a layer:", rows);
    if (decode.run_wgmma(the_stream())) {
      const double ours = time_graph([&](cudaStream_t s) { decode.run_wgmma(s); });
      std::printf(" chain %.2f,", ours / kQwenSmall.count);
    }
    const double cublas = time_graph([&](cudaStream_t s) { decode.run_cublas(s); });
    std::printf(" cuBLASLt and kernels %.2f\n", cublas / kQwenSmall.count);
  }
}

int repeat(double seconds) {
  int failures = 0;
  DecodeStep decode(kQwenSmall);
  for (const int rows : {9, 16, 32, 48, 64, 80, 96, 112, kMaxWgmmaRows}) {
    decode.set_rows(rows);
    failures += decode.repeat_wgmma(seconds);
  }
  return failures;
}

}  // namespace
}  // namespace nanovllm::cuda

int main(int argc, char** argv) {
  using namespace nanovllm::cuda;
  const std::string what = argc > 1 ? argv[1] : "all";
  int failures = 0;
  if (what == "check" || what == "all") failures = check();
  if (what == "step" || what == "all") step();
  if (what == "repeat" || what == "all") failures += repeat(argc > 2 ? std::atof(argv[2]) : 0.3);
  if (what == "products" || what == "all") products({1, 2, 4, 8, 16, 32, 64, 128, 256}, false);
  if (what == "large" || what == "all") products({1, 8, 32}, true);
  if (what == "prefill" || what == "all") products({512, 2048, 8192}, false);
  return failures != 0;
}
