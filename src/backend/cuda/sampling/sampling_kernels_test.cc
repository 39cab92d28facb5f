// What bounds the vocabulary on a device; needs none.
#include "backend/cuda/sampling/sampling_kernels.h"

#include <gtest/gtest.h>

namespace nanovllm::cuda {
namespace {

TEST(CudaSamplingPlan, RealVocabulariesFitEveryDevice) {
  for (const size_t shared_bytes : {99 << 10, 163 << 10}) {
    const int64_t most = max_vocab_size(shared_bytes);
    EXPECT_GE(most, 800'000);
    const int num_blocks = static_cast<int>(most / kSampleBlock);
    EXPECT_LE(sampling_shared_bytes(num_blocks) + 2048, shared_bytes);
    EXPECT_GT(sampling_shared_bytes(num_blocks + 1) + 2048, shared_bytes);
  }
  EXPECT_EQ(max_vocab_size(227 << 10), 1 << 21);
}

}  // namespace
}  // namespace nanovllm::cuda
