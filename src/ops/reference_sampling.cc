#include "ops/reference_sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/philox.h"

namespace nanovllm {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// Most likely first; the smallest id first among equals.
template <typename T>
std::vector<int32_t> ids_by_value(const std::vector<T>& values) {
  std::vector<int32_t> ids(values.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return values[a] > values[b]; });
  return ids;
}

bool can_draw_from(const std::vector<double>& logits) {
  const auto is_nan = [](double x) { return std::isnan(x); };
  return std::none_of(logits.begin(), logits.end(), is_nan) &&
         std::isfinite(*std::max_element(logits.begin(), logits.end()));
}

std::vector<double> softmax(const std::vector<double>& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p(logits.size());
  std::transform(logits.begin(), logits.end(), p.begin(),
                 [&](double x) { return std::exp(x - top); });
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= total;
  return p;
}

void keep_min_p(std::vector<double>& logits, double min_p) {
  const double top = *std::max_element(logits.begin(), logits.end());
  for (double& x : logits) {
    if (std::exp(x - top) < min_p) x = kMinusInfinity;
  }
}

void keep_top_k(std::vector<double>& logits, int32_t top_k) {
  const double kth = logits[ids_by_value(logits)[top_k - 1]];
  for (double& x : logits) {
    if (x < kth) x = kMinusInfinity;
  }
}

void keep_top_p(std::vector<double>& logits, double top_p) {
  const std::vector<double> p = softmax(logits);
  double before = 0;
  for (const int32_t id : ids_by_value(logits)) {
    if (before >= top_p) logits[id] = kMinusInfinity;
    before += p[id];
  }
}

std::vector<LogprobEntry> logprobs_of(std::span<const float> raw, int32_t chosen, int32_t count) {
  const std::vector<double> logits(raw.begin(), raw.end());
  const double top = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const double x : logits) total += std::exp(x - top);
  const std::vector<int32_t> order = ids_by_value(logits);
  std::vector<LogprobEntry> entries(1);
  for (int32_t rank = 1; rank <= static_cast<int32_t>(order.size()); ++rank) {
    const int32_t id = order[rank - 1];
    const LogprobEntry entry{id, static_cast<float>(logits[id] - top - std::log(total)), rank};
    if (id == chosen) {
      entries[0] = entry;
    } else if (rank <= count) {
      entries.push_back(entry);
    }
  }
  return entries;
}

int32_t draw(const SamplingRow& row, std::span<const float> logits) {
  const std::vector<double> p = reference_probabilities(row, logits);
  const double u = philox_uniform(row.seed, row.position);
  double cumulative = 0;
  int32_t last = -1;
  for (size_t id = 0; id < p.size(); ++id) {
    if (p[id] == 0) continue;
    last = static_cast<int32_t>(id);
    cumulative += p[id];
    if (cumulative > u) break;
  }
  return last;
}

}  // namespace

std::vector<double> reference_edit_logits(const SamplingRow& row, std::span<const float> logits) {
  std::vector<double> edited(logits.begin(), logits.end());
  const auto known = [&](int32_t id) {
    return id >= 0 && id < static_cast<int32_t>(edited.size());
  };
  for (const auto& [id, bias] : row.logit_bias) {
    if (known(id)) edited[id] += bias;
  }
  for (const int32_t id : row.banned_ids) {
    if (known(id)) edited[id] = kMinusInfinity;
  }
  for (int32_t id = 0; id < static_cast<int32_t>(edited.size()); ++id) {
    if (!is_allowed(row, id)) edited[id] = kMinusInfinity;
  }
  std::map<int32_t, int> counts;  // times in the output; 0 = in the prompt only
  for (const int32_t id : row.prompt_ids) counts.try_emplace(id, 0);
  for (const int32_t id : row.output_ids) ++counts[id];
  for (const auto& [id, count] : counts) {
    if (!known(id)) continue;
    double& x = edited[id];
    x = x > 0 ? x / row.repetition_penalty : x * row.repetition_penalty;
    x -= static_cast<double>(row.frequency_penalty) * count;
    if (count > 0) x -= row.presence_penalty;
  }
  return edited;
}

std::vector<double> reference_probabilities(const SamplingRow& row, std::span<const float> logits) {
  std::vector<double> edited = reference_edit_logits(row, logits);
  for (double& x : edited) x /= row.temperature;
  if (row.min_p > 0) keep_min_p(edited, row.min_p);
  if (row.top_k > 0 && row.top_k < static_cast<int32_t>(edited.size())) {
    keep_top_k(edited, row.top_k);
  }
  if (row.top_p < 1) keep_top_p(edited, row.top_p);
  return softmax(edited);
}

SamplingResult reference_sample(const SamplingRow& row, std::span<const float> logits) {
  SamplingResult result;
  if (!can_draw_from({logits.begin(), logits.end()})) return result;
  if (row.forced_id >= 0) {
    result.token_id = row.forced_id;
  } else {
    const std::vector<double> edited = reference_edit_logits(row, logits);
    if (!can_draw_from(edited)) return result;
    result.token_id = is_greedy(row) ? ids_by_value(edited)[0] : draw(row, logits);
  }
  if (row.num_logprobs >= 0) {
    result.logprobs = logprobs_of(logits, result.token_id, row.num_logprobs);
  }
  return result;
}

}  // namespace nanovllm
