// Times the exchanges between the GPUs of this machine, captured in CUDA graphs as decode steps
// are.
//
// Usage: nanovllm_all_reduce_bench [RANKS]   (default: all GPUs)
//
// A line for each size: microseconds a call of the sum by lines, of the sum by an exchange of
// addresses, and of the faster of both with the residual addition and RMSNorm behind it; and what
// the exchange moves into each GPU. The bound is the link: 450 GB/s each way for NVLink 4.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "backend/cuda/backend/cuda_backend.h"
#include "backend/cuda/backend/cuda_communicator.h"
#include "backend/cuda/device/cuda_check.h"
#include "cuda_timer.h"

namespace nanovllm {
namespace {

constexpr int kCalls = 50;    // in a graph
constexpr int kReplays = 11;  // of which the median counts
constexpr int64_t kHidden = 4096;
constexpr int64_t kVocab = 151936;

struct RankContext {
  int rank;
  CommunicatorGroup& group;
  CudaBackend& backend;
};

// Microseconds a call, the median of several replays of a graph of many, on this rank.
double time_calls(const RankContext& context, const std::function<void()>& call) {
  const cudaStream_t stream = context.backend.stream();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  call();
  context.backend.synchronize();
  NANOVLLM_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kCalls; ++i) call();
  NANOVLLM_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  NANOVLLM_CUDA_CHECK(cudaGraphInstantiate(&replay, graph, 0));
  CudaTimer timer(stream);
  std::vector<double> times(kReplays);
  for (double& time : times) {
    context.group.min_over_ranks(context.rank, 0);
    NANOVLLM_CUDA_CHECK(cudaGraphLaunch(replay, stream));  // the ranks meet on the devices
    time = timer.time([&] { NANOVLLM_CUDA_CHECK(cudaGraphLaunch(replay, stream)); });
    context.backend.synchronize();
  }
  context.group.check();
  context.group.min_over_ranks(context.rank, 0);
  NANOVLLM_CUDA_CHECK(cudaGraphExecDestroy(replay));
  NANOVLLM_CUDA_CHECK(cudaGraphDestroy(graph));
  std::ranges::sort(times);
  return times[kReplays / 2] / kCalls;
}

// Calls f on a thread of each rank of a group that sends up to most_line_bytes by lines.
void on_all_ranks(int num_ranks, int64_t most_line_bytes,
                  const std::function<void(const RankContext&)>& f) {
  CudaCommunicatorGroup group(num_ranks, most_line_bytes);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      CudaBackend backend({.device = rank % CudaBackend::device_count()});
      group.join(rank, backend);
      f({rank, group, backend});
    });
  }
  for (std::thread& thread : threads) thread.join();
}

struct Times {
  double sum = 0, sum_and_norm = 0;  // microseconds
};

std::vector<Times> time_sums(int num_ranks, int64_t most_line_bytes,
                             const std::vector<int64_t>& rows) {
  std::vector<Times> times(rows.size());
  on_all_ranks(num_ranks, most_line_bytes, [&](const RankContext& context) {
    for (size_t i = 0; i < rows.size(); ++i) {
      Backend& backend = context.backend;
      const auto bytes = static_cast<size_t>(rows[i] * kHidden);
      const auto x = backend.allocate(bytes * 2), out = backend.allocate(bytes * 2);
      const auto residual = backend.allocate(bytes * 4), weight = backend.allocate(kHidden * 4);
      const Tensor sum(x->data(), DType::kBFloat16, {rows[i], kHidden});
      const Tensor normed(out->data(), DType::kBFloat16, {rows[i], kHidden});
      const Tensor stream(residual->data(), DType::kFloat32, {rows[i], kHidden});
      const double plain = time_calls(context, [&] { backend.all_reduce(sum); });
      const double fused = time_calls(context, [&] {
        backend.all_reduce_add_rms_norm(normed, stream, sum,
                                        static_cast<const float*>(weight->data()), 1e-6f);
      });
      if (context.rank == 0) times[i] = {plain, fused};
      context.group.min_over_ranks(context.rank, 0);
    }
  });
  return times;
}

void run(int num_ranks) {
  const std::vector<int64_t> rows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 2048, 8192};
  const auto lines = time_sums(num_ranks, std::numeric_limits<int64_t>::max(), rows);
  const auto exchange = time_sums(num_ranks, 0, rows);
  fmt::print("{} ranks, rows of {} bfloat16; microseconds a call\n", num_ranks, kHidden);
  fmt::print("{:>6} {:>9} {:>8} {:>12} {:>9} {:>14} {:>9}\n", "rows", "KiB", "lines", "lines+norm",
             "exchange", "exchange+norm", "GB/s");
  for (size_t i = 0; i < rows.size(); ++i) {
    const double bytes = static_cast<double>(rows[i] * kHidden * 2);
    const double moved = 2 * bytes * (num_ranks - 1) / num_ranks;  // into each GPU
    fmt::print("{:>6} {:>9.0f} {:>8.2f} {:>12.2f} {:>9.2f} {:>14.2f} {:>9.1f}\n", rows[i],
               bytes / 1024, lines[i].sum, lines[i].sum_and_norm, exchange[i].sum,
               exchange[i].sum_and_norm, moved / exchange[i].sum * 1e-3);
  }
  on_all_ranks(num_ranks, 0, [&](const RankContext& context) {
    for (const int64_t count : {1, 8, 64, 256}) {
      const int64_t share = kVocab / num_ranks;
      const auto x = context.backend.allocate(static_cast<size_t>(count * share * 4));
      const auto out = context.backend.allocate(static_cast<size_t>(count * share * num_ranks * 4));
      const Tensor all(out->data(), DType::kFloat32, {count, share * num_ranks});
      const double time = time_calls(context, [&] {
        context.backend.all_gather(all, Tensor(x->data(), DType::kFloat32, {count, share}));
      });
      if (context.rank == 0) fmt::print("gather {} x {} logits: {:.2f} us\n", count, kVocab, time);
    }
  });
}

}  // namespace
}  // namespace nanovllm

int main(int argc, char** argv) {
  const int num_ranks = argc > 1 ? std::atoi(argv[1]) : nanovllm::CudaBackend::device_count();
  if (num_ranks < 2) {
    fmt::print("nothing to measure: {} GPU\n", num_ranks);
    return 0;
  }
  nanovllm::run(num_ranks);
}
