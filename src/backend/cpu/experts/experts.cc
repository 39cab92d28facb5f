// Mixtures of experts: rows are sorted by expert, and the products of all chosen experts run as
// one, so that each expert's weights are read once and all threads are busy with a single row.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/experts/routing.h"
#include "backend/cpu/layer/rows.h"
#include "backend/cpu/linear/linear_pack.h"
#include "backend/cpu/linear/linear_weight.h"
#include "base/check.h"

namespace nanovllm {
namespace {

using Weight = std::unique_ptr<LinearWeight>;

constexpr size_t kArenaBytes = size_t{64} << 20;

struct PackedExpert {
  Weight gate_up, down;
  int64_t width() const { return down->in_features; }
};

struct CpuExpertWeights final : ExpertWeights {
  Weight router;
  Routing routing;
  int first = 0;
  std::vector<PackedExpert> experts;
  Activation activation = Activation::kSilu;  // of each
  std::optional<PackedExpert> shared;
  Activation shared_activation = Activation::kSilu;
  Weight shared_gate;  // or null
};

const CpuLinearWeight* cpu(const Weight& weight) {
  return static_cast<const CpuLinearWeight*>(weight.get());
}

// Rows of a block of the same shape through some experts.
struct Block {
  Tensor gate_up;  // [R, 2 width] act
  Tensor inner;    // [R, width] act
  Tensor out;      // [R, H] float32
};

// What one step of up to kMaxRowsAtOnce rows needs.
struct Step {
  Tensor logits;       // [T, all experts] float32
  int32_t* ids;        // [T, num_active] chosen experts
  float* weights;      // [T, num_active]
  int32_t* places;     // [T, num_active] rows of `routed`; -1 = another rank's
  int32_t* row_ids;    // [T * num_active] rows of x, by expert
  Block routed;        // [T * num_active]
  Block shared;        // [T], or none
  Tensor shared_gate;  // [T, 1] float32, or none
};

// Deals out memory; of null, to count it.
class Bump {
 public:
  explicit Bump(char* memory) : memory_(memory) {}
  template <typename T>
  T* array(int64_t n) {
    return reinterpret_cast<T*>(take(n * static_cast<int64_t>(sizeof(T))));
  }
  Tensor tensor(DType dtype, int64_t rows, int64_t cols) {
    Tensor tensor(nullptr, dtype, {rows, cols});
    tensor.data = take(static_cast<int64_t>(tensor.bytes()));
    return tensor;
  }
  Block block(DType act, int64_t rows, int64_t width, int64_t hidden) {
    return {tensor(act, rows, 2 * width), tensor(act, rows, width),
            tensor(DType::kFloat32, rows, hidden)};
  }
  size_t used() const { return static_cast<size_t>(used_); }

 private:
  char* take(int64_t bytes) {
    char* const at = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += round_up(bytes, 64);
    return at;
  }
  char* memory_;
  int64_t used_ = 0;
};

Step lay_out(const CpuExpertWeights& w, const Tensor& x, Bump& memory) {
  const int64_t rows = x.rows(), chosen = rows * w.routing.num_active, hidden = x.row_size();
  Step step;
  step.logits = memory.tensor(DType::kFloat32, rows, w.router->out_features);
  step.ids = memory.array<int32_t>(chosen);
  step.weights = memory.array<float>(chosen);
  step.places = memory.array<int32_t>(chosen);
  step.row_ids = memory.array<int32_t>(chosen);
  step.routed = memory.block(x.dtype, chosen, w.experts.front().width(), hidden);
  if (w.shared) step.shared = memory.block(x.dtype, rows, w.shared->width(), hidden);
  if (w.shared_gate) step.shared_gate = memory.tensor(DType::kFloat32, rows, 1);
  return step;
}

// Sorts what was chosen by expert; the rows of each, from starts[e] to starts[e + 1].
std::vector<int32_t> sort_by_expert(const CpuExpertWeights& w, int64_t num_rows, Step& step) {
  const int active = w.routing.num_active;
  const int64_t chosen = num_rows * active, num_experts = std::ssize(w.experts);
  std::vector<int32_t> starts(static_cast<size_t>(num_experts + 2));
  const auto of_rank = [&](int64_t i) {
    const int64_t expert = step.ids[i] - w.first;
    return expert >= 0 && expert < num_experts ? expert : -1;
  };
  for (int64_t i = 0; i < chosen; ++i) {
    if (of_rank(i) >= 0) ++starts[of_rank(i) + 2];
  }
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  for (int64_t i = 0; i < chosen; ++i) {  // moves starts[e + 1] from e's begin to its end
    const int64_t expert = of_rank(i);
    step.places[i] = expert < 0 ? -1 : starts[expert + 1]++;
    if (expert >= 0) step.row_ids[step.places[i]] = static_cast<int32_t>(i / active);
  }
  starts.pop_back();
  return starts;
}

// out[t] = the weighted sum of t's experts in the order of its choice, then of the shared one.
void add_up(const CpuExpertWeights& w, const Step& step, int64_t t, const Tensor& out) {
  constexpr int64_t kColumns = 256;
  const int active = w.routing.num_active;
  const int64_t hidden = out.row_size();
  for (int64_t begin = 0; begin < hidden; begin += kColumns) {
    const int64_t n = std::min(kColumns, hidden - begin);
    std::array<float, kColumns> sum = {};
    const auto add = [&](const Tensor& rows, int64_t row, float weight) {
      const float* const from = rows.f32() + row * hidden + begin;
      for (int64_t i = 0; i < n; ++i) sum[i] += weight * from[i];
    };
    for (int64_t i = t * active; i < (t + 1) * active; ++i) {
      if (step.places[i] >= 0) add(step.routed.out, step.places[i], step.weights[i]);
    }
    if (w.shared) {
      add(step.shared.out, t, w.shared_gate ? 1 / (1 + std::exp(-step.shared_gate.f32()[t])) : 1);
    }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = t * hidden + begin + i;
      if (out.dtype == DType::kFloat32) {
        out.f32()[at] = sum[i];
      } else {
        out.bf16()[at] = to_bfloat16(sum[i]);
      }
    }
  }
}

}  // namespace

std::unique_ptr<ExpertWeights> CpuBackend::make_experts(const Experts& experts, DType dtype, int) {
  auto w = std::make_unique<CpuExpertWeights>();
  HostArena arena(kArenaBytes);
  const auto pack = [&](const Matrix& m) {
    const float* const bias = m.bias.empty() ? nullptr : m.bias.data();
    Weight weight = pack_linear(pool_, isa_, m.pieces, bias, dtype, arena);
    w->bytes += weight->bytes;
    add_layouts_of(w->parts_by_layout, *weight);
    return weight;
  };
  const auto pack_dense = [&](const Dense& dense) {
    return PackedExpert{pack(dense.gate_up), pack(dense.down)};
  };
  w->router = pack(experts.router);
  w->routing = experts.routing;
  w->first = experts.first;
  for (const Dense& expert : experts.experts) w->experts.push_back(pack_dense(expert));
  w->activation = experts.experts.front().activation;
  if (experts.shared) {
    w->shared = pack_dense(*experts.shared);
    w->shared_activation = experts.shared->activation;
  }
  if (!experts.shared_gate.pieces.empty()) w->shared_gate = pack(experts.shared_gate);
  w->layout = w->experts.front().gate_up->layout;
  w->format = w->experts.front().gate_up->format;
  return w;
}

void CpuBackend::experts(Tensor out, Tensor x, ExpertWeights& weights) {
  const auto& w = static_cast<const CpuExpertWeights&>(weights);
  for (int64_t begin = 0; begin < x.rows(); begin += kMaxRowsAtOnce) {
    const int64_t end = std::min(begin + kMaxRowsAtOnce, x.rows());
    mix(out.slice_rows(begin, end), x.slice_rows(begin, end), w);
  }
}

void CpuBackend::mix(Tensor out, Tensor x, const ExpertWeights& weights) {
  const auto& w = static_cast<const CpuExpertWeights&>(weights);
  const int64_t rows = x.rows();
  const int active = w.routing.num_active;
  Bump count(nullptr);
  lay_out(w, x, count);
  Bump memory(expert_rows_.get(count.used()));
  Step step = lay_out(w, x, memory);

  linear(step.logits, x, *w.router);
  const int num_experts = static_cast<int>(w.router->out_features);
  for_rows(pool_, rows, int64_t{num_experts} * active, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      route(step.logits.f32() + t * num_experts, num_experts, w.routing, step.ids + t * active,
            step.weights + t * active);
    }
  });
  const std::vector<int32_t> starts = sort_by_expert(w, rows, step);

  std::vector<LinearProduct> gate_ups, downs;
  const auto add = [&](const PackedExpert& expert, const Block& block, int begin, int end,
                       const int32_t* row_ids) {
    if (begin == end) return;
    gate_ups.push_back({cpu(expert.gate_up), block.gate_up.slice_rows(begin, end), x, row_ids});
    downs.push_back(
        {cpu(expert.down), block.out.slice_rows(begin, end), block.inner.slice_rows(begin, end)});
  };
  for (size_t e = 0; e < w.experts.size(); ++e) {
    add(w.experts[e], step.routed, starts[e], starts[e + 1], step.row_ids + starts[e]);
  }
  if (w.shared) add(*w.shared, step.shared, 0, static_cast<int>(rows), nullptr);
  if (w.shared_gate) gate_ups.push_back({cpu(w.shared_gate), step.shared_gate, x});
  multiply(gate_ups);
  act_and_mul(step.routed.inner.first_rows(starts.back()),
              step.routed.gate_up.first_rows(starts.back()), w.activation);
  if (w.shared) act_and_mul(step.shared.inner, step.shared.gate_up, w.shared_activation);
  multiply(downs);
  for_rows(pool_, rows, out.row_size() * (active + 1), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) add_up(w, step, t, out);
  });
}

}  // namespace nanovllm
