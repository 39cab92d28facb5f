// qk_norm_rope_store and paged_attention on every backend: against the scalar reference, and the
// promise that a row's bits depend on its own sequence alone.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "backend/ops_test_support.h"

namespace nanovllm::test {
namespace {

struct Shape {
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 64;
  int block_size = 32;
  int rotary_dim = 0;  // 0 = about three quarters of head_dim
  int qkv_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};

struct Variant {
  float scale = 0;  // 0 = 1 / sqrt(head_dim)
  int window = 0;
  float soft_cap = 0;
  bool norm_and_rope = false;  // else queries and keys are used as they are
  bool one_pass = false;       // store_and_attend
  int num_padding = 0;         // rows of sequences without tokens behind a step of decodes
};

// New tokens of a sequence in a step.
struct Chunk {
  int seq;
  int num_new;
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
      for (int t = 0; t < lengths_[s]; ++t)
        for (int i = 0; i < shape.num_heads * shape.head_dim; ++i)
          values[static_cast<size_t>(t) * shape.qkv_width() + i] *= q_range;
      qkv_.emplace_back(values, act,
                        std::initializer_list<int64_t>{lengths_[s], shape.qkv_width()});
    }
    Random random(99);
    q_norm_ = random.floats(shape.head_dim, 0.5f, 1.5f);
    k_norm_ = random.floats(shape.head_dim, 0.5f, 1.5f);
    const int longest = *std::max_element(lengths_.begin(), lengths_.end());
    rotary_dim_ = shape.rotary_dim > 0   ? shape.rotary_dim
                  : shape.head_dim >= 32 ? shape.head_dim / 4 * 3 / 2 * 2
                                         : shape.head_dim;
    for (int p = 0; p < longest; ++p) {
      for (int half = 0; half < 2; ++half)
        for (int i = 0; i < rotary_dim_ / 2; ++i) {
          const double angle = p * std::pow(10000.0, -2.0 * i / rotary_dim_);
          cos_sin_.push_back(static_cast<float>(half == 0 ? std::cos(angle) : std::sin(angle)));
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
    for (const int length : lengths_)
      outputs.emplace_back(act_, std::initializer_list<int64_t>{length, out_width()});
    std::vector<int> computed(lengths_.size(), 0);
    for (const Step& step : steps) {
      const HostTensor out = run_step(backend, cache, step, computed, variant);
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
      for (int t = 0; t < lengths_[s]; ++t)
        for (int i = 0; i < out_width(); ++i)
          put(turned, int64_t{t} * shape_.qkv_width() + i, q[int64_t{t} * out_width() + i]);
      outputs.push_back(reference::paged_attention(turned.view, cache, params(variant), batch));
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
                      const std::vector<int>& computed, const Variant& variant) const {
    std::vector<int32_t> positions, slots, query_start_loc = {0}, seq_lens, tables;
    ForwardBatch batch;
    std::vector<char> qkv_bytes;
    for (const Chunk& chunk : step) {
      const std::vector<int32_t>& table = cache.tables[chunk.seq];
      for (int i = 0; i < chunk.num_new; ++i) {
        const int position = computed[chunk.seq] + i;
        positions.push_back(position);
        slots.push_back(table[position / shape_.block_size] * shape_.block_size +
                        position % shape_.block_size);
        const auto row = qkv_[chunk.seq].row(position);
        qkv_bytes.insert(qkv_bytes.end(), row.begin(), row.end());
      }
      query_start_loc.push_back(static_cast<int32_t>(positions.size()));
      seq_lens.push_back(computed[chunk.seq] + chunk.num_new);
      tables.insert(tables.end(), table.begin(), table.end());
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
    const auto cos_sin = upload(backend, cos_sin_);
    const RopeParams rope =
        rope_params(variant, static_cast<float*>(q_norm->data()),
                    static_cast<float*>(k_norm->data()), static_cast<float*>(cos_sin->data()));
    if (variant.one_pass) {
      backend.store_and_attend(out.view, qkv.view, rope, cache.cache, params(variant), batch);
    } else {
      backend.qk_norm_rope_store(qkv.view, shape_.num_heads, rope, cache.cache, batch);
      backend.paged_attention(out.view, qkv.view, cache.cache, params(variant), batch);
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
  AttentionParams params(const Variant& variant) const {
    const float scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim));
    return {shape_.num_heads, variant.scale == 0 ? scale : variant.scale, variant.window,
            variant.soft_cap};
  }
  void put(HostTensor& t, int64_t i, float value) const {
    if (act_ == DType::kBFloat16) {
      t.view.bf16()[i] = to_bfloat16(value);
    } else {
      t.view.f32()[i] = value;
    }
  }
  void round_to_act(std::vector<float>& values) const {
    for (float& value : values)
      if (act_ == DType::kBFloat16) value = to_float(to_bfloat16(value));
  }

  Shape shape_;
  DType act_;
  std::vector<int> lengths_;
  std::vector<HostTensor> qkv_;  // [length, qkv_width] each
  std::vector<float> q_norm_, k_norm_, cos_sin_;
  int rotary_dim_ = 0;
};

// Every sequence whole, in one step.
std::vector<Step> whole(const std::vector<int>& lengths) {
  Step step;
  for (size_t s = 0; s < lengths.size(); ++s) step.push_back({static_cast<int>(s), lengths[s]});
  return {step};
}

// Every sequence in chunks of `size`, all sequences side by side.
std::vector<Step> chunked(const std::vector<int>& lengths, int size) {
  std::vector<Step> steps;
  for (int begin = 0; begin < *std::max_element(lengths.begin(), lengths.end()); begin += size) {
    Step step;
    for (size_t s = 0; s < lengths.size(); ++s)
      if (begin < lengths[s])
        step.push_back({static_cast<int>(s), std::min(size, lengths[s] - begin)});
    steps.push_back(step);
  }
  return steps;
}

// All tokens of a sequence but the last, then all of the last ones together.
std::vector<Step> prefilled_then_decoded(const std::vector<int>& lengths) {
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
std::vector<Step> ragged(const std::vector<int>& lengths, int largest, Random& random) {
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

void expect_same(const std::vector<HostTensor>& a, const std::vector<HostTensor>& b,
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

class Attention : public OpsTest {
 protected:
  // Weights are rounded to bfloat16, each by half a unit in the last place at most; values are in
  // -1 .. 1, so the result is off by that much at most, and rounded itself. With rotated queries a
  // query or key may be rounded the other way.
  void expect_reference(const Sequences& sequences, const std::vector<HostTensor>& actual,
                        const Variant& variant, double float_error = 2e-5) const {
    const std::vector<std::vector<float>> expected = sequences.expected(variant);
    const bool bfloat16 = act() == DType::kBFloat16;
    const double absolute = bfloat16 ? (variant.norm_and_rope ? 0x1p-7 : 0x1.1p-8) : float_error;
    for (size_t s = 0; s < actual.size(); ++s)
      expect_close(actual[s], expected[s], rounding(act()), absolute);
  }
};

#define SKIP_UNLESS_DETERMINISTIC()     \
  if (!backend_case().is_deterministic) \
  GTEST_SKIP() << backend_case().name << " does not promise it"

INSTANTIATE_TEST_SUITE_P(Backends, Attention, every_backend_and_dtype(), name_of);

TEST_P(Attention, MatchesReferenceForEveryHeadDim) {
  const auto backend = make();
  Random random(1);
  for (const int dim : {8, 16, 24, 40, 64, 72, 80, 96, 112, 128, 256}) {
    const Sequences sequences({4, 2, dim, 16}, act(), {1, random.between(2, 40), 70}, 10);
    expect_reference(sequences, sequences.run(*backend, whole(sequences.lengths()), {}), {});
  }
}

TEST_P(Attention, MatchesReferenceForEveryGroupSize) {
  const auto backend = make();
  Random random(2);
  for (const auto& [heads, kv_heads] : {std::pair{1, 1},
                                        {3, 3},
                                        {4, 2},
                                        {6, 2},
                                        {8, 2},
                                        {5, 1},
                                        {6, 1},
                                        {14, 2},
                                        {8, 1},
                                        {12, 1},
                                        {51, 1}}) {
    for (const int dim : {32, 64}) {
      const Sequences sequences({heads, kv_heads, dim, 32}, act(), {random.between(1, 90), 65}, 20);
      expect_reference(sequences,
                       sequences.run(*backend, ragged(sequences.lengths(), 30, random), {}), {});
    }
  }
}

// Few sequences, whose contexts a device may cut into many pieces.
TEST_P(Attention, DecodesMatchReferenceForEveryHeadDim) {
  const auto backend = make();
  for (const int dim : {64, 80, 96, 128, 256}) {
    for (const int heads : {1, 3, 10}) {
      for (const int window : {0, 200}) {
        Variant variant;
        variant.window = window;
        variant.num_padding = 3;
        const Sequences sequences({heads, 1, dim, 48}, act(), {1, 311, 48, 200}, 130);
        expect_reference(
            sequences,
            sequences.run(*backend, prefilled_then_decoded(sequences.lengths()), variant), variant);
      }
    }
  }
}

// The keys and values of the first decodes are read by the next ones.
TEST_P(Attention, StoringAndAttendingInOnePassMatchesReference) {
  const auto backend = make();
  for (const int dim : {64, 128}) {
    for (const int heads : {4, 6, 20}) {
      for (const int window : {0, 30}) {
        Variant variant;
        variant.norm_and_rope = variant.one_pass = true;
        variant.window = window;
        variant.num_padding = 2;
        const Sequences sequences({heads, 2, dim, 32, dim}, act(), {1, 300, 32, 33, 97}, 150);
        std::vector<Step> steps = {{}};
        for (int s = 1; s < 5; ++s) steps[0].push_back({s, sequences.lengths()[s] - 20});
        for (int i = 0; i < 20; ++i) {
          steps.push_back({{1, 1}, {2, 1}, {3, 1}, {4, 1}});
          if (i == 7) steps.back().insert(steps.back().begin(), {0, 1});
        }
        expect_reference(sequences, sequences.run(*backend, steps, variant), variant);
      }
    }
  }
}

// Many sequences, whose contexts a device may deal out in pieces of equal size.
TEST_P(Attention, DecodesMatchReferenceInLargeRaggedBatches) {
  const auto backend = make();
  Random random(10);
  for (const int dim : {64, 128}) {
    std::vector<int> lengths = {600};
    for (int s = 0; s < 70; ++s) lengths.push_back(random.between(1, 100));
    const Sequences sequences({6, 3, dim, 16}, act(), lengths, 140);
    for (const float soft_cap : {0.f, 5.f}) {
      Variant variant;
      variant.soft_cap = soft_cap;
      variant.num_padding = 9;
      expect_reference(sequences, sequences.run(*backend, prefilled_then_decoded(lengths), variant),
                       variant);
    }
  }
}

TEST_P(Attention, MatchesReferenceInRaggedBatches) {
  const auto backend = make();
  Random random(3);
  for (const int block_size : {16, 48, 256}) {
    std::vector<int> lengths;
    for (int s = 0; s < 7; ++s) lengths.push_back(random.between(1, 150));
    const Sequences sequences({4, 2, 64, block_size}, act(), lengths, 30);
    for (const bool norm_and_rope : {false, true}) {
      Variant variant;
      variant.norm_and_rope = norm_and_rope;
      expect_reference(sequences, sequences.run(*backend, ragged(lengths, 60, random), variant),
                       variant);
    }
  }
}

TEST_P(Attention, MatchesReferenceOverLongContexts) {
  Random random(4);
  const Sequences sequences({2, 1, 32, 64}, act(), {1100}, 40);
  const auto backend = make();
  expect_reference(sequences, sequences.run(*backend, chunked({1100}, 300), {}), {});
}

TEST_P(Attention, MatchesReferenceWithSlidingWindow) {
  const auto backend = make();
  Random random(5);
  for (const int window : {1, 2, 15, 16, 17, 64, 100, 1000}) {
    Variant variant;
    variant.window = window;
    const Sequences sequences({4, 2, 32, 32}, act(), {random.between(1, 40), 170}, 50);
    expect_reference(sequences,
                     sequences.run(*backend, ragged(sequences.lengths(), 70, random), variant),
                     variant);
  }
}

TEST_P(Attention, MatchesReferenceWithSoftCap) {
  const auto backend = make();
  for (const float cap : {1.0f, 5.0f, 50.0f}) {
    Variant variant;
    variant.soft_cap = cap;
    const Sequences sequences({4, 2, 32, 32}, act(), {20, 100}, 60, 20);
    expect_reference(sequences, sequences.run(*backend, whole(sequences.lengths()), variant),
                     variant);
  }
}

TEST_P(Attention, MatchesReferenceWithSharpAndFlatScores) {
  const auto backend = make();
  for (const float scale : {1e-4f, 1.0f, 8.0f}) {
    Variant variant;
    variant.scale = scale;
    const Sequences sequences({2, 1, 64, 32}, act(), {130}, 70, 4);
    // Scores of hundreds carry rounding errors of 1e-5 into the exponent.
    expect_reference(sequences, sequences.run(*backend, whole({130}), variant), variant,
                     scale > 1 ? 2e-4 : 2e-5);
  }
}

// A context of more than two spans, so that partial results are merged; other sequences make
// batches ragged.
TEST_P(Attention, ChunksOfAnySizeGiveTheSameBits) {
  SKIP_UNLESS_DETERMINISTIC();
  const auto backend = make();
  Random random(6);
  for (const int dim : {40, 128}) {
    const Sequences sequences({4, 2, dim, 64}, act(), {1030, 37, 530}, 80);
    const std::vector<int>& lengths = sequences.lengths();
    const auto expected = sequences.run(*backend, whole(lengths), {});
    for (const int size : {7, 16, 100, 1000})
      expect_same(expected, sequences.run(*backend, chunked(lengths, size), {}),
                  fmt::format("chunks of {}", size));
    expect_same(expected, sequences.run(*backend, ragged(lengths, 200, random), {}), "ragged");
  }
}

TEST_P(Attention, DecodingTokenByTokenGivesTheBitsOfPrefill) {
  SKIP_UNLESS_DETERMINISTIC();
  const auto backend = make();
  const Sequences sequences({6, 2, 64, 32}, act(), {560, 100}, 90);
  for (const int window : {0, 50}) {
    Variant variant;
    variant.window = window;
    variant.norm_and_rope = true;
    expect_same(sequences.run(*backend, whole(sequences.lengths()), variant),
                sequences.run(*backend, chunked(sequences.lengths(), 1), variant), "decode");
  }
}

TEST_P(Attention, AnyNumberOfThreadsGivesTheSameBits) {
  Random random(7);
  const Sequences sequences({4, 2, 64, 64}, act(), {1100, 3, 200}, 100);
  const std::vector<Step> steps = ragged(sequences.lengths(), 300, random);
  const auto expected = sequences.run(*make(1), steps, {});
  for (const int threads : {2, 3, 5})
    expect_same(expected, sequences.run(*make(threads), steps, {}),
                fmt::format("{} threads", threads));
}

TEST_P(Attention, BatchMatesChangeNothing) {
  SKIP_UNLESS_DETERMINISTIC();
  const auto backend = make();
  const Sequences alone({8, 2, 64, 32}, act(), {200}, 110);
  const Sequences together({8, 2, 64, 32}, act(), {200, 90, 1, 300, 5}, 110);
  std::vector<HostTensor> mates = together.run(*backend, whole(together.lengths()), {});
  mates.resize(1);
  expect_same(alone.run(*backend, whole({200}), {}), mates, "with mates");
}

TEST_P(Attention, BlocksMayLieAnywhere) {
  const auto backend = make();
  const Sequences sequences({4, 2, 64, 16}, act(), {150, 80, 33}, 120);
  const auto expected = sequences.run(*backend, whole(sequences.lengths()), {}, 1);
  for (const uint32_t order : {2u, 3u})
    expect_same(expected, sequences.run(*backend, chunked(sequences.lengths(), 20), {}, order),
                "shuffled blocks");
}

// The cache starts out full of NaN in every test of this file, and none may be seen; padding
// tokens must not store anything either.
TEST_P(Attention, PaddingTokensStoreNothing) {
  const auto backend = make();
  const KvCacheSpec spec{2, 64, 16, act()};
  const size_t bytes = backend->kv_block_bytes(spec);
  Random random(8);
  const HostTensor qkv(random.floats(3 * 8 * 64, -1, 1), act(), {3, 8 * 64});
  const auto memory = upload(*backend, std::vector<char>(2 * bytes, '\x11'));
  const KvCache cache{spec, memory->data(), 2};
  const auto positions = upload(*backend, std::vector<int32_t>{0, 0, 0});
  const auto slots = upload(*backend, std::vector<int32_t>{-1, -1, -1});
  const auto table = upload(*backend, std::vector<float>(2, 0.0f));
  ForwardBatch batch;
  batch.num_tokens = 3;
  batch.positions = static_cast<int32_t*>(positions->data());
  batch.slot_mapping = static_cast<int32_t*>(slots->data());
  RopeParams rope;
  rope.cos_sin = Tensor(table->data(), DType::kFloat32, {1, 2});
  rope.rotary_dim = 2;
  const DeviceTensor device = upload(*backend, qkv.view);
  backend->qk_norm_rope_store(device.view, 4, rope, cache, batch);
  std::vector<char> after(2 * bytes);
  backend->synchronize();
  backend->download(after.data(), memory->data(), after.size());
  EXPECT_EQ(after, std::vector<char>(2 * bytes, '\x11'));
}

TEST_P(Attention, QueriesAreNormalisedAndTurned) {
  const auto backend = make();
  Random random(9);
  for (const auto& [dim, rotary] : {std::pair{8, 8}, {40, 40}, {64, 32}, {80, 80}, {128, 128}}) {
    const int heads = 3, tokens = 20, width = (heads + 2) * dim;
    const HostTensor qkv(random.floats(tokens * width, -3, 3), act(), {tokens, width});
    const std::vector<float> norm = random.floats(dim, 0.5f, 2);
    const std::vector<float> table = random.floats(64 * rotary, -1, 1);
    std::vector<int32_t> positions, slots;
    for (int t = 0; t < tokens; ++t) {
      positions.push_back(random.below(64));
      slots.push_back(t % 5 == 4 ? -1 : t);
    }
    RopeParams rope;
    rope.norm_eps = 1e-6f;
    rope.rotary_dim = rotary;
    rope.q_norm = norm.data();
    rope.cos_sin = Tensor(const_cast<float*>(table.data()), DType::kFloat32, {64, rotary});
    ForwardBatch batch;
    batch.num_tokens = tokens;
    batch.positions = positions.data();
    batch.slot_mapping = slots.data();
    reference::PlainKvCache plain(1, dim, 32, 1);
    const std::vector<float> expected =
        reference::qk_norm_rope_store(qkv.view, heads, rope, plain, batch);

    const KvCacheSpec spec{1, dim, 32, act()};
    const auto memory = backend->allocate(backend->kv_block_bytes(spec));
    const auto device_positions = upload(*backend, positions),
               device_slots = upload(*backend, slots);
    const auto device_norm = upload(*backend, norm), device_table = upload(*backend, table);
    batch.positions = static_cast<int32_t*>(device_positions->data());
    batch.slot_mapping = static_cast<int32_t*>(device_slots->data());
    rope.q_norm = static_cast<float*>(device_norm->data());
    rope.cos_sin.data = device_table->data();
    const DeviceTensor device = upload(*backend, qkv.view);
    backend->qk_norm_rope_store(device.view, heads, rope, {spec, memory->data(), 1}, batch);
    const HostTensor after = download(*backend, device.view);
    HostTensor q(act(), {tokens, heads * dim});
    for (int t = 0; t < tokens; ++t) {
      const auto row = after.row(t);
      std::memcpy(q.bytes.data() + q.row(0).size() * t, row.data(), q.row(0).size());
      // Keys and values go to the cache and stay as they were here.
      expect_same_bits(row.subspan(q.row(0).size()), qkv.row(t).subspan(q.row(0).size()));
    }
    expect_close(q, expected, rounding(act()), 2e-6);
  }
}

}  // namespace
}  // namespace nanovllm::test
