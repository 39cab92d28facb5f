// Sampling on the host: downloads the logits and runs the scalar sampler on each row.
#include <span>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "ops/reference_sampling.h"

namespace nanovllm {

void CudaBackend::sample(const SamplingBatch& batch, Tensor logits) {
  std::vector<float> host(static_cast<size_t>(logits.num_elements()));
  download(host.data(), logits.data, logits.bytes());
  const auto vocab = static_cast<size_t>(logits.row_size());
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    batch.results[i] = reference_sample(batch.rows[i], std::span(host).subspan(i * vocab, vocab));
  }
}

}  // namespace nanovllm
