// Products whose rows have the same bits for any number of rows (linear_parts.h) beside those of
// others: the default's fastest and a fixed order of linear_skinny.cu's, for the shapes of
// Qwen3-0.6B and 8B. Weights are rotated so that none is found in L2; ways in turns, medians.
// Fails where a result is wrong.
//
//   cuda_parts_bench [ROWS...]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "backend/cuda/linear/linear_parts.h"
#include "backend/cuda/linear/linear_skinny_plan.h"
#include "backend/cuda/linear/linear_wgmma.h"
#include "backend/cuda/linear/linear_wgmma_plan.h"
#include "backend/cuda/linear/product.h"
#include "cuda_experiment.cuh"
#include "cuda_timer.h"

namespace nanovllm::cuda {
namespace {

constexpr size_t kWorkspace = size_t{32} << 20;

struct BenchShape {
  const char* name;
  int n, k;
};
constexpr BenchShape kShapes[] = {{"qkv 0.6B", 4096, 1024},     {"o 0.6B", 1024, 2048},
                                  {"gate_up 0.6B", 6144, 1024}, {"down 0.6B", 1024, 3072},
                                  {"qkv 8B", 6144, 4096},       {"o 8B", 4096, 4096},
                                  {"gate_up 8B", 24576, 4096},  {"down 8B", 4096, 12288},
                                  {"head 0.6B", 151936, 1024},  {"head 8B", 151936, 4096}};

__global__ void compare_kernel(const Bf16* y, const Bf16* expected, int64_t count, float* sums,
                               unsigned* others) {
  float error = 0, norm = 0;
  unsigned other = 0;
  for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
    const float a = load(y + i), b = load(expected + i);
    error += (a - b) * (a - b);
    norm += b * b;
    other += a != b;
  }
  atomicAdd(sums, error);
  atomicAdd(sums + 1, norm);
  atomicAdd(others, other);
}

class Bench {
 public:
  explicit Bench(const cudaDeviceProp& device)
      : device_(device), products_(kWorkspace), workspace_(allocate<char>(kWorkspace)) {}

  int run(const BenchShape& shape, const std::vector<int>& row_counts) {
    const int64_t elements = int64_t{shape.n} * shape.k;
    const int copies =
        static_cast<int>(std::max<int64_t>((int64_t{160} << 20) / (elements * 2), 2));
    std::vector<Bf16*> weights;
    for (int i = 0; i < copies; ++i) weights.push_back(random<Bf16>(elements, 0, 0.03f));
    const int most = *std::max_element(row_counts.begin(), row_counts.end());
    Bf16* x = random<Bf16>(int64_t{most} * shape.k, 0, 1);
    Bf16* out = allocate<Bf16>(int64_t{most} * shape.n);
    Bf16* expected = allocate<Bf16>(int64_t{most} * shape.n);
    int failures = 0;
    for (const int rows : row_counts) {
      SkinnyProduct p;
      p.rows = rows;
      p.out_features = shape.n;
      p.in_features = shape.k;
      p.weight = weights[0];
      p.x = x;
      p.out = out;
      const char* name = "";
      const std::function<void(cudaStream_t, const void*)> ways[] = {
          [&](cudaStream_t stream, const void* weight) { run_default(stream, p, weight, &name); },
          [&](cudaStream_t stream, const void* weight) {
            SkinnyProduct q = p;
            q.weight = weight;
            q.fixed_order = true;
            launch_skinny(stream, q, skinny::plan_of(q, device_));
          },
          [&](cudaStream_t stream, const void* weight) { run_parts(stream, p, weight); }};
      failures += check(p, expected, ways[0], ways[2]);
      const int launches = rows > 1024 ? 2 : std::min(copies, 12);
      std::vector<cudaGraphExec_t> graphs;
      for (const auto& way : ways) {
        way(nullptr, weights[0]);
        NANOVLLM_CUDA_CHECK(cudaDeviceSynchronize());
        graphs.push_back(capture([&](cudaStream_t stream) {
          for (int i = 0; i < launches; ++i) way(stream, weights[i % copies]);
        }));
      }
      CudaTimer timer(nullptr);
      const std::vector<Medians> medians = in_turns(5, 3, [&](int way) {
        return timer.time([&] { NANOVLLM_CUDA_CHECK(cudaGraphLaunch(graphs[way], nullptr)); }) /
               launches;
      });
      for (cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
      const double rate = 2e-6 * rows * shape.n * shape.k / medians[2].time;
      std::printf("%-13s %5d | %9.2f %9.2f %9.2f | %6.3f | %5.0f GB/s %4.0f TFLOP/s, default: %s\n",
                  shape.name, rows, medians[0].time, medians[1].time, medians[2].time,
                  medians[2].ratio, elements * 2e-3 / medians[2].time, rate, name);
      std::fflush(stdout);
    }
    for (Bf16* weight : weights) cudaFree(weight);
    cudaFree(x);
    cudaFree(out);
    cudaFree(expected);
    return failures;
  }

 private:
  void run_default(cudaStream_t stream, SkinnyProduct p, const void* weight, const char** name) {
    p.weight = weight;
    const skinny::Plan plan = skinny::plan_of(p, device_);
    WgmmaProduct q;
    static_cast<FusedProduct&>(q) = p;
    if (plan.tiles > 0) {
      *name = "skinny";
      launch_skinny(stream, p, plan);
    } else if (plan_wgmma(q, device_.multiProcessorCount).rows > 0) {
      *name = "wgmma";
      launch_wgmma(stream, q, device_.multiProcessorCount);
    } else {
      *name = "cuBLASLt";
      const Tensor x(const_cast<void*>(p.x), DType::kBFloat16, {p.rows, p.in_features});
      const Tensor out(p.out, DType::kBFloat16, {p.rows, p.out_features});
      products_.multiply(stream, workspace_, out, x, weight, nullptr, p.out_features);
    }
  }

  void run_parts(cudaStream_t stream, const SkinnyProduct& p, const void* weight) {
    PartsProduct q;
    static_cast<FusedProduct&>(q) = p;
    q.weight = weight;
    if (p.rows <= kMaxFewPartsRows) {
      launch_few_parts(stream, q, plan_few_parts(q, device_.multiProcessorCount));
    } else {
      launch_many_parts(stream, q, plan_many_parts(q, device_.multiProcessorCount));
    }
  }

  template <typename A, typename B>
  int check(const SkinnyProduct& p, Bf16* expected, const A& default_way, const B& parts) {
    const int64_t count = int64_t{p.rows} * p.out_features;
    default_way(nullptr, p.weight);
    NANOVLLM_CUDA_CHECK(cudaDeviceSynchronize());
    NANOVLLM_CUDA_CHECK(cudaMemcpy(expected, p.out, count * 2, cudaMemcpyDeviceToDevice));
    NANOVLLM_CUDA_CHECK(cudaMemset(p.out, 0xff, count * 2));
    parts(nullptr, p.weight);
    float* sums = allocate<float>(2);
    auto* others = allocate<unsigned>(1);
    compare_kernel<<<256, 256>>>(static_cast<const Bf16*>(p.out), expected, count, sums, others);
    NANOVLLM_CUDA_CHECK(cudaDeviceSynchronize());
    const std::vector<float> s = to_host<float>(sums, 2);
    const double error = s[1] > 0 ? std::sqrt(s[0] / s[1]) : INFINITY;
    cudaFree(sums);
    cudaFree(others);
    if (error < 1e-3) return 0;
    std::printf("WRONG: %d rows, %d x %d: %.2e\n", p.rows, p.out_features, p.in_features, error);
    return 1;
  }

  const cudaDeviceProp device_;
  CublasProducts products_;
  char* workspace_;
};

}  // namespace
}  // namespace nanovllm::cuda

int main(int argc, char** argv) {
  using namespace nanovllm::cuda;
  std::vector<int> rows;
  for (int i = 1; i < argc; ++i) rows.push_back(std::atoi(argv[i]));
  if (rows.empty()) rows = {1, 4, 8, 16, 32, 64, 128, 256, 2048, 8192};
  const cudaDeviceProp device = the_device();
  std::printf("%s, %d multiprocessors; us\n%-13s %5s | %9s %9s %9s | %6s\n", device.name,
              device.multiProcessorCount, "shape", "rows", "default", "skinny", "parts", "ratio");
  Bench bench(device);
  int failures = 0;
  for (const BenchShape& shape : kShapes) failures += bench.run(shape, rows);
  return failures != 0;
}
