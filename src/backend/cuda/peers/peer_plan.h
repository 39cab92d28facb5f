// How ranks add up what they have: a pure function of shapes.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace nanovllm::cuda {

enum class SumPath {
  kExchange,      // peer_exchange.cu
  kLines,         // peer_lines.cu
  kLinesAndNorm,  // likewise, with the residual addition and norm behind it
};
const char* to_string(SumPath path);

// Of so many bytes, where no more than most_line_bytes go to everybody at once.
SumPath plan_sum(int64_t bytes, int64_t most_line_bytes);
// Of rows that are added to the residual stream, whose norm is taken. In one step the sum is
// rounded in another place than in two, as many rows are done: not with `deterministic`.
SumPath plan_sum_and_norm(DType dtype, int64_t rows, int hidden, int64_t most_line_bytes,
                          bool deterministic);

}  // namespace nanovllm::cuda
