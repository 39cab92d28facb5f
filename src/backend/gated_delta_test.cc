// The gated delta rule of recurrent layers: against the rule row by row in float64, and the promise
// that a row's bits depend on its own sequence alone.
#include <fmt/format.h>

#include <algorithm>

#include "backend/ops_test_support.h"

namespace nanovllm::test {
namespace {

// New rows of each sequence in one step.
using Cut = std::vector<int>;

struct DeltaShape {
  int num_key_heads, num_value_heads, key_dim, value_dim;
  int conv_width = 4;
  bool key_heads_take_turns = false;
  float beta_scale = 1;
  // The largest factor of decay; the states of small ones remember the whole text.
  float strongest = 1;
};

GatedDelta random_core(const DeltaShape& shape, Random& random) {
  GatedDelta core = {.num_key_heads = shape.num_key_heads,
                     .num_value_heads = shape.num_value_heads,
                     .key_dim = shape.key_dim,
                     .value_dim = shape.value_dim,
                     .key_heads_take_turns = shape.key_heads_take_turns,
                     .conv_width = shape.conv_width};
  core.conv_weight = random.floats(core.num_channels() * shape.conv_width, -1, 1);
  for (int h = 0; h < shape.num_value_heads; ++h) {
    core.decay.push_back(-shape.strongest * std::pow(0.1f, static_cast<float>(h % 4)));
  }
  core.dt_bias = random.floats(shape.num_value_heads, -3, 1);
  core.beta_scale = shape.beta_scale;
  core.out_norm = {random.floats(shape.value_dim, 0.5f, 1.5f), 1e-6f};
  return core;
}

// Texts of one layer, whose rows can be computed in any steps.
class DeltaTexts {
 public:
  DeltaTexts(const DeltaShape& shape, DType act, std::vector<int> lengths, uint32_t seed)
      : act_(act), lengths_(std::move(lengths)) {
    Random random(seed);
    core_ = random_core(shape, random);
    for (const int length : lengths_) {
      inputs_.emplace_back(random.floats(length * in_width(), -2, 2), act,
                           std::initializer_list<int64_t>{length, in_width()});
    }
  }

  const std::vector<int>& lengths() const { return lengths_; }
  int64_t in_width() const {
    return core_.num_channels() + int64_t{core_.num_value_heads} * (core_.value_dim + 2);
  }
  int64_t out_width() const { return int64_t{core_.num_value_heads} * core_.value_dim; }

  std::vector<float> expected(int sequence) const {
    return reference::gated_delta(inputs_[sequence].view, core_);
  }

  // The results of each sequence. Slots and logs are any; those of the last sequence that is
  // computed hold garbage at first. Steps end with sequences that are padding.
  std::vector<HostTensor> run(Backend& backend, const std::vector<Cut>& cuts,
                              int num_padding = 0) const {
    const int num_seqs = static_cast<int>(lengths_.size());
    const StateSpec spec = {.num_key_heads = core_.num_key_heads,
                            .num_value_heads = core_.num_value_heads,
                            .key_dim = core_.key_dim,
                            .value_dim = core_.value_dim,
                            .conv_width = core_.conv_width,
                            .dtype = act_};
    const StateBytes bytes = backend.state_bytes(spec);
    const auto garbage = [&](int64_t size) {
      return upload(backend, std::vector<uint8_t>(static_cast<size_t>(size), 0xff));
    };
    const auto slots = garbage(2 * num_seqs * bytes.slot), logs = garbage(num_seqs * bytes.log);
    const StateCache cache = {spec, slots->data(), logs->data()};
    std::vector<HostTensor> outs;
    for (const int length : lengths_) {
      outs.emplace_back(act_, std::initializer_list<int64_t>{length, out_width()});
    }
    std::vector<int> done(num_seqs), read(num_seqs), write(num_seqs), lens(num_seqs);
    for (int s = 0; s < num_seqs; ++s) {
      read[s] = 2 * num_seqs - 1 - s;
      write[s] = s;
    }
    for (const Cut& cut : cuts) {
      step(backend, cache, cut, {done, read, write, lens}, num_padding, outs);
      for (int s = 0; s < num_seqs; ++s) {
        if (cut[s] == 0) continue;
        done[s] += cut[s];
        const int len = (done[s] - 1) / kStateChunk * kStateChunk;
        if (len != std::exchange(lens[s], len)) std::swap(read[s], write[s]);
      }
    }
    EXPECT_EQ(done, lengths_);
    return outs;
  }

 private:
  struct Places {
    const std::vector<int>&done, &read, &write, &lens;
  };

  void step(Backend& backend, const StateCache& cache, const Cut& cut, const Places& places,
            int num_padding, std::vector<HostTensor>& outs) const {
    std::vector<char> rows;
    std::vector<int32_t> starts = {0}, seq_lens, read, write, lens, logs;
    for (size_t s = 0; s < cut.size(); ++s) {
      if (cut[s] == 0) continue;
      for (int r = 0; r < cut[s]; ++r) {
        const auto row = inputs_[s].row(places.done[s] + r);
        rows.insert(rows.end(), row.begin(), row.end());
      }
      starts.push_back(starts.back() + cut[s]);
      seq_lens.push_back(places.done[s] + cut[s]);
      read.push_back(places.read[s]);
      write.push_back(places.write[s]);
      lens.push_back(places.lens[s]);
      logs.push_back(static_cast<int32_t>(s));
    }
    for (int i = 0; i < num_padding; ++i) {
      rows.resize(rows.size() + inputs_[0].row(0).size());
      starts.push_back(starts.back() + 1);
      for (auto* const numbers : {&seq_lens, &lens}) numbers->push_back(0);
      for (auto* const slots : {&read, &write, &logs}) slots->push_back(-1);
    }
    const int num_rows = starts.back();
    const auto in = upload(backend, Tensor(rows.data(), act_, {num_rows, in_width()}));
    const auto out = device_tensor(backend, act_, {num_rows, out_width()});
    std::vector<std::unique_ptr<Buffer>> memory;
    const auto on_device = [&](const auto& values) {
      memory.push_back(upload(backend, values));
      return memory.back()->data();
    };
    const auto ints = [&](const std::vector<int32_t>& values) {
      return static_cast<const int32_t*>(on_device(values));
    };
    const auto floats = [&](const std::vector<float>& values) {
      return static_cast<const float*>(on_device(values));
    };
    int num_decodes = 0;  // at the front, as in the engine's steps
    while (num_decodes < std::ssize(seq_lens) && starts[num_decodes + 1] == num_decodes + 1) {
      ++num_decodes;
    }
    const ForwardBatch batch = {.num_tokens = num_rows,
                                .num_seqs = static_cast<int>(seq_lens.size()),
                                .num_decodes = num_decodes,
                                .max_query_len = std::ranges::max(cut),
                                .max_seq_len = std::ranges::max(seq_lens),
                                .query_start_loc = ints(starts),
                                .seq_lens = ints(seq_lens),
                                .state_slot = ints(read),
                                .state_len = ints(lens),
                                .next_slot = ints(write),
                                .log_slot = ints(logs)};
    const GatedDeltaParams params = {.conv_weight = floats(core_.conv_weight),
                                     .decay = floats(core_.decay),
                                     .dt_bias = floats(core_.dt_bias),
                                     .out_norm = floats(core_.out_norm.weight),
                                     .eps = core_.out_norm.eps,
                                     .beta_scale = core_.beta_scale,
                                     .key_heads_take_turns = core_.key_heads_take_turns};
    backend.gated_delta(out.view, in.view, params, cache, batch);
    const HostTensor result = download(backend, out.view);
    int row = 0;
    for (size_t s = 0; s < cut.size(); ++s) {
      for (int r = 0; r < cut[s]; ++r, ++row) {
        const auto from = result.row(row);
        std::ranges::copy(from, outs[s].bytes.begin() + (places.done[s] + r) * std::ssize(from));
      }
    }
  }

  const DType act_;
  const std::vector<int> lengths_;
  GatedDelta core_;
  std::vector<HostTensor> inputs_;
};

std::vector<Cut> at_once(const std::vector<int>& lengths) { return {lengths}; }

// Steps of up to `size` rows a sequence, or, with `random`, of 1 to `size`, or none.
std::vector<Cut> in_pieces(const std::vector<int>& lengths, int size, Random* random = nullptr) {
  std::vector<int> left = lengths;
  std::vector<Cut> cuts;
  while (std::ranges::any_of(left, [](int n) { return n > 0; })) {
    Cut& cut = cuts.emplace_back();
    for (int& n : left) {
      cut.push_back(std::min(n, random == nullptr ? size : random->below(size + 1)));
      n -= cut.back();
    }
    if (std::ranges::all_of(cut, [](int n) { return n == 0; })) cuts.pop_back();
  }
  return cuts;
}

void expect_same(const std::vector<HostTensor>& a, const std::vector<HostTensor>& b,
                 const std::string& what) {
  SCOPED_TRACE(what);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) expect_same_bits(a[i].bytes, b[i].bytes);
}

class GatedDeltaTest : public OpsTest {};
INSTANTIATE_TEST_SUITE_P(Backends, GatedDeltaTest, every_backend_and_dtype(), name_of);

TEST_P(GatedDeltaTest, IsTheRuleRowByRow) {
  const auto backend = make();
  const DeltaShape shapes[] = {{2, 4, 32, 32},
                               {1, 3, 128, 128, 4, true, 2, 0.1f},
                               {3, 3, 24, 40, 3, false, 2, 16},
                               {2, 6, 64, 48, 4, true, 1, 0.01f},
                               {2, 2, 128, 64, 1, false, 1, 200},
                               {1, 8, 96, 192, 4, true, 2, 0.1f}};
  uint32_t seed = 1;
  for (const DeltaShape& shape : shapes) {
    SCOPED_TRACE(seed);
    const DeltaTexts texts(shape, act(), {300, 1, 64, 65, 130}, seed++);
    Random random(seed);
    const auto outs = texts.run(*backend, in_pieces(texts.lengths(), 200, &random));
    double errors = 0, sum = 0, most = 0;
    for (size_t s = 0; s < outs.size(); ++s) {
      const std::vector<float> wanted = texts.expected(static_cast<int>(s));
      for (size_t i = 0; i < wanted.size(); ++i) {
        const double error = outs[s].at(static_cast<int64_t>(i)) - wanted[i];
        errors += error * error;
        sum += wanted[i] * wanted[i];
        most = std::max(most, std::abs(error));
      }
    }
    const bool is_exact = act() == DType::kFloat32;
    EXPECT_LE(std::sqrt(errors / sum), is_exact ? 1e-5 : 1e-2);
    EXPECT_LE(most, is_exact ? 1e-3 : 1);
  }
}

TEST_P(GatedDeltaTest, CutsOfAnySizeGiveTheSameBits) {
  const auto backend = make();
  const DeltaTexts texts({2, 4, 40, 72, 4, false, 2, 1}, act(), {330, 200, 3, 129}, 10);
  const auto whole = texts.run(*backend, at_once(texts.lengths()));
  for (const int size :
       full_or_reduced<std::vector<int>>({1, 2, 15, 29, 63, 64, 65, 101, 200}, {1, 63, 101})) {
    expect_same(whole, texts.run(*backend, in_pieces(texts.lengths(), size)),
                fmt::format("cuts of {}", size));
  }
  Random random(11);
  for (int i = 0; i < full_or_reduced(5, 2); ++i) {
    expect_same(whole, texts.run(*backend, in_pieces(texts.lengths(), 200, &random)),
                "random cuts");
  }
}

TEST_P(GatedDeltaTest, PaddingHasNoStateAndChangesNothing) {
  const auto backend = make();
  const DeltaTexts texts({2, 4, 16, 24}, act(), {70, 66}, 30);
  expect_same(texts.run(*backend, at_once(texts.lengths())),
              texts.run(*backend, in_pieces(texts.lengths(), 1), 3), "padding");
}

TEST_P(GatedDeltaTest, BatchMatesAndThreadsChangeNothing) {
  const DeltaShape shape = {3, 3, 32, 32};
  const DeltaTexts texts(shape, act(), {150, 70, 1, 100, 66}, 20);
  const auto expected = texts.run(*make(1), at_once(texts.lengths()));
  for (const int threads : {2, 5}) {
    Random random(static_cast<uint32_t>(threads));
    expect_same(expected, texts.run(*make(threads), in_pieces(texts.lengths(), 90, &random)),
                fmt::format("{} threads", threads));
  }
  std::vector<Cut> one_after_another;
  for (size_t s = 0; s < texts.lengths().size(); ++s) {
    one_after_another.emplace_back(texts.lengths().size()).at(s) = texts.lengths()[s];
  }
  expect_same(expected, texts.run(*make(), one_after_another), "alone");
}

// Prompts stand behind decodes: of 20 rows, which may open a chunk, and of more than a chunk.
TEST_P(GatedDeltaTest, DecodesBesidePromptsChangeNothing) {
  const auto backend = make();
  const DeltaTexts texts({2, 4, 32, 72}, act(), {70, 66, 90, 200}, 50);
  const auto expected = texts.run(*backend, at_once(texts.lengths()));
  const std::vector<Cut> mixed = {{60, 63, 0, 0}, {1, 1, 50, 0}, {1, 1, 20, 110}, {8, 1, 20, 90}};
  expect_same(expected, texts.run(*backend, mixed), "mixed steps");
}

// More heads than a GPU computes beside each other.
TEST_P(GatedDeltaTest, ManySequencesAreAsEachAlone) {
  const auto backend = make();
  std::vector<int> lengths;
  for (int s = 0; s < 100; ++s) lengths.push_back(60 + s % 12);
  const DeltaTexts texts({3, 3, 16, 128}, act(), lengths, 40);
  std::vector<Cut> one_after_another;
  for (size_t s = 0; s < lengths.size(); ++s) {
    one_after_another.emplace_back(lengths.size()).at(s) = lengths[s];
  }
  const auto expected = texts.run(*backend, one_after_another);
  expect_same(expected, texts.run(*backend, at_once(lengths)), "at once");
  for (const int size : {1, 3}) {
    expect_same(expected, texts.run(*backend, in_pieces(lengths, size)),
                fmt::format("cuts of {}", size));
  }
}

}  // namespace
}  // namespace nanovllm::test
