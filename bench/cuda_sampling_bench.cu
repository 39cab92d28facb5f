// Sampling on the device; sampling_cases.h says from what. Microseconds a step, from events around
// many steps in a row, and the share of the measured read bandwidth at which one pass over the
// logits would take as long.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "cuda_timer.h"
#include "sampling_cases.h"

namespace nanovllm {
namespace {

// Bytes per second of a copy, reads and writes together.
double memory_bandwidth(CudaBackend& backend) {
  constexpr size_t kBytes = size_t{1} << 30;
  const auto from = backend.allocate(kBytes);
  const auto to = backend.allocate(kBytes);
  CudaTimer timer(backend.stream());
  double best = 1e30;
  for (int i = 0; i < 5; ++i) {
    best = std::min(best, timer.time([&] {
      NANOVLLM_CUDA_CHECK(cudaMemcpyAsync(to->data(), from->data(), kBytes,
                                          cudaMemcpyDeviceToDevice, backend.stream()));
    }));
  }
  return 2e6 * static_cast<double>(kBytes) / best;
}

// Keeps the device busy while the host enqueues what is to be timed.
__global__ void spin(int64_t nanoseconds) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < static_cast<uint64_t>(nanoseconds));
}

// Median over batches of steps that run one behind the other.
double step_microseconds(CudaBackend& backend, std::vector<SamplingRow>& rows,
                         const std::vector<Tensor>& logits) {
  constexpr int kBatches = 15;
  constexpr int kSteps = 20;
  constexpr int64_t kEnqueueNanoseconds = 5'000'000;
  CudaTimer timer(backend.stream());
  std::vector<double> times;
  uint64_t position = 0;
  std::vector<std::unique_ptr<SamplingTicket>> tickets;
  for (int batch = 0; batch < kBatches; ++batch) {
    spin<<<1, 1, 0, backend.stream()>>>(kEnqueueNanoseconds);
    const double time = timer.time([&] {
      for (int step = 0; step < kSteps; ++step) {
        for (SamplingRow& row : rows) row.position = position++;
        tickets.push_back(backend.sample(rows, logits[step % logits.size()], nullptr, nullptr));
      }
    });
    tickets.clear();
    times.push_back(time / kSteps);
  }
  std::nth_element(times.begin(), times.begin() + kBatches / 2, times.end());
  return times[kBatches / 2];
}

void run() {
  CudaBackend backend;
  const double bandwidth = memory_bandwidth(backend);
  std::printf("%s, %.2f TB/s\n", backend.description().c_str(), bandwidth / 1e12);
  const std::vector<int32_t> output_ids = sampling_output_ids();
  for (const bool trained : {true, false}) {
    for (const int num_rows : {1, 32, 256}) {
      const std::vector<float> values = sampling_logits(num_rows, trained);
      // Several sets, so that they do not all stay in the L2 cache.
      std::vector<std::unique_ptr<Buffer>> buffers;
      std::vector<Tensor> logits;
      for (int i = 0; i < (num_rows == 1 ? 8 : 4); ++i) {
        buffers.push_back(backend.allocate(values.size() * sizeof(float)));
        backend.upload(buffers.back()->data(), values.data(), values.size() * sizeof(float));
        logits.emplace_back(buffers.back()->data(), DType::kFloat32,
                            std::initializer_list<int64_t>{num_rows, kSampledVocabSize});
      }
      for (const SamplingKind& kind : kSamplingKinds) {
        std::vector<SamplingRow> rows = sampling_rows(kind, num_rows, output_ids);
        const double time = step_microseconds(backend, rows, logits);
        const double floor = 1e6 * static_cast<double>(values.size() * sizeof(float)) / bandwidth;
        std::printf("%-8s %3d rows  %-28s %8.1f us  %5.1f%% of the bandwidth\n",
                    trained ? "trained" : "flat", num_rows, kind.name, time, 100 * floor / time);
      }
    }
  }
}

}  // namespace
}  // namespace nanovllm

int main() {
  try {
    nanovllm::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
