// Mixtures of experts on a GPU, the layers of Qwen3-30B-A3B by default: the whole op in CUDA
// graphs, against the bytes of the experts that are really chosen at the speed of a large copy, and
// against dense products of as many multiplications. Layers are rotated so that no weights are
// found in L2.
//
//   cuda_experts_bench [HIDDEN WIDTH EXPERTS ACTIVE]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "backend/cuda/backend/cuda_backend.h"
#include "backend/cuda/device/cuda_check.h"
#include "cuda_timer.h"

namespace nanovllm {
namespace {

constexpr int kLayers = 4;
constexpr int kReplays = 7;

struct Shape {
  int hidden = 2048, width = 768, experts = 128, active = 8;
};

// Random bfloat16, the same million again and again.
std::vector<BFloat16> random_matrix(int64_t n, float range, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<BFloat16> values(static_cast<size_t>(n));
  constexpr int64_t kPeriod = 1000003;
  for (int64_t i = 0; i < n; ++i) {
    values[static_cast<size_t>(i)] =
        i < kPeriod ? to_bfloat16(range * (static_cast<float>(engine() >> 8) * 0x1p-23f - 1))
                    : values[static_cast<size_t>(i - kPeriod)];
  }
  return values;
}

HostMatrix piece(const BFloat16* data, int64_t rows, int64_t cols) {
  return {.data = data, .rows = rows, .cols = cols, .row_stride = cols};
}

class Bench {
 public:
  explicit Bench(const Shape& shape) : shape_(shape) {
    const auto [hidden, width, experts, active] = shape;
    const int64_t gate_up = int64_t{2} * width * hidden, down = int64_t{hidden} * width;
    const auto weights = random_matrix(experts * (gate_up + down), 0.05f, 1);
    Experts spec;
    spec.routing.num_active = active;
    spec.routing.renormalise = true;
    for (int e = 0; e < experts; ++e) {
      const BFloat16* at = weights.data() + e * (gate_up + down);
      Dense& expert = spec.experts.emplace_back();
      expert.gate_up.pieces = {piece(at, width, hidden), piece(at + gate_up / 2, width, hidden)};
      expert.down.pieces = {piece(at + gate_up, hidden, width)};
    }
    for (int i = 0; i < kLayers; ++i) {
      routers_.push_back(random_matrix(int64_t{experts} * hidden, 0.05f, 100 + i));
      spec.router.pieces = {piece(routers_.back().data(), experts, hidden)};
      layers_.push_back(backend_.make_experts(spec, DType::kBFloat16, kMaxRows));
      const HostMatrix dense[] = {piece(weights.data(), int64_t{2} * width * active, hidden),
                                  piece(weights.data(), hidden, int64_t{width} * active)};
      dense_up_.push_back(backend_.make_linear({dense, 1}, nullptr, DType::kBFloat16));
      dense_down_.push_back(backend_.make_linear({dense + 1, 1}, nullptr, DType::kBFloat16));
    }
    backend_.finish_loading();
    x_host_ = random_matrix(int64_t{kMaxRows} * hidden, 1, 3);
    x_ = memory(hidden);
    out_ = memory(hidden);
    gate_up_ = memory(2 * width * active);
    mlp_ = memory(width * active);
    backend_.upload(x_->data(), x_host_.data(), x_host_.size() * sizeof(BFloat16));
    backend_.upload(mlp_->data(), x_host_.data(), x_host_.size() * sizeof(BFloat16));
  }

  void run() {
    const double bandwidth = copy_bandwidth();
    std::printf("%s\ncopy: %.0f GB/s read and written\n", backend_.description().c_str(),
                bandwidth * 1e-3);
    std::printf("%5s %8s %9s %9s %7s %6s %9s %9s %6s\n", "rows", "chosen", "us", "floor us", "GB/s",
                "x", "TFLOP/s", "dense us", "x");
    for (const int rows : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192}) {
      const auto [hidden, width, experts, active] = shape_;
      const double ours = time([&](int i) {
        backend_.experts(tensor(*out_, rows, hidden), tensor(*x_, rows, hidden), *layers_[i]);
      });
      const double dense = time([&](int i) {
        backend_.linear(tensor(*gate_up_, rows, 2 * width * active), tensor(*x_, rows, hidden),
                        *dense_up_[i]);
        backend_.linear(tensor(*out_, rows, hidden), tensor(*mlp_, rows, width * active),
                        *dense_down_[i]);
      });
      const double chosen = mean_chosen(rows);
      const double bytes = chosen * 6 * width * hidden, floor = bytes / bandwidth;
      std::printf("%5d %8.1f %9.1f %9.1f %7.0f %6.2f %9.1f %9.1f %6.2f\n", rows, chosen, ours,
                  floor, bytes / ours * 1e-3, ours / floor,
                  6e-6 * rows * active * width * hidden / ours, dense, ours / dense);
      std::fflush(stdout);
    }
  }

 private:
  static constexpr int kMaxRows = 8192;

  std::unique_ptr<Buffer> memory(int64_t width) {
    return backend_.allocate(static_cast<size_t>(kMaxRows * width) * sizeof(BFloat16));
  }
  static Tensor tensor(const Buffer& buffer, int64_t rows, int64_t width) {
    return {buffer.data(), DType::kBFloat16, {rows, width}};
  }

  // Microseconds of one layer.
  double time(const std::function<void(int)>& layer) {
    const auto all = [&] {
      for (int i = 0; i < 2 * kLayers; ++i) layer(i % kLayers);
    };
    all();
    const auto graph = backend_.capture(all);
    return median([&] { backend_.launch(*graph); }) / (2 * kLayers);
  }

  double median(const std::function<void()>& work) {
    return CudaTimer(backend_.stream()).median(kReplays, work);
  }

  // Bytes a microsecond, of a copy of 1 GiB.
  double copy_bandwidth() {
    constexpr size_t kBytes = size_t{1} << 30;
    const auto from = backend_.allocate(kBytes), to = backend_.allocate(kBytes);
    const double us = median([&] {
      NANOVLLM_CUDA_CHECK(cudaMemcpyAsync(to->data(), from->data(), kBytes,
                                          cudaMemcpyDeviceToDevice, backend_.stream()));
    });
    return 2 * static_cast<double>(kBytes) / us;
  }

  // Experts that the first rows choose, of a layer; more rows than these choose all.
  double mean_chosen(int rows) const {
    rows = std::min(rows, 256);
    double sum = 0;
    for (const auto& router : routers_) {
      std::set<int> chosen;
      for (int r = 0; r < rows; ++r) {
        std::vector<std::pair<float, int>> logits;
        for (int e = 0; e < shape_.experts; ++e) {
          float logit = 0;
          for (int i = 0; i < shape_.hidden; ++i) {
            logit += to_float(x_host_[static_cast<size_t>(r * shape_.hidden + i)]) *
                     to_float(router[static_cast<size_t>(e * shape_.hidden + i)]);
          }
          logits.emplace_back(logit, e);
        }
        std::ranges::partial_sort(logits, logits.begin() + shape_.active, std::greater());
        for (int j = 0; j < shape_.active; ++j) {
          chosen.insert(logits[static_cast<size_t>(j)].second);
        }
      }
      sum += static_cast<double>(chosen.size());
    }
    return sum / kLayers;
  }

  const Shape shape_;
  CudaBackend backend_;
  std::vector<std::vector<BFloat16>> routers_;
  std::vector<std::unique_ptr<ExpertWeights>> layers_;
  std::vector<std::unique_ptr<LinearWeight>> dense_up_, dense_down_;
  std::vector<BFloat16> x_host_;
  std::unique_ptr<Buffer> x_, out_, gate_up_, mlp_;
};

}  // namespace
}  // namespace nanovllm

int main(int argc, char** argv) {
  nanovllm::Shape shape;
  if (argc == 5) {
    shape = {std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4])};
  }
  nanovllm::Bench(shape).run();
}
