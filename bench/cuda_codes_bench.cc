// Products with weights in codes on a GPU: the four of a layer of Qwen3-8B one behind the other, in
// one graph of several layers, whose weights L2 does not hold. Prints microseconds a layer by
// format, kernel and rows, the time that its bytes take at 4 TB/s, and that of decoding it to
// bfloat16.
//
//   cuda_codes_bench [FORMAT ...]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/device/device_context.h"
#include "backend/cuda/linear/code_product.h"
#include "backend/cuda/linear/code_stream.h"
#include "backend/cuda/linear/code_wgmma.h"
#include "base/code_format.h"
#include "cuda_timer.h"

namespace nanovllm::cuda {
namespace {

constexpr int kLayers = 6, kRows[] = {1, 4, 8, 16, 32, 64};
constexpr int kMaxRows = kMaxCodeWgmmaRows;
constexpr int kSizes[][2] = {{6144, 4096}, {4096, 4096}, {24576, 4096}, {4096, 12288}};

constexpr float kIntegers[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
constexpr float kTable[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                              1,    13,   25,  38,  53,  69,  89,  113};

std::vector<float> integers(int bits) {
  std::vector<float> values(size_t{1} << bits);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i) - static_cast<float>(values.size() / 2);
  }
  return values;
}
std::vector<float> bytes_of(bool are_floats) {
  std::vector<float> values(256);
  for (int i = 0; i < 256; ++i) {
    const int exponent = i >> 3 & 15, mantissa = i & 7;
    const float magnitude = exponent == 0
                                ? std::ldexp(static_cast<float>(mantissa), -9)
                                : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    values[static_cast<size_t>(i)] = !are_floats ? static_cast<float>(static_cast<int8_t>(i))
                                     : i > 127   ? -magnitude
                                                 : magnitude;
  }
  return values;
}

struct Named {
  const char* name;
  CodeFormat format;
};

std::vector<Named> formats() {
  static const std::vector<float> fives = integers(5), sixes = integers(6), bytes = bytes_of(false),
                                  floats = bytes_of(true);
  using enum WeightLayout;
  constexpr auto kHalf = ScaleKind::kFloat16, kBf16 = ScaleKind::kBFloat16;
  constexpr auto kZero = CodeFormat::Offset::kZero, kMinimum = CodeFormat::Offset::kMinimum;
  return {{"int4", {kGroup, 4, kIntegers, 128, 0, kBf16}},
          {"AWQ", {kGroup, 4, kIntegers, 128, 0, kHalf, kZero}},
          {"Q4_0", {kGroup, 4, kIntegers, 32}},
          {"Q4_1", {kGroup, 4, kIntegers, 32, 0, kHalf, kMinimum}},
          {"IQ4_NL", {kGroup, 4, kTable, 32}},
          {"Q5_0", {kGroup, 5, fives.data(), 32}},
          {"Q4_K", {kSuper, 4, kIntegers, 32, 256, kHalf, kMinimum}},
          {"Q5_K", {kSuper, 5, fives.data(), 32, 256, kHalf, kMinimum}},
          {"Q6_K", {kSuper, 6, sixes.data(), 16, 256}},
          {"Q8_0", {kByte, 8, bytes.data(), 32}},
          {"FP8", {kByte, 8, floats.data(), int64_t{1} << 20, 0, kBf16}}};
}

void* device_bytes(int64_t count) {
  static const std::vector<uint8_t> random = [] {
    std::mt19937 rng(1);
    std::vector<uint8_t> values(size_t{32} << 20);
    // Halves and codes of moderate size.
    for (uint8_t& value : values) value = static_cast<uint8_t>(rng() & 0x37);
    return values;
  }();
  char* p = nullptr;
  NANOVLLM_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&p), static_cast<size_t>(count)));
  for (int64_t at = 0; at < count; at += std::ssize(random)) {
    NANOVLLM_CUDA_CHECK(cudaMemcpy(p + at, random.data(),
                                   static_cast<size_t>(std::min(count - at, std::ssize(random))),
                                   cudaMemcpyHostToDevice));
  }
  return p;
}

template <typename Enqueue>
double time_graph(cudaStream_t stream, const Enqueue& enqueue) {
  enqueue();
  NANOVLLM_CUDA_CHECK(cudaStreamSynchronize(stream));
  cudaGraph_t graph;
  cudaGraphExec_t instance;
  NANOVLLM_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  enqueue();
  NANOVLLM_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  NANOVLLM_CUDA_CHECK(cudaGraphInstantiate(&instance, graph, 0));
  const double time =
      CudaTimer(stream).median(9, [&] { NANOVLLM_CUDA_CHECK(cudaGraphLaunch(instance, stream)); });
  cudaGraphExecDestroy(instance);
  cudaGraphDestroy(graph);
  return time / kLayers;
}

enum class Kernel { kStream, kWgmma, kProduct };
constexpr Kernel kKernels[] = {Kernel::kStream, Kernel::kWgmma, Kernel::kProduct};
constexpr const char* kNames[] = {"stream", "wgmma", "product"};

// False where the kernel does not take the product.
bool multiply(cudaStream_t stream, Kernel kernel, const CodeProduct& product,
              const DeviceTraits& device) {
  switch (kernel) {
    case Kernel::kStream: {
      const StreamPlan plan = plan_code_stream(product, device);
      if (plan.row_sets > 0) launch_code_stream(stream, product, plan);
      return plan.row_sets > 0;
    }
    case Kernel::kWgmma: {
      const CodeWgmmaPlan plan = plan_code_wgmma(product, device);
      if (plan.rows > 0) launch_code_wgmma(stream, product, plan);
      return plan.rows > 0;
    }
    case Kernel::kProduct:
      break;
  }
  launch_code_product(stream, product, device);
  return true;
}

// One answer of the kernels on the same random bytes.
void compare(const Named& named) {
  const DeviceTraits& device = DeviceContext::of(0).traits();
  for (const auto& [n, k] : {std::pair{4096, 4096}, std::pair{200, 12288}, std::pair{1040, 2560}}) {
    const HostMatrix matrix = {.rows = n, .cols = k, .row_stride = k, .codes = &named.format};
    CodeProduct p;
    p.shape = plan_code_parts({&matrix, 1}, DType::kBFloat16).front().shape;
    p.features = n;
    p.out_stride = n;
    p.out_dtype = DType::kFloat32;
    p.codes = device_bytes(p.shape.bytes);
    p.x = device_bytes(int64_t{kMaxCodeWgmmaRows} * k * 2);
    for (const int rows : {1, 5, 8, 12, 16, 27, 32, 33, 64}) {
      p.rows = rows;
      std::vector<float> y[std::size(kKernels)];
      for (const Kernel kernel : kKernels) {
        p.out = device_bytes(int64_t{rows} * n * 4);
        const bool is_taken = multiply(nullptr, kernel, p, device);
        NANOVLLM_CUDA_CHECK(cudaDeviceSynchronize());
        auto& out = y[static_cast<int>(kernel)];
        out.resize(is_taken ? static_cast<size_t>(rows) * n : 0);
        NANOVLLM_CUDA_CHECK(cudaMemcpy(out.data(), p.out, out.size() * 4, cudaMemcpyDeviceToHost));
        cudaFree(p.out);
      }
      const auto& expected = y[static_cast<int>(Kernel::kProduct)];
      for (const Kernel kernel : {Kernel::kStream, Kernel::kWgmma}) {
        const auto& got = y[static_cast<int>(kernel)];
        double worst = 0, size = 0;
        for (size_t i = 0; i < got.size(); ++i) {
          worst = std::max(worst, std::abs(static_cast<double>(expected[i]) - got[i]));
          size = std::max(size, std::abs(static_cast<double>(expected[i])));
          if (!(std::abs(got[i]) < 1e30f)) worst = 1e30;
        }
        if (worst > 1e-5 * size) {
          std::printf("%s, %s: %d x %d, %d rows: off by %g of %g\n", named.name,
                      kNames[static_cast<int>(kernel)], n, k, rows, worst, size);
        }
      }
    }
    cudaFree(const_cast<void*>(p.codes));
    cudaFree(const_cast<void*>(p.x));
  }
}

void run(const Named& named) {
  const DeviceTraits& device = DeviceContext::of(0).traits();
  cudaStream_t stream;
  NANOVLLM_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::vector<CodeProduct> products;
  std::vector<void*> memory = {device_bytes(int64_t{kMaxRows} * 24576 * 2),
                               device_bytes(int64_t{kMaxRows} * 24576 * 2),
                               device_bytes(int64_t{24576} * 4096 * 2)};
  int64_t bytes = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const auto& [n, k] : kSizes) {
      const HostMatrix matrix = {.rows = n, .cols = k, .row_stride = k, .codes = &named.format};
      CodeProduct& product = products.emplace_back();
      product.shape = plan_code_parts({&matrix, 1}, DType::kBFloat16).front().shape;
      product.features = n;
      product.out_stride = n;
      product.codes = memory.emplace_back(device_bytes(product.shape.bytes));
      bytes += product.shape.bytes;
    }
  }
  const auto all = [&](Kernel kernel, int rows) {
    bool is_taken = true;
    const double time = time_graph(stream, [&] {
      for (size_t i = 0; i < products.size(); ++i) {
        CodeProduct& product = products[i];
        product.rows = rows;
        product.x = memory[i % 2];
        product.out = memory[1 - i % 2];
        is_taken = multiply(stream, kernel, product, device) && is_taken;
      }
    });
    return is_taken ? time : 0;
  };
  const double floor = static_cast<double>(bytes) / kLayers / 4e6;
  for (const Kernel kernel : kKernels) {
    std::printf("%-7s %-7s %6.1f", named.name, kNames[static_cast<int>(kernel)], floor);
    for (const int rows : kRows) std::printf(" %7.1f", all(kernel, rows));
    // Each product alone, of one row and of 32.
    for (const int rows : {1, 32}) {
      std::printf(" |");
      for (size_t which = 0; which < std::size(kSizes); ++which) {
        std::printf(" %5.1f", time_graph(stream, [&] {
                      for (size_t i = which; i < products.size(); i += std::size(kSizes)) {
                        products[i].rows = rows;
                        multiply(stream, kernel, products[i], device);
                      }
                    }));
      }
    }
    std::printf("\n");
  }
  std::printf("%-7s decoded %6.1f %7.1f\n", named.name, floor, time_graph(stream, [&] {
                for (const CodeProduct& product : products) {
                  launch_decode_codes(stream, product.shape, product.codes, 0, product.features,
                                      memory[2]);
                }
              }));
  std::fflush(stdout);
  for (void* p : memory) cudaFree(p);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace nanovllm::cuda

int main(int argc, char** argv) {
  using namespace nanovllm::cuda;
  std::printf(
      "us              4 TB/s  rows 1       4       8      16      32      64 | qkv o gate_up "
      "down, 1 "
      "row | 32 rows\n");
  for (const Named& named : formats()) {
    bool is_wanted = argc == 1;
    for (int i = 1; i < argc; ++i) is_wanted = is_wanted || std::string(argv[i]) == named.name;
    if (is_wanted) {
      compare(named);
      run(named);
    }
  }
}
