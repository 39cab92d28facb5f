// Sampling on the host: downloads the logits and runs the scalar sampler on each row.
#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "base/check.h"
#include "ops/reference_sampling.h"

namespace nanovllm {
namespace {

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

std::unique_ptr<SamplingTicket> CudaBackend::sample(std::span<const SamplingRow> rows,
                                                    Tensor logits, int32_t* sampled_ids,
                                                    const int32_t* previous_ids) {
  std::vector<float> host(static_cast<size_t>(logits.num_elements()));
  download(host.data(), logits.data, logits.bytes());
  const auto vocab = static_cast<size_t>(logits.row_size());
  std::vector<SamplingResult> results(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    SamplingRow row = rows[r];
    std::vector<int32_t> output_ids(row.output_ids.begin(), row.output_ids.end());
    if (row.pending_from >= 0) {
      output_ids.push_back(-1);
      download(&output_ids.back(), previous_ids + row.pending_from, sizeof(int32_t));
      row.output_ids = output_ids;
    }
    results[r] = reference_sample(row, std::span(host).subspan(r * vocab, vocab));
    if (sampled_ids != nullptr) upload(sampled_ids + r, &results[r].token_id, sizeof(int32_t));
  }
  synchronize();
  return std::make_unique<Ticket>(std::move(results));
}

}  // namespace nanovllm
