#include "backend/cpu/sampling/row_sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/philox.h"

namespace nanovllm {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// 16 KB of logits: small enough to share out, large enough to be worth waking a thread for.
constexpr int64_t kBlocksInRange = 32;
// 32 KB of sums, which fit in the L1 cache; a flat row of 150,000 logits has some hundreds in the
// fullest bin.
constexpr int kBins = 4096;

// Shuffles the values.
float kth_largest_of(std::vector<float>& values, int64_t k) {
  std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<>());
  return values[k - 1];
}

}  // namespace

template <typename Fn>
void RowSampler::for_block_ranges(Fn&& fn) {
  const int64_t num_ranges = (num_blocks_ + kBlocksInRange - 1) / kBlocksInRange;
  if (num_ranges == 1) return fn(int64_t{0}, num_blocks_);
  pool_->parallel_for(num_ranges, [&](int64_t range, int) {
    const int64_t begin = range * kBlocksInRange;
    fn(begin, std::min(begin + kBlocksInRange, num_blocks_));
  });
}

SamplingResult RowSampler::sample(const SamplingKernels& kernels, ThreadPool& pool,
                                  const SamplingRow& row, float* logits, int64_t vocab_size) {
  kernels_ = &kernels;
  pool_ = &pool;
  logits_ = logits;
  vocab_size_ = vocab_size;
  num_blocks_ = num_sample_blocks(vocab_size);
  SamplingResult result;
  scan();
  if (!find_top()) return result;
  if (row.forced_id >= 0) {
    NANOVLLM_CHECK(row.forced_id < vocab_size);
    result.token_id = row.forced_id;
  } else {
    // What is not allowed stays -inf, whatever is added to it.
    mask(row);
    edits_.apply(row, logits_, vocab_size_);
    rescan_edited();
    if (!find_top()) return result;
    result.token_id = is_greedy(row) ? first_largest() : draw(row);
    if (row.num_logprobs >= 0) restore(row);
  }
  if (row.num_logprobs >= 0) result.logprobs = logprobs(result.token_id, row.num_logprobs);
  return result;
}

void RowSampler::scan() {
  max_.resize(static_cast<size_t>(num_blocks_));
  mass_.resize(static_cast<size_t>(num_blocks_));
  for_block_ranges([&](int64_t begin, int64_t end) {
    const int64_t last = std::min(end * kSampleBlock, vocab_size_);
    kernels_->block_max(block(begin), last - begin * kSampleBlock, &max_[begin]);
  });
}

void RowSampler::mask(const SamplingRow& row) {
  if (row.allowed.empty()) return;
  if (row.num_logprobs >= 0) raw_.assign(logits_, logits_ + vocab_size_);
  for_block_ranges([&](int64_t begin, int64_t end) {
    const int64_t last = std::min(end * kSampleBlock, vocab_size_);
    kernels_->mask(logits_ + begin * kSampleBlock, last - begin * kSampleBlock,
                   &row.allowed[begin * (kSampleBlock / 32)], &max_[begin]);
  });
}

// The raw logits again.
void RowSampler::restore(const SamplingRow& row) {
  if (row.allowed.empty()) {
    edits_.undo(logits_);
    rescan_edited();
  } else {
    std::ranges::copy(raw_, logits_);
    scan();
  }
  find_top();
}

void RowSampler::rescan_edited() {
  edited_.assign(static_cast<size_t>(num_blocks_), 0);
  edits_.for_each_edited([&](int32_t id) { edited_[id / kSampleBlock] = 1; });
  for (int64_t b = 0; b < num_blocks_; ++b) {
    if (edited_[b] != 0) kernels_->block_max(block(b), block_size(b), &max_[b]);
  }
}

// False when there is no distribution to draw from.
bool RowSampler::find_top() {
  top_ = -kInfinity;
  for (const float max : max_) {
    if (std::isnan(max)) return false;
    top_ = std::max(top_, max);
  }
  return std::isfinite(top_);
}

int32_t RowSampler::first_largest() const {
  const int64_t b = std::find(max_.begin(), max_.end(), top_) - max_.begin();
  const float* const x = block(b);
  return static_cast<int32_t>(b * kSampleBlock + (std::find(x, x + block_size(b), top_) - x));
}

int32_t RowSampler::draw(const SamplingRow& row) {
  scale_ = 1 / row.temperature;
  return pick(find_threshold(row), philox_uniform(row.seed, row.position));
}

RowSampler::Threshold RowSampler::find_threshold(const SamplingRow& row) {
  float lowest = -kInfinity;
  if (row.min_p > 0) lowest = top_ + std::log(row.min_p) / scale_;
  if (row.top_k > 0 && row.top_k < vocab_size_) lowest = std::max(lowest, kth_largest(row.top_k));
  if (row.top_p < 1) return top_p_threshold(row.top_p, lowest);
  return {lowest, vocab_size_};
}

// Fills mass_ and returns its sum.
double RowSampler::weigh_blocks(const Threshold& threshold) {
  // Before the block of the last tie, equals of the threshold count; behind it, they do not.
  const int64_t tie_block = threshold.last_tie / kSampleBlock;
  const float above = std::nextafter(threshold.logit, kInfinity);
  for_block_ranges([&](int64_t begin, int64_t end) {
    const int64_t middle = std::clamp(tie_block, begin, end);
    weigh_range(begin, middle, threshold.logit);
    weigh_range(middle, end, above);
  });
  if (tie_block < num_blocks_) {
    float weight[kSampleBlock];
    block_weights(tie_block, threshold, weight);
    mass_[tie_block] = std::accumulate(weight, weight + block_size(tie_block), 0.0f);
  }
  double total = 0;
  for (const float mass : mass_) total += mass;
  return total;
}

void RowSampler::weigh_range(int64_t begin, int64_t end, float lowest) {
  if (begin == end) return;
  const int64_t last = std::min(end * kSampleBlock, vocab_size_);
  kernels_->block_mass(block(begin), last - begin * kSampleBlock, &max_[begin],
                       {top_, scale_, lowest}, &mass_[begin]);
}

void RowSampler::block_weights(int64_t b, const Threshold& threshold, float* weight) const {
  kernels_->weights(block(b), block_size(b), {top_, scale_, threshold.logit}, weight);
  const int64_t first_id = b * kSampleBlock;
  for (int i = 0; i < block_size(b); ++i) {
    if (first_id + i > threshold.last_tie && block(b)[i] == threshold.logit) weight[i] = 0;
  }
}

// A value that at least k logits reach, and not many more.
float RowSampler::bound_of_kth_largest(int64_t k) {
  if (k <= num_blocks_ / 8) {
    ordered_ = max_;
    return kth_largest_of(ordered_, k);
  }
  // Guess from one logit in kStride, so low that it is hardly ever wrong, and make sure.
  constexpr int64_t kStride = 16;
  const auto expected = static_cast<double>(k) / kStride;
  const auto rank = static_cast<int64_t>(expected + 4 * std::sqrt(expected)) + 8;
  if (rank > vocab_size_ / kStride) return -kInfinity;
  ordered_.clear();
  for (int64_t i = 0; i < vocab_size_; i += kStride) ordered_.push_back(logits_[i]);
  const float guess = kth_largest_of(ordered_, rank);
  return kernels_->count_at_least(logits_, vocab_size_, guess) >= k ? guess : -kInfinity;
}

// 1 <= k <= vocab_size.
float RowSampler::kth_largest(int64_t k) {
  const float bound = bound_of_kth_largest(k);
  collect_at_least(bound);
  return kth_largest_of(collected_, k);
}

RowSampler::Threshold RowSampler::top_p_threshold(float top_p, float lowest) {
  const double total = weigh_blocks({lowest, vocab_size_});
  const double needed = top_p * total;
  // Tokens below this weight together have less than what top_p leaves over, so that none of them
  // is kept: few tokens of a trained model's row are above it. Half, for what rounding may add.
  const double unneeded = (1 - static_cast<double>(top_p)) * total / (2.0 * vocab_size_);
  lowest = std::max(
      {lowest, top_ + static_cast<float>(std::log(unneeded)) / scale_, top_ - 87 / scale_});
  collect_at_least(lowest);
  const float bins_per_unit = kBins / (top_ - lowest);
  float weight[kSampleBlock];
  int32_t bin[kSampleBlock];
  const auto for_each_candidate = [&](auto&& fn) {
    for (size_t begin = 0; begin < collected_.size(); begin += kSampleBlock) {
      const float* const x = &collected_[begin];
      const auto n = static_cast<int>(std::min<size_t>(kSampleBlock, collected_.size() - begin));
      kernels_->weights(x, n, {top_, scale_, lowest}, weight);
      kernels_->bins(x, n, top_, bins_per_unit, kBins - 1, bin);
      for (int i = 0; i < n; ++i) fn(begin + i, bin[i], weight[i]);
    }
  };
  histogram_.assign(kBins, 0);
  for_each_candidate([&](size_t, int32_t b, float w) { histogram_[b] += w; });
  double before = 0;
  int32_t crossed = 0;
  while (crossed < kBins - 1 && before + histogram_[crossed] < needed) {
    before += histogram_[crossed++];
  }
  candidates_.clear();
  for_each_candidate([&](size_t i, int32_t b, float w) {
    if (b == crossed) candidates_.push_back({collected_[i], collected_ids_[i], w});
  });
  // Rounding, or a top_p next to 1: everything from `lowest` on is needed.
  if (candidates_.empty()) return {lowest, vocab_size_};
  return last_needed(needed - before);
}

// Logits from `lowest` on, in id order.
void RowSampler::collect_at_least(float lowest) {
  const size_t size = kernels_->count_at_least(logits_, vocab_size_, lowest);
  // Each logit is written before it is known to count, so that nothing has to be predicted.
  collected_.resize(size + 1);
  collected_ids_.resize(size + 1);
  size_t count = 0;
  for (int64_t b = 0; b < num_blocks_; ++b) {
    if (max_[b] < lowest) continue;
    const float* const x = block(b);
    const auto first_id = static_cast<int32_t>(b * kSampleBlock);
    const int n = block_size(b);
    for (int i = 0; i < n; ++i) {
      collected_[count] = x[i];
      collected_ids_[count] = first_id + i;
      count += x[i] >= lowest;
    }
  }
  collected_.resize(size);
  collected_ids_.resize(size);
}

// The last of the most likely candidates whose weights reach `needed`; the last of all when they do
// not. Halves the candidates as quickselect does.
RowSampler::Threshold RowSampler::last_needed(double needed) {
  auto begin = candidates_.begin();
  auto end = candidates_.end();
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, Candidate::is_more_likely);
    double upper = 0;
    for (auto c = begin; c != middle; ++c) upper += c->weight;
    if (upper >= needed) {
      end = middle;
    } else {
      needed -= upper;
      begin = middle;
    }
  }
  return {begin->logit, begin->id};
}

// The first token whose cumulative weight exceeds u times the total; -1 when nothing has a weight.
int32_t RowSampler::pick(const Threshold& threshold, double u) {
  const double total = weigh_blocks(threshold);
  const double target = u * total;
  double cumulative = 0;
  int64_t chosen = -1;
  for (int64_t b = 0; b < num_blocks_; ++b) {
    if (mass_[b] == 0) continue;
    chosen = b;
    if (cumulative + mass_[b] > target) break;
    cumulative += mass_[b];
  }
  if (chosen < 0) return -1;
  float weight[kSampleBlock];
  block_weights(chosen, threshold, weight);
  int32_t token = -1;
  for (int i = 0; i < block_size(chosen); ++i) {
    if (weight[i] == 0) continue;
    token = static_cast<int32_t>(chosen * kSampleBlock + i);
    cumulative += weight[i];
    if (cumulative > target) break;
  }
  return token;
}

std::vector<LogprobEntry> RowSampler::logprobs(int32_t chosen, int32_t count) {
  scale_ = 1;
  const double log_total = top_ + std::log(weigh_blocks({-kInfinity, vocab_size_}));
  const auto logprob = [&](int32_t id) { return static_cast<float>(logits_[id] - log_total); };
  const float x = logits_[chosen];
  const int64_t larger = kernels_->count_at_least(logits_, chosen, x) +
                         kernels_->count_at_least(logits_ + chosen + 1, vocab_size_ - chosen - 1,
                                                  std::nextafter(x, kInfinity));
  std::vector<LogprobEntry> entries{{chosen, logprob(chosen), static_cast<int32_t>(larger + 1)}};
  count = static_cast<int32_t>(std::min<int64_t>(count, vocab_size_));
  if (count == 0) return entries;
  const float kth = kth_largest(count);
  collect_at_least(kth);
  candidates_.clear();
  for (size_t i = 0; i < collected_.size(); ++i) {
    candidates_.push_back({collected_[i], collected_ids_[i], 0});
  }
  std::partial_sort(candidates_.begin(), candidates_.begin() + count, candidates_.end(),
                    Candidate::is_more_likely);
  for (int32_t i = 0; i < count; ++i) {
    const int32_t id = candidates_[i].id;
    if (id != chosen) entries.push_back({id, logprob(id), i + 1});
  }
  return entries;
}

}  // namespace nanovllm
