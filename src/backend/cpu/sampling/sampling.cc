// Sampling: rows are shared out among the threads, and so are the blocks of a row when there are
// fewer rows than threads.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/sampling/row_sampler.h"
#include "backend/cpu/sampling/sampling_kernels.h"
#include "base/check.h"

namespace nanovllm {
namespace {

// All is done when the ticket is written.
class Ticket final : public SamplingTicket {
 public:
  explicit Ticket(std::vector<SamplingResult> results) : results_(std::move(results)) {}
  void collect(std::span<SamplingResult> results) override {
    NANOVLLM_CHECK(results.size() == results_.size());
    std::move(results_.begin(), results_.end(), results.begin());
  }

 private:
  std::vector<SamplingResult> results_;
};

}  // namespace

SamplingKernels sampling_kernels(Isa isa) {
  return with_isa(isa, []<Isa set>() { return sampling_kernels<set>(); });
}

std::unique_ptr<SamplingTicket> CpuBackend::sample(std::span<const SamplingRow> rows, Tensor logits,
                                                   int32_t* sampled_ids,
                                                   const int32_t* previous_ids) {
  const auto num_rows = static_cast<int64_t>(rows.size());
  NANOVLLM_CHECK(logits.dtype == DType::kFloat32 && logits.rows() == num_rows);
  const SamplingKernels kernels = sampling_kernels(isa_);
  const int64_t vocab_size = logits.row_size();
  row_samplers_.resize(pool_.num_threads());
  std::vector<SamplingResult> results(rows.size());
  const auto sample_row = [&](int64_t r, int thread) {
    SamplingRow row = rows[r];
    std::vector<int32_t> output_ids;
    if (row.pending_from >= 0 && has_penalties(row)) {
      output_ids.assign(row.output_ids.begin(), row.output_ids.end());
      output_ids.push_back(previous_ids[row.pending_from]);
      row.output_ids = output_ids;
    }
    results[r] = row_samplers_[thread].sample(kernels, pool_, row, logits.f32() + r * vocab_size,
                                              vocab_size);
    if (sampled_ids != nullptr) sampled_ids[r] = results[r].token_id;
  };
  // A row that several threads share waits for them now and then.
  if (2 * num_rows >= pool_.num_threads()) {
    pool_.parallel_for(num_rows, sample_row);
  } else {
    for (int64_t r = 0; r < num_rows; ++r) sample_row(r, 0);
  }
  return std::make_unique<Ticket>(std::move(results));
}

}  // namespace nanovllm
