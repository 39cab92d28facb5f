// Sampling on the device; sampling_cases.h says from what. Microseconds a step, from events around
// many steps in a row, the share of the measured read bandwidth at which one pass over the logits
// would take as long, and the host's microseconds to enqueue the step. Masks are known to the
// device by their keys, or sent with each step.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/cuda/backend/cuda_backend.h"
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

struct StepTimes {
  double device;  // microseconds
  double host;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Medians over batches of steps that run one behind the other.
StepTimes step_times(CudaBackend& backend, std::vector<SamplingRow>& rows,
                     const std::vector<Tensor>& logits) {
  constexpr int kBatches = 15;
  constexpr int kSteps = 20;
  constexpr double kMostNanoseconds = 1e8;
  double enqueue_nanoseconds = 5e6;  // of a batch
  CudaTimer timer(backend.stream());
  std::vector<double> device_times, host_times;
  uint64_t position = 0;
  std::vector<std::unique_ptr<SamplingTicket>> tickets;
  for (int batch = 0; batch < kBatches; ++batch) {
    spin<<<1, 1, 0, backend.stream()>>>(static_cast<int64_t>(enqueue_nanoseconds));
    const double time = timer.time([&] {
      const auto begin = std::chrono::steady_clock::now();
      for (int step = 0; step < kSteps; ++step) {
        for (SamplingRow& row : rows) row.position = position++;
        tickets.push_back(backend.sample(rows, logits[step % logits.size()], nullptr, nullptr));
      }
      const std::chrono::duration<double, std::micro> elapsed =
          std::chrono::steady_clock::now() - begin;
      host_times.push_back(elapsed.count() / kSteps);
    });
    tickets.clear();
    device_times.push_back(time / kSteps);
    enqueue_nanoseconds =
        std::clamp(1.5e3 * kSteps * host_times.back(), enqueue_nanoseconds, kMostNanoseconds);
  }
  return {median(device_times), median(host_times)};
}

// `filter`: a part of the names of what is to be measured.
void run(const std::string& filter) {
  CudaBackend backend;
  const double bandwidth = memory_bandwidth(backend);
  std::printf("%s, %.2f TB/s\n", backend.description().c_str(), bandwidth / 1e12);
  const std::vector<int32_t> output_ids = sampling_output_ids();
  uint64_t next_key = 1;
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
      const auto measure = [&](const std::string& name, std::vector<SamplingRow> rows) {
        if (name.find(filter) == std::string::npos) return;
        const StepTimes times = step_times(backend, rows, logits);
        const double floor = 1e6 * static_cast<double>(values.size() * sizeof(float)) / bandwidth;
        std::printf(
            "%-8s %3d rows  %-38s %8.1f us  %5.1f%% of the bandwidth  %8.1f us of the host\n",
            trained ? "trained" : "flat", num_rows, name.c_str(), times.device,
            100 * floor / times.device, times.host);
      };
      for (const SamplingKind& kind : kSamplingKinds) {
        measure(kind.name, sampling_rows(kind, num_rows, output_ids));
      }
      for (const MaskedSamplingKind& kind : kMaskedSamplingKinds) {
        const auto masks = sampling_masks(kind.share_allowed, num_rows);
        std::vector<SamplingRow> rows = masked_sampling_rows(kind, masks);
        measure(std::string(kind.name) + "_sent", rows);
        for (SamplingRow& row : rows) row.allowed_key = next_key++;
        measure(std::string(kind.name) + "_known", rows);
      }
    }
  }
}

}  // namespace
}  // namespace nanovllm

int main(int argc, char** argv) {
  try {
    nanovllm::run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
