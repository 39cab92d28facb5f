// Sampling: rows are shared out among the threads, and so are the blocks of a row when there are
// fewer rows than threads.
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/row_sampler.h"
#include "backend/cpu/sampling_kernels.h"
#include "base/check.h"

namespace nanovllm {

const SamplingKernels& sampling_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) return kSamplingAvx512;
  if (isa >= Isa::kAvx2) return kSamplingAvx2;
#endif
  static_cast<void>(isa);
  return kSamplingPortable;
}

void CpuBackend::sample(const SamplingBatch& batch, Tensor logits) {
  const auto num_rows = static_cast<int64_t>(batch.rows.size());
  NANOVLLM_CHECK(logits.dtype == DType::kFloat32 && logits.rows() == num_rows);
  NANOVLLM_CHECK(batch.results.size() == batch.rows.size());
  const SamplingKernels& kernels = sampling_kernels(isa_);
  const int64_t vocab_size = logits.row_size();
  row_samplers_.resize(pool_.num_threads());
  const auto sample_row = [&](int64_t r, int thread) {
    batch.results[r] = row_samplers_[thread].sample(kernels, pool_, batch.rows[r],
                                                    logits.f32() + r * vocab_size, vocab_size);
  };
  if (num_rows >= pool_.num_threads()) {
    pool_.parallel_for(num_rows, sample_row);
  } else {
    for (int64_t r = 0; r < num_rows; ++r) sample_row(r, 0);
  }
}

}  // namespace nanovllm
