#include "backend/cuda/recurrent/gated_delta_plan.h"

namespace nanovllm::cuda {
namespace {

constexpr size_t kStaticSharedBytes = 1024;  // at most, of a block

}  // namespace

GatedDeltaPlan plan_gated_delta(const StateSpec& spec, int max_query_len,
                                const DeviceTraits& device) {
  const DeltaLayout layout(spec);
  const auto bytes_of = [&](int rows) {
    const DeltaShared shared(layout.key_dim, layout.value_dim, rows,
                             static_cast<int>(size_of(spec.dtype)));
    return static_cast<size_t>(shared.bytes);
  };
  const bool takes_many =
      max_query_len > 1 && bytes_of(kManyDeltaRows) + kStaticSharedBytes <= device.block_bytes();
  const int rows = takes_many ? kManyDeltaRows : 1;
  return {.rows = rows,
          .num_threads = 2 * layout.value_dim,
          .shared_bytes = bytes_of(rows),
          .keeps_apart = max_query_len > kShortDeltaRows};
}

const char* to_string(const GatedDeltaPlan& plan) {
  return plan.rows > 1 ? "rows by sixteen" : "rows one by one";
}

}  // namespace nanovllm::cuda
