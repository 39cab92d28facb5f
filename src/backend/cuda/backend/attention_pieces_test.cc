// Attention in pieces of keys: against the reference, and that a row's bits depend on nothing but
// its own sequence. On a GPU of Hopper's kind; elsewhere the same ops take other kernels, which do
// not promise it.
#include <fmt/format.h>

#include "backend/attention_test_support.h"
#include "backend/cuda/backend/cuda_backend.h"

namespace nanovllm::test {
namespace {

class PieceAttention : public AttentionTest {
 protected:
  static std::unique_ptr<CudaBackend> make_pieces() {
    return std::make_unique<CudaBackend>(CudaOptions{.attention_in_pieces = true});
  }
};

INSTANTIATE_TEST_SUITE_P(Cuda, PieceAttention,
                         ::testing::Values(std::tuple(BackendCase{"cuda", {}, false},
                                                      DType::kBFloat16)),
                         name_of);

// Every sequence but for its last `rows` tokens in chunks of the prompt's kind, then those in one
// step.
std::vector<Step> last_rows_at_once(const std::vector<int>& lengths, int rows) {
  std::vector<Step> steps(2);
  for (int s = 0; s < static_cast<int>(lengths.size()); ++s) {
    const int last = std::min(rows, lengths[s]);
    if (lengths[s] > last) steps[0].push_back({s, lengths[s] - last});
    steps[1].push_back({s, last});
  }
  for (Step& step : steps) {
    std::stable_partition(step.begin(), step.end(), [](const Chunk& c) { return c.num_new == 1; });
  }
  std::erase(steps, Step{});
  return steps;
}

// The last rows' results.
std::vector<HostTensor> last_rows(const std::vector<HostTensor>& outputs, int rows) {
  std::vector<HostTensor> last;
  for (const HostTensor& all : outputs) {
    const int64_t count = std::min<int64_t>(rows, all.view.rows());
    HostTensor some(all.view.dtype, {count, all.view.row_size()});
    for (int64_t i = 0; i < count; ++i) {
      const auto row = all.row(all.view.rows() - count + i);
      std::memcpy(some.bytes.data() + static_cast<size_t>(i) * row.size(), row.data(), row.size());
    }
    last.push_back(std::move(some));
  }
  return last;
}

TEST_P(PieceAttention, MatchesReferenceForEveryHeadDim) {
  const auto backend = make_pieces();
  for (const int dim : {64, 80, 96, 112, 128, 256}) {
    for (const int heads : {1, 3, 10}) {
      for (const int window : {0, 200}) {
        if (heads == 10 && dim != 128) continue;
        SCOPED_TRACE(fmt::format("{} heads of {}, window {}", heads, dim, window));
        Variant variant;
        variant.window = window;
        variant.num_padding = 3;
        const Sequences sequences({heads, 1, dim, 48}, act(), {1, 311, 48, 200, 600}, 130);
        expect_reference(
            sequences,
            sequences.run(*backend, prefilled_then_decoded(sequences.lengths()), variant), variant);
      }
    }
  }
}

TEST_P(PieceAttention, MatchesReferenceForOneToEightRows) {
  const auto backend = make_pieces();
  for (const int dim : {64, 80, 128, 256}) {
    for (const int group : {1, 4, 8, 16}) {
      Variant variant;
      variant.soft_cap = group == 4 ? 5 : 0;
      variant.has_sinks = group == 8;
      variant.window = dim == 80 ? 100 : 0;
      const Sequences sequences({2 * group, 2, dim, 32}, act(), {5, 140, 258}, 131);
      const auto expected = sequences.expected(variant);
      for (int rows = 1; rows <= 8; ++rows) {
        SCOPED_TRACE(fmt::format("{} rows of {} heads of {}", rows, group, dim));
        const auto outputs =
            sequences.run(*backend, last_rows_at_once(sequences.lengths(), rows), variant);
        for (size_t s = 0; s < outputs.size(); ++s) {
          expect_close(outputs[s], expected[s], rounding(act()), 0x1.1p-8);
        }
      }
    }
  }
}

// Pieces of every length.
TEST_P(PieceAttention, MatchesReferenceOverLongContexts) {
  const auto backend = make_pieces();
  for (const int window : {0, 1000}) {
    Variant variant;
    variant.num_launches = 3;
    variant.window = window;
    const Sequences sequences({1, 1, 64, 64}, act(), {window == 0 ? 8700 : 3001, 700}, 132);
    const auto outputs =
        sequences.run(*backend, last_rows_at_once(sequences.lengths(), 2), variant);
    expect_reference(sequences, outputs, variant);
  }
}

// The fewer there are, the fewer warps a block has, and the longer their rings.
TEST_P(PieceAttention, BatchMatesChangeNothing) {
  const auto backend = make_pieces();
  for (const int dim : {64, 80, 128, 256}) {
    const Sequences alone({8, 2, dim, 32}, act(), {1200}, 133);
    const auto expected = last_rows(alone.run(*backend, prefilled_then_decoded({1200}), {}), 1);
    for (const int count : {40, 140}) {
      std::vector<int> lengths = {1200};
      Random random(134);
      for (int s = 0; s < count; ++s) lengths.push_back(random.between(1, count == 40 ? 700 : 300));
      const Sequences together({8, 2, dim, 32}, act(), lengths, 133);
      auto mates = last_rows(together.run(*backend, prefilled_then_decoded(lengths), {}), 1);
      mates.resize(1);
      expect_same(expected, mates, fmt::format("heads of {}, {} mates", dim, count));
    }
  }
}

TEST_P(PieceAttention, MatchesReferenceForManySequences) {
  const auto backend = make_pieces();
  for (const int dim : {64, 80, 96, 112, 128, 256}) {
    for (const int window : {0, 150}) {
      if (window > 0 && dim != 128) continue;
      SCOPED_TRACE(fmt::format("heads of {}, window {}", dim, window));
      Variant variant;
      variant.window = window;
      variant.has_sinks = window > 0;
      std::vector<int> lengths = {520, 300};
      Random random(137);
      for (int s = 0; s < 64; ++s) lengths.push_back(random.between(1, 40));
      const Sequences sequences({8, 4, dim, 48}, act(), lengths, 138);
      expect_reference(
          sequences, sequences.run(*backend, prefilled_then_decoded(sequences.lengths()), variant),
          variant);
    }
  }
}

TEST_P(PieceAttention, AnyNumberOfRowsAtOnceGivesTheSameBits) {
  const auto backend = make_pieces();
  struct Case {
    Shape shape;
    int window;
    float soft_cap;
  };
  const Case cases[] = {{{16, 8, 128, 256}, 0, 0}, {{8, 1, 128, 64}, 0, 0}, {{14, 2, 64, 48}, 0, 5},
                        {{4, 2, 128, 16}, 300, 0}, {{8, 4, 256, 32}, 0, 0}, {{4, 4, 80, 32}, 0, 0}};
  for (const Case& c : cases) {
    // Their last rows lie on both sides of an end of a piece, or of a tile.
    const std::vector<int> lengths = {1027, 259, 387, 1539, 36};
    const Sequences sequences(c.shape, act(), lengths, 135);
    Variant variant;
    variant.window = c.window;
    variant.soft_cap = c.soft_cap;
    constexpr int kRows = 8;
    // All of the same keys: those of prompts are the same whatever follows.
    const auto rows_at_once = [&](int rows) {
      std::vector<Step> steps(1);
      for (int s = 0; s < 5; ++s) steps[0].push_back({s, lengths[s] - kRows});
      for (int done = 0; done < kRows; done += rows) {
        Step step;
        for (int s = 0; s < 5; ++s) step.push_back({s, std::min(rows, kRows - done)});
        steps.push_back(step);
      }
      return last_rows(sequences.run(*backend, steps, variant), kRows);
    };
    const auto expected = rows_at_once(1);
    for (const int rows : {2, 3, 4, 5, 8}) {
      expect_same(expected, rows_at_once(rows),
                  fmt::format("{} rows, heads of {}", rows, c.shape.head_dim));
    }
  }
}

TEST_P(PieceAttention, BlocksMayLieAnywhere) {
  const auto backend = make_pieces();
  for (const int block_size : {16, 48, 256}) {
    const Sequences sequences({4, 2, 128, block_size}, act(), {1150, 280, 33}, 136);
    const auto steps = last_rows_at_once(sequences.lengths(), 3);
    const auto expected = last_rows(sequences.run(*backend, steps, {}, 1), 3);
    for (const uint32_t order : {2u, 3u}) {
      expect_same(expected, last_rows(sequences.run(*backend, steps, {}, order), 3), "shuffled");
    }
  }
}

}  // namespace
}  // namespace nanovllm::test
