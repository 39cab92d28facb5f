#include "backend/cpu/experts/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

namespace nanovllm {
namespace {

void score(std::span<float> x, Routing::Score how) {
  if (how == Routing::Score::kSigmoid) {
    for (float& value : x) value = 1 / (1 + std::exp(-value));
    return;
  }
  const float largest = *std::ranges::max_element(x);
  float sum = 0;
  for (float& value : x) sum += value = std::exp(value - largest);
  for (float& value : x) value /= sum;
}

// The largest of those that are not taken, the first of equals.
int take_largest(std::span<const float> values, std::vector<bool>& taken) {
  int best = -1;
  for (int i = 0; i < std::ssize(values); ++i) {
    if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
  }
  taken[best] = true;
  return best;
}

// Makes 0 of the p of experts whose groups are not open.
void close_groups(std::span<float> p, const Routing& routing) {
  const size_t size = p.size() / static_cast<size_t>(routing.num_groups);
  std::vector<float> sums;
  for (size_t begin = 0; begin < p.size(); begin += size) {
    float first = -std::numeric_limits<float>::infinity(), second = size > 1 ? first : 0;
    for (const float value : p.subspan(begin, size)) {
      if (size > 1) second = std::max(second, std::min(first, value));
      first = std::max(first, value);
    }
    sums.push_back(first + second);
  }
  std::vector<bool> is_open(sums.size());
  for (int i = 0; i < routing.num_active_groups; ++i) take_largest(sums, is_open);
  for (size_t i = 0; i < p.size(); ++i) {
    if (!is_open[i / size]) p[i] = 0;
  }
}

}  // namespace

void route(float* logits, int num_experts, const Routing& routing, int32_t* ids, float* weights) {
  const std::span<float> s(logits, static_cast<size_t>(num_experts));
  score(s, routing.score);
  thread_local std::vector<float> p;
  thread_local std::vector<bool> taken;
  p.assign(s.begin(), s.end());
  for (size_t i = 0; i < routing.correction.size(); ++i) p[i] += routing.correction[i];
  if (routing.num_active_groups < routing.num_groups) close_groups(p, routing);
  taken.assign(s.size(), false);
  float sum = 0;
  for (int i = 0; i < routing.num_active; ++i) {
    ids[i] = take_largest(p, taken);
    weights[i] = s[ids[i]];
    sum += weights[i];
  }
  const float scale = routing.renormalise ? routing.scale / (sum + 1e-20f) : routing.scale;
  for (int i = 0; i < routing.num_active; ++i) weights[i] *= scale;
}

}  // namespace nanovllm
