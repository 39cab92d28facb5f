// Which ways through the tensor cores give a row's product the same bits: mma.sync with the weights
// on either side and with K in other orders, wgmma of 8 to 256 rows, cuBLASLt without split K at 1
// to 8,192 rows, and a model of the hardware's sums in whole numbers. Prints the ways that do not
// have the bits of wgmma with 64 rows everywhere, with the percentages of float32 sums, and of sums
// rounded to bfloat16, that differ. Fails if any way is wrong beyond rounding.
#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/device/tensor_map.h"
#include "backend/cuda/device/tma.cuh"
#include "backend/cuda/device/wgmma.cuh"
#include "cuda_experiment.cuh"

namespace nanovllm::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
__device__ inline void multiply_tile(float (&d)[4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(a), "l"(b));
}
__device__ inline void multiply_tile(float (&d)[128], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" NANOVLLM_NAMES_64
               ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
               "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
               "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "
               "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, "
               "%123, %124, %125, %126, %127}, %128, %129, 1, 1, 1, 0, 0;"
               : NANOVLLM_SUMS_32(0), NANOVLLM_SUMS_32(32), NANOVLLM_SUMS_32(64),
                 NANOVLLM_SUMS_32(96)
               : "l"(a), "l"(b));
}
__device__ inline void multiply_registers(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NANOVLLM_NAMES_32
               "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
               : NANOVLLM_SUMS_32(0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#endif

namespace {

constexpr int kFeatures = 4096, kRows = 64, kMostRows = 8192;  // rows repeat after kRows
constexpr int kDepths[] = {896, 1024, 2048, 3072, 4096, 5120, 12288, 25600};
constexpr int kMostDepth = 25600;

__global__ void double_kernel(double* out, const Bf16* w, const Bf16* x, int k) {
  const int feature = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y;
  double sum = 0;
  for (int i = 0; i < k; ++i) {
    sum += double{load(w + int64_t{feature} * k + i)} * load(x + row * k + i);
  }
  out[row * kFeatures + feature] = sum;
}
template <typename T>
__global__ void compare_kernel(const T* y, const float* expected, int64_t count, unsigned* others) {
  for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
    const float a = load(y + i), b = expected[i % (kRows * kFeatures)];
    if (__float_as_uint(a) != __float_as_uint(b)) atomicAdd(others, 1);
    if (round_to_bfloat16(a) != round_to_bfloat16(b)) atomicAdd(others + 1, 1);
  }
}

// The model of MMA-Sim: the products of a step of 16 and the sum so far are cut `bits` below the
// largest exponent, a product's being the sum of its factors', added exactly, and the result is cut
// to float32.
__global__ void model_kernel(float* out, const Bf16* w, const Bf16* x, int k, int bits) {
  const int feature = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y;
  const auto exponent = [](float v) { return v == 0 ? -500 : ilogbf(v); };
  float sum = 0;
  for (int first = 0; first < k; first += 16) {
    const Bf16 *a = w + int64_t{feature} * k + first, *b = x + row * k + first;
    int largest = exponent(sum);
    for (int i = 0; i < 16; ++i) {
      largest = max(largest, exponent(load(a + i)) + exponent(load(b + i)));
    }
    const double unit = ldexp(1., largest - bits);
    double total = trunc(sum / unit);  // a whole number, exactly
    for (int i = 0; i < 16; ++i) total += trunc(double{load(a + i)} * load(b + i) / unit);
    sum = __double2float_rz(total * unit);
  }
  out[row * kFeatures + feature] = sum;
}

// Plain: steps of 16 one after the other. The layer tail's: 0-3, 8-11, 16-19 and 24-27 of each 32
// share a step, and so do the rest.
enum class Order { kPlain, kWithinStep, kTail };

__device__ uint32_t pair(const Bf16* p) { return *reinterpret_cast<const uint32_t*>(p); }

template <Order kOrder>
__global__ void mma_kernel(const Bf16* left, const Bf16* right, int k, float* out, int left_stride,
                           int right_stride) {
  const int r = threadIdx.x / 4, c = threadIdx.x % 4;
  const int row = blockIdx.x * 16 + r, column = blockIdx.y * 8 + c * 2;
  const Bf16 *a = left + int64_t{row} * k, *b = right + (int64_t{blockIdx.y} * 8 + r) * k;
  float sums[4] = {};
  for (int i = 0; i < k / 16; ++i) {
    int first = i * 16 + c * 2, second = first + 8;
    if (kOrder != Order::kPlain) {
      first = kOrder == Order::kTail ? i / 2 * 32 + i % 2 * 4 + c * 8 : i * 16 + c * 4;
      second = first + 2;
    }
    mma_bf16(sums,
             {pair(a + first), pair(a + 8 * k + first), pair(a + second), pair(a + 8 * k + second)},
             pair(b + first), pair(b + second));
  }
  for (int e = 0; e < 4; ++e) {
    out[(row + e / 2 * 8) * left_stride + (column + e % 2) * right_stride] = sums[e];
  }
}

// 64 lines of the left matrix times n of the right one; with `left`, through registers.
template <int n, bool kRegisters>
__global__ void __launch_bounds__(128)
    wgmma_kernel(const __grid_constant__ CUtensorMap left_map,
                 const __grid_constant__ CUtensorMap right_map, const Bf16* left, int k, float* out,
                 int left_stride, int right_stride) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ alignas(1024) uint8_t a[64 * 128], b[n * 128];
  __shared__ Barrier full;
  if (threadIdx.x == 0) {
    full.init(1);
    publish_barriers();
  }
  __syncthreads();
  const int thread = threadIdx.x, line = blockIdx.x * 64 + thread / 32 * 16 + thread % 32 / 4;
  const int column = blockIdx.y * n + thread % 4 * 2;
  float sums[n / 2] = {};
  for (int chunk = 0; chunk < k / 64; ++chunk) {
    if (thread == 0) {
      full.expect((64 + n) * 128);
      load_box<false>(a, left_map, blockIdx.x * 64, chunk, full);
      load_box<false>(b, right_map, blockIdx.y * n, chunk, full);
    }
    full.wait(chunk % 2);
    const uint64_t right = describe_tile(shared_address(b));
    if constexpr (kRegisters) {
      uint32_t words[4][4];
      for (int i = 0; i < 16; ++i) {
        words[i / 4][i % 4] = pair(left + int64_t{line + i % 2 * 8} * k + chunk * 64 + i / 4 * 16 +
                                   i % 4 / 2 * 8 + thread % 4 * 2);
      }
      begin_products();
      for (int step = 0; step < 4; ++step) multiply_registers(sums, words[step], right + step * 2);
    } else {
      begin_products();
      for (int step = 0; step < 4; ++step) {
        multiply_tile(sums, describe_tile(shared_address(a)) + step * 2, right + step * 2);
      }
    }
    commit_products();
    wait_products<0>();
    __syncthreads();
  }
  for (int i = 0; i < n / 2; ++i) {
    out[(line + i % 4 / 2 * 8) * left_stride + (column + i / 4 * 8 + i % 2) * right_stride] =
        sums[i];
  }
#endif
}

class Experiment {
 public:
  Experiment() { NANOVLLM_CUDA_CHECK(cublasLtCreate(&lt_)); }

  // Numbers times 2^-scales to 2^scales.
  void run(int k, int scales) {
    k_ = k;
    const int64_t weights = int64_t{kFeatures} * k, rows = int64_t{kRows} * k;
    fill_kernel<<<1024, 256>>>(w_, weights, weights, 1, 0, 1, scales);
    fill_kernel<<<1024, 256>>>(x_, int64_t{kMostRows} * k, rows, 2, 0, 1, scales);
    double_kernel<<<dim3(kFeatures / 32, kRows), 32>>>(exact_, w_, x_, k);
    wgmma<64, false>(expected_, "wgmma, n = 64", true);
    wgmma<8, false>(y_, "wgmma, n = 8", true);
    wgmma<128, false>(y_, "wgmma, n = 128", true);
    wgmma<256, false>(y_, "wgmma, n = 256", true);
    wgmma<64, true>(y_, "wgmma, weights from registers", true);
    wgmma<128, false>(y_, "wgmma, weights right, n = 128", false);
    mma<Order::kPlain>("mma");
    mma<Order::kWithinStep>("mma, another order within steps");
    mma<Order::kTail>("mma, steps of the layer tail");
    for (const int bits : {24, 25, 26}) {
      model_kernel<<<dim3(kFeatures / 32, 8), 32>>>(y_, w_, x_, k, bits);
      add("model, " + std::to_string(bits) + " bits", y_, 8);
    }
    for (const int rows : {1, 2, 8, 16, 64, 128, 256, 1024, 4096, kMostRows}) {
      cublas<float>(rows, CUDA_R_32F, "cuBLASLt, float32, rows " + std::to_string(rows));
      cublas<Bf16>(rows, CUDA_R_16BF, "cuBLASLt, bfloat16, rows " + std::to_string(rows));
    }
    std::printf("K %d, %s numbers: %d of %d ways have the same bits\n", k,
                scales == 0 ? "random" : "badly scaled", equal_, ways_);
    ways_ = equal_ = 0;
  }
  bool is_wrong() const { return wrong_; }

 private:
  template <int n, bool kRegisters>
  void wgmma(float* out, const char* name, bool weights_left) {
    const Bf16 *left = weights_left ? w_ : x_, *right = weights_left ? x_ : w_;
    const CUtensorMap left_map =
        make_tensor_map(left, weights_left ? kFeatures : kMostRows, k_, 1, {64, 1});
    const CUtensorMap right_map =
        make_tensor_map(right, weights_left ? kMostRows : kFeatures, k_, 1, {n, 1});
    const dim3 grid = weights_left ? dim3(kFeatures / 64) : dim3(1, kFeatures / n);
    wgmma_kernel<n, kRegisters><<<grid, 128>>>(left_map, right_map, left, k_, out,
                                               weights_left ? 1 : kFeatures,
                                               weights_left ? kFeatures : 1);
    add(name, out, weights_left ? n : 64);
  }
  template <Order kOrder>
  void mma(const std::string& name) {
    mma_kernel<kOrder><<<dim3(kFeatures / 16, kRows / 8), 32>>>(w_, x_, k_, y_, 1, kFeatures);
    add(name + ", weights left", y_, kRows);
    mma_kernel<kOrder><<<dim3(kRows / 16, kFeatures / 8), 32>>>(x_, w_, k_, y_, kFeatures, 1);
    add(name + ", weights right", y_, kRows);
  }

  // The first algorithm's bits, and how many of all have the same.
  template <typename T>
  void cublas(int rows, cudaDataType_t type, const std::string& name) {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t w, x, out;
    cublasLtMatmulPreference_t preference;
    const cublasOperation_t transpose = CUBLAS_OP_T;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE;
    NANOVLLM_CUDA_CHECK(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                   sizeof transpose);
    cublasLtMatrixLayoutCreate(&w, CUDA_R_16BF, k_, kFeatures, k_);
    cublasLtMatrixLayoutCreate(&x, CUDA_R_16BF, k_, rows, k_);
    cublasLtMatrixLayoutCreate(&out, type, kFeatures, rows, kFeatures);
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &kWorkspace, sizeof kWorkspace);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                         &reductions, sizeof reductions);
    std::vector<cublasLtMatmulHeuristicResult_t> found(6);
    int count = 0, equal = 0;
    NANOVLLM_CUDA_CHECK(cublasLtMatmulAlgoGetHeuristic(lt_, product, w, x, out, out, preference, 6,
                                                       found.data(), &count));
    std::string first;
    const float one = 1, zero = 0;
    for (int i = 0; i < count; ++i) {
      NANOVLLM_CUDA_CHECK(cublasLtMatmul(lt_, product, &one, w_, w, x_, x, &zero, y_, out, y_, out,
                                         &found[i].algo, workspace_, kWorkspace, nullptr));
      const std::string differing = compare(reinterpret_cast<T*>(y_), rows, name);
      if (i == 0) first = differing;
      equal += differing.empty();
    }
    if (!first.empty()) first = ", not the first: " + first;
    if (equal < count) first = std::to_string(equal) + " of " + std::to_string(count) + first;
    add(name, first);
    for (const auto layout : {w, x, out}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatmulDescDestroy(product);
  }

  void add(const std::string& name, const std::string& differing) {
    ++ways_;
    equal_ += differing.empty();
    if (!differing.empty()) std::printf("  %s: %s\n", name.c_str(), differing.c_str());
  }
  void add(const std::string& name, const float* y, int rows) { add(name, compare(y, rows, name)); }

  // What differs; empty where nothing does.
  template <typename T>
  std::string compare(const T* y, int rows, const std::string& name) {
    const int64_t count = int64_t{rows} * kFeatures,
                  checked = std::min<int64_t>(count, kRows * kFeatures);
    NANOVLLM_CUDA_CHECK(cudaMemset(others_, 0, 8));
    compare_kernel<<<1024, 256>>>(y, expected_, count, others_);
    unsigned others[2];
    NANOVLLM_CUDA_CHECK(cudaMemcpy(others, others_, 8, cudaMemcpyDeviceToHost));
    const double relative =
        relative_error(to_host<T>(y, checked), to_host<double>(exact_, checked));
    if (!(relative < (sizeof(T) == 2 ? 4e-3 : 2e-4))) {
      wrong_ = true;
      std::printf("WRONG: %s, K %d: %.1e\n", name.c_str(), k_, relative);
    }
    const double sums = sizeof(T) == 2 ? 0 : 100. * others[0] / count,
                 rounded = 100. * others[1] / count;
    if (sums + rounded == 0) return "";
    char text[40];
    std::snprintf(text, sizeof text, "%.3g%%, %.2g%% once rounded", sums, rounded);
    return text;
  }

  static constexpr size_t kWorkspace = size_t{32} << 20;
  int k_ = 0;
  bool wrong_ = false;
  cublasLtHandle_t lt_ = nullptr;
  void* workspace_ = allocate<char>(kWorkspace);
  Bf16* w_ = allocate<Bf16>(int64_t{kFeatures} * kMostDepth);
  Bf16* x_ = allocate<Bf16>(int64_t{kMostRows} * kMostDepth);
  float* y_ = allocate<float>(int64_t{kMostRows} * kFeatures);
  float* expected_ = allocate<float>(int64_t{256} * kFeatures);
  double* exact_ = allocate<double>(kRows * kFeatures);
  unsigned* others_ = allocate<unsigned>(2);
  int ways_ = 0, equal_ = 0;
};

}  // namespace
}  // namespace nanovllm::cuda

int main() {
  using namespace nanovllm::cuda;
  std::printf("%s, cuBLASLt %zu\n", the_device().name, cublasLtGetVersion());
  Experiment experiment;
  for (const int scales : {0, 15}) {
    for (const int k : kDepths) experiment.run(k, scales);
  }
  return experiment.is_wrong();
}
