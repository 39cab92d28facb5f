// Greedy choice.
#include "backend/cpu/cpu_backend.h"
#include "base/check.h"

namespace nanovllm {

void CpuBackend::sample(const SamplingBatch& batch, Tensor logits) {
  const int64_t vocab = logits.row_size();
  for (size_t r = 0; r < batch.rows.size(); ++r) {
    NANOVLLM_CHECK(batch.rows[r].temperature == 0);
    const float* row = logits.f32() + static_cast<int64_t>(r) * vocab;
    int64_t best = 0;
    for (int64_t i = 1; i < vocab; ++i)
      if (row[i] > row[best]) best = i;
    batch.results[r].token_id = static_cast<int32_t>(best);
  }
}

}  // namespace nanovllm
