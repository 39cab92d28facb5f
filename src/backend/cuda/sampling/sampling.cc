#include "backend/cuda/sampling/sampling.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/sampling/sampling_slot.h"
#include "base/check.h"

namespace nanovllm::cuda {

class Sampler::Ticket final : public SamplingTicket {
 public:
  Ticket(Sampler& sampler, std::unique_ptr<SamplingSlot> slot)
      : sampler_(sampler), slot_(std::move(slot)) {}
  ~Ticket() override { sampler_.give_back(std::move(slot_)); }

  void collect(std::span<SamplingResult> results) override {
    slot_->wait();
    slot_->read(results);
  }

 private:
  Sampler& sampler_;
  std::unique_ptr<SamplingSlot> slot_;
};

Sampler::Sampler(Backend& backend, cudaStream_t stream, size_t shared_bytes)
    : backend_(backend),
      stream_(stream),
      max_vocab_size_(cuda::max_vocab_size(shared_bytes)),
      masks_(backend) {}
Sampler::~Sampler() = default;

std::unique_ptr<SamplingSlot> Sampler::take_slot() {
  if (free_slots_.empty()) return std::make_unique<SamplingSlot>();
  std::unique_ptr<SamplingSlot> slot = std::move(free_slots_.back());
  free_slots_.pop_back();
  return slot;
}

void Sampler::give_back(std::unique_ptr<SamplingSlot> slot) {
  free_slots_.push_back(std::move(slot));
}

void* Sampler::grow(std::unique_ptr<Buffer>& buffer, size_t bytes) {
  if (!buffer || buffer->bytes() < bytes) {
    buffer.reset();
    buffer = backend_.allocate(bytes + bytes / 2);
  }
  return buffer->data();
}

std::unique_ptr<SamplingTicket> Sampler::sample(std::span<const SamplingRow> rows, Tensor logits,
                                                int32_t* sampled_ids, const int32_t* previous_ids) {
  NANOVLLM_CHECK(logits.dtype == DType::kFloat32);
  NANOVLLM_CHECK(logits.rows() == static_cast<int64_t>(rows.size()));
  if (logits.row_size() > max_vocab_size_) {
    throw_error(
        ErrorCode::kUnsupported,
        "this GPU has too little shared memory for a vocabulary of {} tokens: up to {} fit; "
        "use the device cpu or a larger GPU",
        logits.row_size(), max_vocab_size_);
  }
  std::unique_ptr<SamplingSlot> slot = take_slot();
  slot->fill(rows, logits.row_size(), masks_);
  if (!rows.empty()) {
    SamplingStep& step = slot->step();
    step.logits = logits.f32();
    step.sampled_ids = sampled_ids;
    step.previous_ids = previous_ids;
    launch(*slot);
  }
  return std::make_unique<Ticket>(*this, std::move(slot));
}

void Sampler::launch(SamplingSlot& slot) {
  SamplingStep& step = slot.step();
  // Before all that could fail: the table counts on them.
  launch_sampling_masks(stream_, step, slot.mask_upload());
  const size_t num_rows = step.num_rows;
  const size_t stats_bytes = num_rows * step.num_blocks * sizeof(BlockStats);
  step.stats = static_cast<BlockStats*>(grow(stats_, stats_bytes));
  const bool wants_logprobs = step.logprobs_stride > 0;
  if (wants_logprobs) step.raw_stats = static_cast<BlockStats*>(grow(raw_stats_, stats_bytes));
  if (step.sampled_ids == nullptr) {
    step.sampled_ids = static_cast<int32_t*>(grow(sampled_ids_, num_rows * sizeof(int32_t)));
  }
  const char* rows_data = slot.rows_bytes().data();
  if (step.num_edited > 0) {
    // Lists may be long, and are read more than once.
    const size_t bytes = slot.rows_bytes().size();
    rows_data = static_cast<const char*>(grow(rows_, bytes));
    backend_.upload(rows_->data(), slot.rows_bytes().data(), bytes);
    step.raw_logits =
        static_cast<RawLogit*>(grow(raw_logits_, slot.num_list_entries() * sizeof(RawLogit)));
  }
  slot.place_rows(rows_data);
  for (int first = 0; first < step.num_rows; first += kScanRows) {
    const int count = std::min(kScanRows, step.num_rows - first);
    ScanRows rows = {};
    for (int r = 0; r < count; ++r) {
      const RowParams& params = slot.params()[first + r];
      rows.rate[r] = scan_rate(params);
      rows.mask[r] = params.mask;
      if (params.num_logprobs >= 0) rows.wants_raw[r / 32] |= 1u << (r % 32);
    }
    launch_sampling_scan(stream_, step, rows, first, count);
  }
  if (step.num_edited > 0) launch_sampling_edits(stream_, step);
  launch_sampling_select(stream_, step);
  if (wants_logprobs) launch_sampling_logprobs(stream_, step);
  slot.record(stream_);
}

}  // namespace nanovllm::cuda
