// The gated activation of an MLP, and the cap of logits.
#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/layer/rows.h"

namespace nanovllm {

void CpuBackend::act_and_mul(Tensor out, Tensor gate_up, Activation activation) {
  NANOVLLM_CHECK(out.dtype == gate_up.dtype && 2 * out.row_size() == gate_up.row_size());
  static_assert(static_cast<int>(Activation::kClampedSwiglu) == 3);
  const auto kernel = row_kernels(isa_, out.dtype).act_and_mul[static_cast<int>(activation)];
  const int64_t width = out.row_size();
  const size_t half_row = static_cast<size_t>(width) * size_of(out.dtype);
  for_rows(pool_, out.rows(), width, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const char* gate = static_cast<const char*>(row_of(gate_up, t));
      kernel(row_of(out, t), gate, gate + half_row, width);
    }
  });
}

void CpuBackend::soft_cap(Tensor logits, float cap) {
  for_rows(pool_, logits.rows(), logits.row_size(), [&](int64_t begin, int64_t end) {
    float* const x = logits.f32();
    for (int64_t i = begin * logits.row_size(); i < end * logits.row_size(); ++i) {
      x[i] = cap * std::tanh(x[i] / cap);
    }
  });
}

}  // namespace nanovllm
