#include "backend/cuda/peers/peer_plan.h"

#include "backend/cuda/peers/peer_memory.cuh"

namespace nanovllm::cuda {

const char* to_string(SumPath path) {
  switch (path) {
    case SumPath::kExchange:
      return "each GPU adds up a share";
    case SumPath::kLines:
      return "sent to all GPUs at once";
    case SumPath::kLinesAndNorm:
      return "sent to all GPUs at once, with the norm";
  }
  return "";
}

SumPath plan_sum(int64_t bytes, int64_t most_line_bytes) {
  return bytes <= most_line_bytes ? SumPath::kLines : SumPath::kExchange;
}

SumPath plan_sum_and_norm(DType dtype, int64_t rows, int hidden, int64_t most_line_bytes,
                          bool deterministic) {
  constexpr int64_t kVectorBytes = 16, kLineDataBytes = 8;
  const int64_t row_bytes = int64_t{hidden} * static_cast<int64_t>(size_of(dtype));
  const SumPath alone = plan_sum(rows * row_bytes, most_line_bytes);
  const bool fits = row_bytes % kVectorBytes == 0 && row_bytes <= kLinesAtOnce * kLineDataBytes;
  return alone == SumPath::kLines && fits && !deterministic ? SumPath::kLinesAndNorm : alone;
}

}  // namespace nanovllm::cuda
