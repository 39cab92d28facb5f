// Samples one row of logits.
//
// Nothing is sorted but a handful of candidates. The largest logit of each block bounds what the
// block can hold: the k-th largest of those maxima is a lower bound of the k-th largest logit, and
// a block below the row's current threshold is skipped. top_p finds its threshold in a histogram of
// probability over logit and refines the one bin that the threshold falls into.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backend/cpu/sampling/sampling_edits.h"
#include "backend/cpu/sampling/sampling_kernels.h"
#include "backend/cpu/thread_pool.h"
#include "ops/sampling.h"

namespace nanovllm {

// Holds scratch memory; one for each thread that samples rows.
class RowSampler {
 public:
  // Changes logits[0, vocab_size). Spreads long rows over `pool` (called from one of the pool's
  // tasks, it works alone); the result does not depend on that.
  SamplingResult sample(const SamplingKernels& kernels, ThreadPool& pool, const SamplingRow& row,
                        float* logits, int64_t vocab_size);

 private:
  struct Candidate {
    float logit;
    int32_t id;
    float weight;

    static bool is_more_likely(const Candidate& a, const Candidate& b) {
      return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    }
  };
  // Tokens with logit >= `logit`, of its equals only those up to `last_tie`.
  struct Threshold {
    float logit;
    int64_t last_tie;
  };

  // Calls fn(begin, end) for ranges that cover all blocks, on the pool's threads.
  template <typename Fn>
  void for_block_ranges(Fn&& fn);
  const float* block(int64_t b) const { return logits_ + b * kSampleBlock; }
  int block_size(int64_t b) const {  // the last block may be short
    return static_cast<int>(std::min<int64_t>(kSampleBlock, vocab_size_ - b * kSampleBlock));
  }

  void scan();
  void mask(const SamplingRow& row);
  void restore(const SamplingRow& row);
  void rescan_edited();
  bool find_top();
  int32_t first_largest() const;
  int32_t draw(const SamplingRow& row);
  Threshold find_threshold(const SamplingRow& row);
  double weigh_blocks(const Threshold& threshold);
  void weigh_range(int64_t begin, int64_t end, float lowest);
  float bound_of_kth_largest(int64_t k);
  float kth_largest(int64_t k);
  void collect_at_least(float lowest);
  Threshold top_p_threshold(float top_p, float lowest);
  Threshold last_needed(double needed);
  int32_t pick(const Threshold& threshold, double u);
  void block_weights(int64_t b, const Threshold& threshold, float* weight) const;
  std::vector<LogprobEntry> logprobs(int32_t chosen, int32_t count);

  const SamplingKernels* kernels_ = nullptr;
  ThreadPool* pool_ = nullptr;
  float* logits_ = nullptr;
  int64_t vocab_size_ = 0;
  int64_t num_blocks_ = 0;
  float top_ = 0;    // largest logit
  float scale_ = 1;  // 1 / temperature

  LogitEdits edits_;
  std::vector<float> raw_;       // [vocab_size] of a row that is masked and read again
  std::vector<float> max_;       // [num_blocks]
  std::vector<float> mass_;      // [num_blocks]
  std::vector<float> ordered_;   // values that nth_element shuffles
  std::vector<uint8_t> edited_;  // [num_blocks] the block holds an edited logit
  std::vector<double> histogram_;
  std::vector<float> collected_;  // logits, and their ids
  std::vector<int32_t> collected_ids_;
  std::vector<Candidate> candidates_;
};

}  // namespace nanovllm
