#include "backend/cuda/recurrent/gated_delta_plan.h"

#include "backend/cuda/recurrent/delta_chunks.h"

namespace nanovllm::cuda {
namespace {

constexpr size_t kStaticSharedBytes = 1024;  // at most, of a block

}  // namespace

GatedDeltaPlan plan_gated_delta(const StateSpec& spec, int num_prompts, int max_query_len,
                                const DeviceTraits& device) {
  const DeltaLayout layout(spec);
  const auto fits = [&](int bytes) {
    return static_cast<size_t>(bytes) + kStaticSharedBytes <= device.block_bytes();
  };
  const auto bytes_of = [&](int rows) {
    return DeltaShared(layout.key_dim, layout.value_dim, rows,
                       static_cast<int>(size_of(spec.dtype)))
        .bytes;
  };
  GatedDeltaPlan plan;
  plan.rows = max_query_len > 1 && fits(bytes_of(kManyDeltaRows)) ? kManyDeltaRows : 1;
  plan.num_threads = 2 * layout.value_dim;
  plan.shared_bytes = static_cast<size_t>(bytes_of(plan.rows));
  plan.finishes = max_query_len > kShortDeltaRows;
  if (!plan.finishes || spec.dtype != DType::kBFloat16) return plan;
  const auto blocks_of = [&](int values) {
    return int64_t{num_prompts} * spec.num_value_heads * ((layout.value_dim + values - 1) / values);
  };
  const bool are_few = blocks_of(kFewSliceValues) <= device.num_multiprocessors();
  const int values = are_few ? kFewSliceValues : kSliceValues;
  const int chunk_bytes = ChunkShared(layout.key_dim, values).bytes;
  if (!fits(chunk_bytes)) return plan;
  plan.chunk_values = values;
  plan.chunk_bytes = static_cast<size_t>(chunk_bytes);
  return plan;
}

const char* to_string(const GatedDeltaPlan& plan) {
  if (plan.chunk_bytes > 0) {
    return plan.chunk_values == kSliceValues ? "chunk by chunk, 64 values a block"
                                             : "chunk by chunk, 32 values a block";
  }
  return plan.rows > 1 ? "rows by sixteen" : "rows one by one";
}

}  // namespace nanovllm::cuda
