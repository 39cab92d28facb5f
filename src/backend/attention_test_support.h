// Sequences whose attention is computed in steps of any shape, and the scalar reference for it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "backend/ops_test_support.h"

namespace nanovllm::test {

struct Shape {
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 64;
  int block_size = 32;
  int rotary_dim = 0;  // 0 = about three quarters of head_dim
  bool has_gate = false;
  int qkv_width() const {
    return (num_heads + 2 * num_kv_heads + (has_gate ? num_heads : 0)) * head_dim;
  }
};

struct Variant {
  float scale = 0;  // 0 = 1 / sqrt(head_dim)
  int window = 0;
  float soft_cap = 0;
  bool has_sinks = false;
  bool norm_and_rope = false;  // else queries and keys are used as they are
  bool one_pass = false;       // store_and_attend
  int num_padding = 0;         // rows of sequences without tokens behind a step of decodes
  bool repeats = false;        // steps run twice, and find their tokens stored the second time
  int num_launches = 1;        // of the attention alone, with nothing between them
};

// New tokens of a sequence in a step.
struct Chunk {
  int seq;
  int num_new;
  bool operator==(const Chunk&) const = default;
};
using Step = std::vector<Chunk>;

// Sequences with random queries, keys and values, and what attention makes of them.
class Sequences {
 public:
  Sequences(Shape shape, DType act, std::vector<int> lengths, uint32_t seed, float q_range = 2)
      : shape_(shape), act_(act), lengths_(std::move(lengths)) {
    for (size_t s = 0; s < lengths_.size(); ++s) {
      Random random(seed + static_cast<uint32_t>(s));  // a sequence's numbers are its own
      std::vector<float> values = random.floats(int64_t{lengths_[s]} * shape.qkv_width(), -1, 1);
      for (int t = 0; t < lengths_[s]; ++t) {
        for (int i = 0; i < shape.num_heads * shape.head_dim; ++i) {
          values[static_cast<size_t>(t) * shape.qkv_width() + i] *= q_range;
        }
      }
      qkv_.emplace_back(values, act,
                        std::initializer_list<int64_t>{lengths_[s], shape.qkv_width()});
    }
    Random random(99);
    q_norm_ = random.floats(shape.head_dim, 0.5f, 1.5f);
    k_norm_ = random.floats(shape.head_dim, 0.5f, 1.5f);
    sinks_ = random.floats(shape.num_heads, -2, 9);
    const int longest = *std::max_element(lengths_.begin(), lengths_.end());
    rotary_dim_ = shape.rotary_dim > 0   ? shape.rotary_dim
                  : shape.head_dim >= 32 ? shape.head_dim / 4 * 3 / 2 * 2
                                         : shape.head_dim;
    for (int p = 0; p < longest; ++p) {
      for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < rotary_dim_ / 2; ++i) {
          const double angle = p * std::pow(10000.0, -2.0 * i / rotary_dim_);
          cos_sin_.push_back(static_cast<float>(half == 0 ? std::cos(angle) : std::sin(angle)));
        }
      }
    }
  }

  const std::vector<int>& lengths() const { return lengths_; }

  // Runs the steps on a fresh cache full of NaN; returns the outputs of each sequence, all of its
  // tokens. `order` permutes the blocks that sequences get.
  std::vector<HostTensor> run(Backend& backend, const std::vector<Step>& steps,
                              const Variant& variant, uint32_t order = 1) const {
    Cache cache(*this, backend, order);
    std::vector<HostTensor> outputs;
    for (const int length : lengths_) {
      outputs.emplace_back(act_, std::initializer_list<int64_t>{length, out_width()});
    }
    std::vector<int> computed(lengths_.size(), 0);
    for (const Step& step : steps) {
      HostTensor out = run_step(backend, cache, step, computed, variant, false);
      if (variant.repeats) out = run_step(backend, cache, step, computed, variant, true);
      int row = 0;
      for (const Chunk& chunk : step) {
        for (int i = 0; i < chunk.num_new; ++i, ++row) {
          const auto from = out.row(row);
          std::memcpy(outputs[chunk.seq].bytes.data() +
                          static_cast<size_t>(computed[chunk.seq] + i) * from.size(),
                      from.data(), from.size());
        }
        computed[chunk.seq] += chunk.num_new;
      }
    }
    return outputs;
  }

  // The same by the reference, each sequence at once.
  std::vector<std::vector<float>> expected(const Variant& variant) const {
    std::vector<std::vector<float>> outputs;
    for (size_t s = 0; s < lengths_.size(); ++s) {
      const int blocks = (lengths_[s] + shape_.block_size - 1) / shape_.block_size;
      std::vector<int32_t> table(blocks);
      std::iota(table.begin(), table.end(), 0);
      reference::PlainKvCache cache(shape_.num_kv_heads, shape_.head_dim, shape_.block_size,
                                    blocks);
      std::vector<int32_t> numbers(lengths_[s]);
      std::iota(numbers.begin(), numbers.end(), 0);
      const int32_t query_start_loc[] = {0, lengths_[s]};
      const int32_t seq_len = lengths_[s];
      ForwardBatch batch;
      batch.num_tokens = lengths_[s];
      batch.num_seqs = 1;
      batch.positions = numbers.data();
      batch.slot_mapping = numbers.data();
      batch.query_start_loc = query_start_loc;
      batch.seq_lens = &seq_len;
      batch.block_table = table.data();
      batch.block_table_stride = blocks;
      const RopeParams rope = rope_params(variant, q_norm_.data(), k_norm_.data(), cos_sin_.data());
      const std::vector<float> q =
          reference::qk_norm_rope_store(qkv_[s].view, shape_.num_heads, rope, cache, batch);
      round_to_act(cache.k);
      HostTensor turned(act_, {lengths_[s], shape_.qkv_width()});
      for (int t = 0; t < lengths_[s]; ++t) {
        for (int i = 0; i < out_width(); ++i) {
          put(turned, int64_t{t} * shape_.qkv_width() + i, q[int64_t{t} * out_width() + i]);
        }
      }
      outputs.push_back(
          reference::paged_attention(turned.view, cache, params(variant, sinks_.data()), batch));
      if (shape_.has_gate) multiply_by_gates(outputs.back(), qkv_[s]);
    }
    return outputs;
  }

 private:
  int out_width() const { return shape_.num_heads * shape_.head_dim; }

  // A device's cache and a block table for each sequence. A batch needs one spare block in front,
  // so that slot 0 is nobody's.
  struct Cache {
    std::unique_ptr<Buffer> memory;
    KvCache cache;
    std::vector<std::vector<int32_t>> tables;
    int stride = 1;

    Cache(const Sequences& s, Backend& backend, uint32_t order) {
      int total = 1;
      for (const int length : s.lengths_) {
        const int blocks = (length + s.shape_.block_size - 1) / s.shape_.block_size;
        stride = std::max(stride, blocks);
        total += blocks;
      }
      std::vector<int32_t> ids(total - 1);
      std::iota(ids.begin(), ids.end(), 1);
      Random(order).shuffle(ids);
      for (const int length : s.lengths_) {
        const int blocks = (length + s.shape_.block_size - 1) / s.shape_.block_size;
        tables.emplace_back(ids.end() - blocks, ids.end());
        ids.resize(ids.size() - blocks);
      }
      cache.spec = {s.shape_.num_kv_heads, s.shape_.head_dim, s.shape_.block_size, s.act_};
      const std::vector<char> garbage(total * backend.kv_block_bytes(cache.spec), '\xff');  // NaN
      memory = upload(backend, garbage);
      cache.data = memory->data();
      cache.num_blocks = total;
    }
  };

  HostTensor run_step(Backend& backend, Cache& cache, const Step& step,
                      const std::vector<int>& computed, const Variant& variant,
                      bool are_stored) const {
    std::vector<int32_t> positions, slots, query_start_loc = {0}, seq_lens, tables;
    ForwardBatch batch;
    std::vector<char> qkv_bytes;
    for (const Chunk& chunk : step) {
      const std::vector<int32_t>& table = cache.tables[chunk.seq];
      for (int i = 0; i < chunk.num_new; ++i) {
        const int position = computed[chunk.seq] + i;
        positions.push_back(position);
        const int slot =
            table[position / shape_.block_size] * shape_.block_size + position % shape_.block_size;
        slots.push_back(are_stored ? -1 : slot);
        const auto row = qkv_[chunk.seq].row(position);
        qkv_bytes.insert(qkv_bytes.end(), row.begin(), row.end());
      }
      query_start_loc.push_back(static_cast<int32_t>(positions.size()));
      seq_lens.push_back(computed[chunk.seq] + chunk.num_new);
      tables.insert(tables.end(), table.begin(), table.end());
      const int unseen = std::max(0, computed[chunk.seq] - variant.window + 1);
      if (variant.window > 0) {  // given back: now the block that is full of NaN
        std::fill_n(tables.end() - std::ssize(table), unseen / shape_.block_size, 0);
      }
      tables.resize(seq_lens.size() * cache.stride, -1);
      batch.num_decodes += chunk.num_new == 1 ? 1 : 0;
      batch.max_query_len = std::max(batch.max_query_len, chunk.num_new);
      batch.max_seq_len = std::max(batch.max_seq_len, seq_lens.back());
    }
    if (batch.max_query_len == 1) {
      batch.num_decodes += variant.num_padding;
      for (int i = 0; i < variant.num_padding; ++i) {
        positions.push_back(0);
        slots.push_back(-1);
        qkv_bytes.resize(qkv_bytes.size() + qkv_[0].row(0).size(), '\0');
        query_start_loc.push_back(static_cast<int32_t>(positions.size()));
        seq_lens.push_back(0);
        tables.resize(seq_lens.size() * cache.stride, -1);
      }
    }
    const auto tokens = static_cast<int64_t>(positions.size());
    batch.num_tokens = static_cast<int>(tokens);
    batch.num_seqs = static_cast<int>(seq_lens.size());
    batch.block_table_stride = cache.stride;
    std::vector<std::unique_ptr<Buffer>> memory;
    const auto device = [&](const std::vector<int32_t>& values) {
      memory.push_back(upload(backend, values));
      return static_cast<const int32_t*>(memory.back()->data());
    };
    batch.positions = device(positions);
    batch.slot_mapping = device(slots);
    batch.query_start_loc = device(query_start_loc);
    batch.seq_lens = device(seq_lens);
    batch.block_table = device(tables);
    const DeviceTensor qkv =
        upload(backend, Tensor(qkv_bytes.data(), act_, {tokens, shape_.qkv_width()}));
    const DeviceTensor out = device_tensor(backend, act_, {tokens, out_width()});
    const auto q_norm = upload(backend, q_norm_), k_norm = upload(backend, k_norm_);
    const auto cos_sin = upload(backend, cos_sin_), sinks = upload(backend, sinks_);
    const AttentionParams attention = params(variant, static_cast<float*>(sinks->data()));
    const RopeParams rope =
        rope_params(variant, static_cast<float*>(q_norm->data()),
                    static_cast<float*>(k_norm->data()), static_cast<float*>(cos_sin->data()));
    if (variant.one_pass) {
      backend.store_and_attend(out.view, qkv.view, rope, cache.cache, attention, batch);
    } else {
      backend.qk_norm_rope_store(qkv.view, shape_.num_heads, rope, cache.cache, batch);
      for (int i = 0; i < variant.num_launches; ++i) {
        backend.paged_attention(out.view, qkv.view, cache.cache, attention, batch);
      }
    }
    return download(backend, out.view);
  }

  RopeParams rope_params(const Variant& variant, const float* q_norm, const float* k_norm,
                         const float* cos_sin) const {
    RopeParams rope;
    rope.rotary_dim = variant.norm_and_rope ? rotary_dim_ : 0;
    rope.cos_sin = Tensor(const_cast<float*>(cos_sin), DType::kFloat32,
                          {static_cast<int64_t>(cos_sin_.size()) / rotary_dim_, rotary_dim_});
    rope.norm_eps = 1e-6f;
    if (variant.norm_and_rope) {
      rope.q_norm = q_norm;
      rope.k_norm = k_norm;
    }
    return rope;
  }
  AttentionParams params(const Variant& variant, const float* sinks) const {
    const float scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim));
    return {shape_.num_heads, variant.scale == 0 ? scale : variant.scale, variant.window,
            variant.soft_cap, variant.has_sinks ? sinks : nullptr,        shape_.has_gate};
  }
  // Which stand behind queries, keys and values.
  void multiply_by_gates(std::vector<float>& out, const HostTensor& qkv) const {
    const int width = out_width(), first = shape_.qkv_width() - width;
    for (size_t i = 0; i < out.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / width, column = static_cast<int64_t>(i) % width;
      out[i] /= 1 + std::exp(-qkv.at(row * shape_.qkv_width() + first + column));
    }
  }
  void put(HostTensor& t, int64_t i, float value) const {
    if (act_ == DType::kBFloat16) {
      t.view.bf16()[i] = to_bfloat16(value);
    } else {
      t.view.f32()[i] = value;
    }
  }
  void round_to_act(std::vector<float>& values) const {
    for (float& value : values) {
      if (act_ == DType::kBFloat16) value = to_float(to_bfloat16(value));
    }
  }

  Shape shape_;
  DType act_;
  std::vector<int> lengths_;
  std::vector<HostTensor> qkv_;  // [length, qkv_width] each
  std::vector<float> q_norm_, k_norm_, cos_sin_, sinks_;
  int rotary_dim_ = 0;
};

// Every sequence whole, in one step.
inline std::vector<Step> whole(const std::vector<int>& lengths) {
  Step step;
  for (size_t s = 0; s < lengths.size(); ++s) step.push_back({static_cast<int>(s), lengths[s]});
  return {step};
}

// Every sequence in chunks of `size`, all sequences side by side.
inline std::vector<Step> chunked(const std::vector<int>& lengths, int size) {
  std::vector<Step> steps;
  for (int begin = 0; begin < *std::max_element(lengths.begin(), lengths.end()); begin += size) {
    Step step;
    for (size_t s = 0; s < lengths.size(); ++s) {
      if (begin < lengths[s]) {
        step.push_back({static_cast<int>(s), std::min(size, lengths[s] - begin)});
      }
    }
    steps.push_back(step);
  }
  return steps;
}

// All tokens of a sequence but the last, then all of the last ones together.
inline std::vector<Step> prefilled_then_decoded(const std::vector<int>& lengths) {
  std::vector<Step> steps(2);
  for (size_t s = 0; s < lengths.size(); ++s) {
    if (lengths[s] > 1) steps[0].push_back({static_cast<int>(s), lengths[s] - 1});
    steps[1].push_back({static_cast<int>(s), 1});
  }
  std::stable_partition(steps[0].begin(), steps[0].end(),
                        [](const Chunk& c) { return c.num_new == 1; });
  return steps;
}

// Chunks of random sizes of random sequences.
inline std::vector<Step> ragged(const std::vector<int>& lengths, int largest, Random& random) {
  std::vector<int> computed(lengths.size(), 0);
  std::vector<Step> steps;
  while (computed != lengths) {
    Step step;
    for (size_t s = 0; s < lengths.size(); ++s) {
      const int left = lengths[s] - computed[s];
      if (left == 0 || random.below(3) == 0) continue;
      step.push_back({static_cast<int>(s), std::min(left, random.between(1, largest))});
      computed[s] += step.back().num_new;
    }
    // Decodes come first, as in every batch.
    std::stable_partition(step.begin(), step.end(), [](const Chunk& c) { return c.num_new == 1; });
    if (!step.empty()) steps.push_back(step);
  }
  return steps;
}

inline void expect_same(const std::vector<HostTensor>& a, const std::vector<HostTensor>& b,
                        const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t s = 0; s < a.size(); ++s) {
    for (int64_t t = 0; t < a[s].view.rows(); ++t) {
      const auto x = a[s].row(t), y = b[s].row(t);
      ASSERT_EQ(std::memcmp(x.data(), y.data(), x.size()), 0)
          << what << ": sequence " << s << ", token " << t;
    }
  }
}

class AttentionTest : public OpsTest {
 protected:
  // Weights are rounded to bfloat16, each by half a unit in the last place at most; values are in
  // -1 .. 1, so the result is off by that much at most, and rounded itself. With rotated queries a
  // query or key may be rounded the other way.
  void expect_reference(const Sequences& sequences, const std::vector<HostTensor>& actual,
                        const Variant& variant, double float_error = 2e-5) const {
    const std::vector<std::vector<float>> expected = sequences.expected(variant);
    const bool bfloat16 = act() == DType::kBFloat16;
    const double absolute = bfloat16 ? (variant.norm_and_rope ? 0x1p-7 : 0x1.1p-8) : float_error;
    for (size_t s = 0; s < actual.size(); ++s) {
      expect_close(actual[s], expected[s], rounding(act()), absolute);
    }
  }
};

}  // namespace nanovllm::test
