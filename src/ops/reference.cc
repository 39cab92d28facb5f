// Formulas written out; see reference.h for where they come from.
#include "ops/reference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <numeric>

namespace nanovllm::reference {
namespace {

double root_mean_square(std::span<const double> x, double eps) {
  double sum = 0;
  for (double value : x) sum += value * value;
  return std::sqrt(sum / static_cast<double>(x.size()) + eps);
}

// Row `row` of a matrix, or the part of it that begins at `begin`.
std::vector<double> read(const Tensor& x, int64_t row, int64_t begin, int64_t count) {
  std::vector<double> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = element(x, row * x.row_size() + begin + i);
  return values;
}

void normalise(std::vector<double>& head, const float* weight, float eps) {
  if (weight == nullptr) return;
  const double rms = root_mean_square(head, eps);
  for (size_t i = 0; i < head.size(); ++i) head[i] = head[i] / rms * weight[i];
}

// (x[i], x[i + half]) is turned by the angle whose cosine and sine the table holds.
void rotate(std::vector<double>& head, const RopeParams& rope, int32_t position) {
  const int half = rope.rotary_dim / 2;
  const float* cos = rope.cos_sin.f32() + static_cast<int64_t>(position) * rope.rotary_dim;
  const float* sin = cos + half;
  for (int i = 0; i < half; ++i) {
    const double a = head[i];
    const double b = head[i + half];
    head[i] = a * cos[i] - b * sin[i];
    head[i + half] = b * cos[i] + a * sin[i];
  }
}

// One head of one token: out[D].
void attend(std::span<const double> q, const PlainKvCache& cache, int head,
            const AttentionParams& params, const int32_t* block_table, int position, float* out) {
  const int first = params.window > 0 ? std::max(0, position - params.window + 1) : 0;
  const int dim = cache.head_dim;
  const int kv_head = head / (params.num_heads / cache.num_kv_heads);
  std::vector<double> scores;
  std::vector<int64_t> rows;
  double largest = -std::numeric_limits<double>::infinity();
  for (int p = first; p <= position; ++p) {
    const int slot = block_table[p / cache.block_size] * cache.block_size + p % cache.block_size;
    rows.push_back(cache.row(slot, kv_head));
    // Four sums at a time, where a loop would wait for each addition.
    double score = params.scale *
                   std::transform_reduce(q.begin(), q.end(), cache.k.begin() + rows.back(), 0.0);
    if (params.soft_cap > 0) score = params.soft_cap * std::tanh(score / params.soft_cap);
    scores.push_back(score);
    largest = std::max(largest, score);
  }
  double sum = 0;
  if (params.sinks != nullptr) {
    largest = std::max(largest, static_cast<double>(params.sinks[head]));
    sum = std::exp(params.sinks[head] - largest);
  }
  std::vector<double> result(dim, 0.0);
  for (size_t i = 0; i < scores.size(); ++i) {
    const double weight = std::exp(scores[i] - largest);
    sum += weight;
    for (int d = 0; d < dim; ++d) result[d] += weight * cache.v[rows[i] + d];
  }
  for (int d = 0; d < dim; ++d) out[d] = static_cast<float>(result[d] / sum);
}

// W x + b.
std::vector<double> multiply(const Matrix& matrix, std::span<const double> x) {
  std::vector<double> out(matrix.bias.begin(), matrix.bias.end());
  out.resize(static_cast<size_t>(matrix.out_features()));
  std::vector<float> row(x.size());
  size_t n = 0;
  for (const HostMatrix& piece : matrix.pieces) {
    for (int64_t r = 0; r < piece.rows; ++r, ++n) {
      read_elements(piece, r, 0, piece.cols, DType::kFloat32, row.data());
      for (size_t k = 0; k < x.size(); ++k) out[n] += row[k] * x[k];
    }
  }
  return out;
}

}  // namespace

float element(const Tensor& tensor, int64_t i) {
  switch (tensor.dtype) {
    case DType::kFloat32:
      return tensor.f32()[i];
    case DType::kBFloat16:
      return to_float(tensor.bf16()[i]);
    case DType::kFloat16:
      return half_to_float(tensor.as<uint16_t>()[i]);
    case DType::kInt32:
      break;
  }
  NANOVLLM_CHECK(!"a tensor of numbers");
  return 0;
}

std::vector<float> embedding(std::span<const int32_t> ids, const Tensor& table, int32_t first_id) {
  const int64_t width = table.row_size();
  std::vector<float> out(ids.size() * width, 0.0f);
  for (size_t t = 0; t < ids.size(); ++t) {
    const int64_t row = static_cast<int64_t>(ids[t]) - first_id;
    if (row < 0 || row >= table.rows()) continue;
    for (int64_t i = 0; i < width; ++i) out[t * width + i] = element(table, row * width + i);
  }
  return out;
}

std::vector<float> rms_norm(const Tensor& x, std::span<const float> weight, float eps) {
  std::vector<float> out;
  for (int64_t t = 0; t < x.rows(); ++t) {
    const std::vector<double> row = read(x, t, 0, x.row_size());
    const double rms = root_mean_square(row, eps);
    for (size_t i = 0; i < row.size(); ++i) {
      out.push_back(static_cast<float>(row[i] / rms * weight[i]));
    }
  }
  return out;
}

std::vector<float> add(const Tensor& residual, const Tensor& x, float scale) {
  std::vector<float> out(residual.num_elements());
  for (size_t i = 0; i < out.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    out[i] = static_cast<float>(element(residual, at) + double{scale} * element(x, at));
  }
  return out;
}

std::vector<float> norm_all_heads(const Tensor& qkv, const HeadsNormParams& norm) {
  std::vector<float> out;
  for (int64_t t = 0; t < qkv.rows(); ++t) {
    std::vector<double> q = read(qkv, t, 0, norm.q_width);
    std::vector<double> k = read(qkv, t, norm.q_width, norm.k_width);
    normalise(q, norm.q_weight, norm.eps);
    normalise(k, norm.k_weight, norm.eps);
    const std::vector<double> v = read(qkv, t, norm.q_width + norm.k_width, norm.k_width);
    for (const std::vector<double>& part : {q, k, v}) {
      out.insert(out.end(), part.begin(), part.end());
    }
  }
  return out;
}

std::vector<float> linear(const Tensor& x, const Tensor& weight, std::span<const float> bias) {
  std::vector<float> out;
  const int64_t depth = x.row_size();
  for (int64_t t = 0; t < x.rows(); ++t) {
    for (int64_t n = 0; n < weight.rows(); ++n) {
      double sum = bias.empty() ? 0.0 : bias[n];
      for (int64_t k = 0; k < depth; ++k) {
        sum += static_cast<double>(element(x, t * depth + k)) * element(weight, n * depth + k);
      }
      out.push_back(static_cast<float>(sum));
    }
  }
  return out;
}

PlainKvCache::PlainKvCache(int kv_heads, int dim, int tokens_per_block, int num_blocks)
    : num_kv_heads(kv_heads),
      head_dim(dim),
      block_size(tokens_per_block),
      k(static_cast<size_t>(num_blocks) * tokens_per_block * kv_heads * dim),
      v(k.size()) {}

std::vector<float> qk_norm_rope_store(const Tensor& qkv, int num_heads, const RopeParams& rope,
                                      PlainKvCache& cache, const ForwardBatch& batch) {
  const int dim = cache.head_dim;
  std::vector<float> q_out;
  for (int t = 0; t < batch.num_tokens; ++t) {
    for (int h = 0; h < num_heads; ++h) {
      std::vector<double> q = read(qkv, t, static_cast<int64_t>(h) * dim, dim);
      normalise(q, rope.q_norm, rope.norm_eps);
      rotate(q, rope, batch.positions[t]);
      q_out.insert(q_out.end(), q.begin(), q.end());
    }
    if (batch.slot_mapping[t] < 0) continue;
    for (int h = 0; h < cache.num_kv_heads; ++h) {
      std::vector<double> k = read(qkv, t, static_cast<int64_t>(num_heads + h) * dim, dim);
      normalise(k, rope.k_norm, rope.norm_eps);
      rotate(k, rope, batch.positions[t]);
      const std::vector<double> v =
          read(qkv, t, static_cast<int64_t>(num_heads + cache.num_kv_heads + h) * dim, dim);
      const int64_t row = cache.row(batch.slot_mapping[t], h);
      for (int d = 0; d < dim; ++d) {
        cache.k[row + d] = static_cast<float>(k[d]);
        cache.v[row + d] = static_cast<float>(v[d]);
      }
    }
  }
  return q_out;
}

std::vector<float> paged_attention(const Tensor& qkv, const PlainKvCache& cache,
                                   const AttentionParams& params, const ForwardBatch& batch) {
  const int dim = cache.head_dim;
  std::vector<float> out(static_cast<size_t>(batch.num_tokens) * params.num_heads * dim);
  for (int s = 0; s < batch.num_seqs; ++s) {
    const int end = batch.query_start_loc[s + 1];
    const int32_t* blocks = batch.block_table + static_cast<int64_t>(s) * batch.block_table_stride;
    for (int t = batch.query_start_loc[s]; t < end; ++t) {
      const int position = batch.seq_lens[s] - (end - t);
      for (int h = 0; h < params.num_heads; ++h) {
        const std::vector<double> q = read(qkv, t, static_cast<int64_t>(h) * dim, dim);
        attend(q, cache, h, params, blocks, position,
               &out[(static_cast<int64_t>(t) * params.num_heads + h) * dim]);
      }
    }
  }
  return out;
}

double act_and_mul(double x, double up, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return up * x / (1 + std::exp(-x));
    case Activation::kGelu:
      return up * 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::kGeluTanh: {
      const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
      return up * x / (1 + std::exp(-2 * inner));  // (1 + tanh(inner)) / 2, without cancellation
    }
    case Activation::kClampedSwiglu: {
      const double gate = std::min(x, 7.0);
      return (std::clamp(up, -7.0, 7.0) + 1) * gate / (1 + std::exp(-1.702 * gate));
    }
  }
  return 0;
}

std::vector<float> act_and_mul(const Tensor& gate_up, Activation activation) {
  std::vector<float> out;
  const int64_t width = gate_up.row_size() / 2;
  for (int64_t t = 0; t < gate_up.rows(); ++t) {
    for (int64_t i = 0; i < width; ++i) {
      const double gate = element(gate_up, t * 2 * width + i);
      const double up = element(gate_up, (t * 2 + 1) * width + i);
      out.push_back(static_cast<float>(act_and_mul(gate, up, activation)));
    }
  }
  return out;
}

std::vector<std::pair<int, double>> route(std::span<const double> logits, const Routing& routing) {
  const int n = static_cast<int>(logits.size());
  const bool is_softmax = routing.score == Routing::Score::kSoftmax;
  const double largest = is_softmax ? *std::ranges::max_element(logits) : 0;
  double sum = 0;
  std::vector<double> s(logits.begin(), logits.end());
  for (double& value : s) {
    value = is_softmax ? std::exp(value - largest) : 1 / (1 + std::exp(-value));
    sum += value;
  }
  if (is_softmax) {
    for (double& value : s) value /= sum;
  }
  std::vector<double> p = s;
  for (size_t i = 0; i < routing.correction.size(); ++i) p[i] += routing.correction[i];

  const auto best = [](const std::vector<double>& values) {  // indices, the largest value first
    std::vector<int> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater(), [&](int i) { return values[i]; });
    return order;
  };
  const int group = n / routing.num_groups;
  std::vector<double> of_group;
  for (int g = 0; g < routing.num_groups; ++g) {
    std::vector<double> members(p.begin() + g * group, p.begin() + (g + 1) * group);
    std::ranges::sort(members, std::greater());
    of_group.push_back(members[0] + (group > 1 ? members[1] : 0));
  }
  std::vector<int> open = best(of_group);
  open.resize(routing.num_active_groups);
  for (int i = 0; i < n; ++i) {
    if (std::ranges::count(open, i / group) == 0) p[i] = 0;
  }

  std::vector<std::pair<int, double>> chosen;
  for (const int expert : best(p)) {
    if (std::ssize(chosen) < routing.num_active) chosen.emplace_back(expert, s[expert]);
  }
  double chosen_sum = 0;
  for (const auto& [expert, weight] : chosen) chosen_sum += weight;
  for (auto& [expert, weight] : chosen) {
    weight *= routing.scale / (routing.renormalise ? chosen_sum : 1);
  }
  return chosen;
}

std::vector<float> experts(const Tensor& x, const Experts& experts) {
  std::vector<float> out;
  for (int64_t t = 0; t < x.rows(); ++t) {
    const std::vector<double> row = read(x, t, 0, x.row_size());
    std::vector<double> sum(row.size(), 0.0);
    const auto add = [&](const Dense& expert, double weight) {
      std::vector<double> gate_up = multiply(expert.gate_up, row), inner;
      const size_t width = gate_up.size() / 2;
      for (size_t i = 0; i < width; ++i) {
        inner.push_back(act_and_mul(gate_up[i], gate_up[width + i], expert.activation));
      }
      const std::vector<double> down = multiply(expert.down, inner);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += weight * down[i];
    };
    for (const auto& [i, weight] : route(multiply(experts.router, row), experts.routing)) {
      const int of_rank = i - experts.first;
      if (of_rank >= 0 && of_rank < std::ssize(experts.experts)) {
        add(experts.experts[of_rank], weight);
      }
    }
    if (experts.shared) {
      const bool has_gate = !experts.shared_gate.pieces.empty();
      add(*experts.shared,
          has_gate ? 1 / (1 + std::exp(-multiply(experts.shared_gate, row)[0])) : 1);
    }
    out.insert(out.end(), sum.begin(), sum.end());
  }
  return out;
}

std::vector<float> gather_rows(const Tensor& x, std::span<const int32_t> rows) {
  std::vector<float> out;
  for (int32_t row : rows) {
    for (int64_t i = 0; i < x.row_size(); ++i) out.push_back(element(x, row * x.row_size() + i));
  }
  return out;
}

}  // namespace nanovllm::reference
