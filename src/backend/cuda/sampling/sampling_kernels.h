// The kernels of sampling, in the order in which a step launches them:
//
// - sampling_masks.cu brings the masks of allowed tokens that the device does not have yet;
// - sampling_scan.cu reads all logits once: the largest of each block and the block's mass;
// - sampling_edits.cu does biases, bans and penalties, where a row has any;
// - sampling_select.cu gives a token for each row;
// - sampling_logprobs.cu gives log-probabilities and ranks, where a row wants any.
//
// Only the scan has to read everything; those behind it read the blocks that can matter. What a row
// gets depends on that row alone: every sum has an order that only the vocabulary's size decides.
//
// A mask changes no logit: whoever reads a masked row's logits reads the mask beside them, 1 bit
// for 32, and takes -inf where it is 0.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/sampling.h"

namespace nanovllm::cuda {

constexpr int kSampleBlock = 128;     // logits in a block
constexpr int kMaskWords = 4;         // of a mask for a block
constexpr int kScanRows = 256;        // rows that one launch of the scan takes
constexpr int kMaxCandidates = 4096;  // tokens of a row that shared memory holds

// A SamplingRow as the kernels read it. Its lists lie one after the other in SamplingStep::lists.
struct RowParams {
  uint64_t seed;
  uint64_t position;
  float temperature;
  float top_p;
  float min_p;
  int32_t top_k;
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  int32_t forced_id;
  int32_t num_logprobs;
  int32_t pending_from;
  // From here on in `lists`: the ids of biases (each once), the biases (float32), banned ids, the
  // prompt's and the output's ids, and room for the pending one; lists that nothing needs are
  // empty. -1 = the row is not edited.
  int32_t lists_begin;
  int32_t num_biases;
  int32_t num_banned;
  int32_t num_prompt;
  int32_t num_output;
  int32_t has_penalties;
  int32_t mask;  // its place in SamplingStep::masks; -1 = none
};
static_assert(sizeof(RowParams) % sizeof(uint64_t) == 0);

// log2(e) / temperature; 0 = nothing is drawn, so that the row needs no mass.
constexpr float kLog2E = 1.44269504f;
constexpr float scan_rate(const RowParams& params) {
  const bool draws = params.forced_id < 0 && params.temperature >= kGreedyTemperature;
  return draws ? kLog2E / params.temperature : 0;
}

constexpr int num_list_entries(const RowParams& params) {
  return 2 * params.num_biases + params.num_banned + params.num_prompt + params.num_output + 1;
}

// The largest logit of a block and the sum of exp((x - max) / temperature) over the block.
struct BlockStats {
  float max;
  float mass;
};

// The raw value of an edited logit; id -1 = none.
struct RawLogit {
  int32_t id;
  float value;
};

// One call of sample(). Device memory, but for what is said to be pinned host memory, which the
// kernels access across the bus: so little that a copy would take longer.
struct SamplingStep {
  int num_rows = 0;                   // R
  int64_t vocab_size = 0;             // V
  int num_blocks = 0;                 // B = ceil(V / kSampleBlock)
  float* logits = nullptr;            // [R, V]
  uint32_t* masks = nullptr;          // [places, B, kMaskWords]; null where no row has one
  BlockStats* stats = nullptr;        // [R, B] at the row's temperature, edits and mask done
  BlockStats* raw_stats = nullptr;    // [R, B] at temperature 1, without these; null = not needed
  const RowParams* params = nullptr;  // [R], pinned where no row is edited
  const int32_t* lists = nullptr;     // see RowParams
  RawLogit* raw_logits = nullptr;     // one for each entry of `lists`
  const int32_t* edited_rows = nullptr;  // [num_edited]
  int num_edited = 0;
  const int32_t* previous_ids = nullptr;  // what pending_from points into
  int32_t* sampled_ids = nullptr;         // [R]
  int32_t* token_ids = nullptr;           // [R], pinned
  LogprobEntry* logprobs = nullptr;       // [R, logprobs_stride], pinned
  int32_t* num_logprobs = nullptr;        // [R], pinned
  int logprobs_stride = 0;
};

// Masks for the device, in pinned memory.
struct MaskUpload {
  const uint32_t* words = nullptr;  // [count, B, kMaskWords]; bits behind the row's end are 1
  const int32_t* places = nullptr;  // [count] in SamplingStep::masks
  int count = 0;
};

// What the scan has to know of each row. It travels as a kernel argument, so that nothing has to
// arrive before the scan can begin.
struct ScanRows {
  float rate[kScanRows];               // scan_rate of the row
  int32_t mask[kScanRows];             // RowParams::mask
  uint32_t wants_raw[kScanRows / 32];  // bits: the row needs raw_stats
};

void launch_sampling_masks(cudaStream_t stream, const SamplingStep& step, const MaskUpload& upload);

// Rows first_row .. first_row + num_rows - 1, at most kScanRows.
void launch_sampling_scan(cudaStream_t stream, const SamplingStep& step, const ScanRows& rows,
                          int first_row, int num_rows);
void launch_sampling_edits(cudaStream_t stream, const SamplingStep& step);
void launch_sampling_select(cudaStream_t stream, const SamplingStep& step);
void launch_sampling_logprobs(cudaStream_t stream, const SamplingStep& step);

// Shared memory of the kernels that work on a whole row, which bounds the vocabulary: candidates,
// and for each block its statistics and a place in a list of 16-bit numbers.
constexpr size_t kSampleBlockBytes = sizeof(BlockStats) + sizeof(uint16_t);
constexpr size_t sampling_shared_bytes(int num_blocks) {
  return kMaxCandidates * sizeof(unsigned long long) + num_blocks * kSampleBlockBytes;
}
// Where a block may have so much.
constexpr int64_t max_vocab_size(size_t shared_bytes) {
  constexpr size_t kStaticBytes = 2048;  // at most
  const size_t room = (shared_bytes - kStaticBytes - sampling_shared_bytes(0)) / kSampleBlockBytes;
  return std::min(static_cast<int64_t>(room) * kSampleBlock, int64_t{1} << 21);
}

}  // namespace nanovllm::cuda
