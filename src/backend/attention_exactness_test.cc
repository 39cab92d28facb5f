// The promise that a row's bits depend on its own sequence alone, however steps are cut.
#include <fmt/format.h>

#include "backend/attention_test_support.h"

namespace nanovllm::test {
namespace {

class AttentionExactness : public AttentionTest {};

#define SKIP_UNLESS_DETERMINISTIC()     \
  if (!backend_case().is_deterministic) \
  GTEST_SKIP() << backend_case().name << " does not promise it"

INSTANTIATE_TEST_SUITE_P(Backends, AttentionExactness, every_backend_and_dtype(), name_of);

// A context of more than two spans, so that partial results are merged; other sequences make
// batches ragged.
TEST_P(AttentionExactness, ChunksOfAnySizeGiveTheSameBits) {
  SKIP_UNLESS_DETERMINISTIC();
  const auto backend = make();
  Random random(6);
  for (const int dim : full_or_reduced<std::vector<int>>({40, 128}, {24})) {
    const int kv_heads = full_or_reduced(2, 1);
    const Sequences sequences({2 * kv_heads, kv_heads, dim, 64}, act(), {1030, 37, 530}, 80);
    const std::vector<int>& lengths = sequences.lengths();
    const auto expected = sequences.run(*backend, whole(lengths), {});
    for (const int size : full_or_reduced<std::vector<int>>({7, 16, 100, 1000}, {7, 1000})) {
      expect_same(expected, sequences.run(*backend, chunked(lengths, size), {}),
                  fmt::format("chunks of {}", size));
    }
    expect_same(expected, sequences.run(*backend, ragged(lengths, 200, random), {}), "ragged");
  }
}

TEST_P(AttentionExactness, DecodingTokenByTokenGivesTheBitsOfPrefill) {
  SKIP_UNLESS_DETERMINISTIC();
  const auto backend = make();
  const int kv_heads = full_or_reduced(2, 1), dim = full_or_reduced(64, 24);
  const Sequences sequences({3 * kv_heads, kv_heads, dim, 32}, act(), {560, 100}, 90);
  for (const int window : {0, 50}) {
    Variant variant;
    variant.window = window;
    variant.norm_and_rope = true;
    expect_same(sequences.run(*backend, whole(sequences.lengths()), variant),
                sequences.run(*backend, chunked(sequences.lengths(), 1), variant), "decode");
  }
}

TEST_P(AttentionExactness, AnyNumberOfThreadsGivesTheSameBits) {
  Random random(7);
  const int kv_heads = full_or_reduced(2, 1), dim = full_or_reduced(64, 24);
  const Sequences sequences({2 * kv_heads, kv_heads, dim, 64}, act(), {1100, 3, 200}, 100);
  const std::vector<Step> steps = ragged(sequences.lengths(), 300, random);
  const auto expected = sequences.run(*make(1), steps, {});
  for (const int threads : full_or_reduced<std::vector<int>>({2, 3, 5}, {3})) {
    expect_same(expected, sequences.run(*make(threads), steps, {}),
                fmt::format("{} threads", threads));
  }
}

TEST_P(AttentionExactness, BatchMatesChangeNothing) {
  SKIP_UNLESS_DETERMINISTIC();
  const auto backend = make();
  const Sequences alone({8, 2, 64, 32}, act(), {200}, 110);
  const Sequences together({8, 2, 64, 32}, act(), {200, 90, 1, 300, 5}, 110);
  std::vector<HostTensor> mates = together.run(*backend, whole(together.lengths()), {});
  mates.resize(1);
  expect_same(alone.run(*backend, whole({200}), {}), mates, "with mates");
}

TEST_P(AttentionExactness, BlocksMayLieAnywhere) {
  const auto backend = make();
  const Sequences sequences({4, 2, 64, 16}, act(), {150, 80, 33}, 120);
  const std::vector<Step> steps = chunked(sequences.lengths(), 20);
  const auto expected = sequences.run(*backend, steps, {}, 1);
  for (const uint32_t order : {2u, 3u}) {
    expect_same(expected, sequences.run(*backend, steps, {}, order), "shuffled blocks");
  }
}
}  // namespace
}  // namespace nanovllm::test
