// paged_attention and store_and_attend on every backend, against the scalar reference.
#include <fmt/format.h>

#include "backend/attention_test_support.h"

namespace nanovllm::test {
namespace {

class Attention : public AttentionTest {};

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
    for (const int dim : full_or_reduced<std::vector<int>>({32, 64}, {32})) {
      const Sequences sequences({heads, kv_heads, dim, 32}, act(), {random.between(1, 90), 65}, 20);
      expect_reference(sequences,
                       sequences.run(*backend, ragged(sequences.lengths(), 30, random), {}), {});
    }
  }
}

// Few sequences, whose contexts a device may cut into many pieces.
TEST_P(Attention, DecodesMatchReferenceForEveryHeadDim) {
  const auto backend = make();
  const int longest = full_or_reduced(311, 59), window_size = full_or_reduced(200, 30);
  for (const int dim : {64, 80, 96, 128, 256}) {
    for (const int heads : full_or_reduced<std::vector<int>>({1, 3, 10}, {3})) {
      for (const int window : {0, window_size}) {
        Variant variant;
        variant.window = window;
        variant.num_padding = 3;
        const Sequences sequences({heads, 1, dim, 48}, act(), {1, longest, 48, window_size}, 130);
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
  const int longest = full_or_reduced(300, 80);
  for (const int dim : full_or_reduced<std::vector<int>>({64, 128}, {64})) {
    for (const int heads : full_or_reduced<std::vector<int>>({4, 6, 20}, {6})) {
      for (const int window : {0, 30}) {
        Variant variant;
        variant.norm_and_rope = variant.one_pass = true;
        variant.window = window;
        variant.num_padding = 2;
        const Sequences sequences({heads, 2, dim, 32, dim}, act(), {1, longest, 32, 33, 97}, 150);
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

TEST_P(Attention, OnePassMatchesReferenceForEveryGroupSize) {
  const auto backend = make();
  for (const int dim : full_or_reduced<std::vector<int>>({64, 128}, {64})) {
    for (const int heads : full_or_reduced<std::vector<int>>({1, 5, 7, 8, 16}, {1, 5, 16})) {
      for (const float soft_cap : {0.f, 3.f}) {
        Variant variant;
        variant.norm_and_rope = variant.one_pass = variant.repeats = true;
        variant.soft_cap = soft_cap;
        const Sequences sequences({2 * heads, 2, dim, 16, dim}, act(), {1, 70, 16, 17}, 160);
        expect_reference(
            sequences,
            sequences.run(*backend, prefilled_then_decoded(sequences.lengths()), variant), variant);
      }
    }
  }
}

// A context that more than a few of a device's blocks share.
TEST_P(Attention, DecodesOfLongContextsMatchReference) {
  const auto backend = make();
  for (const bool one_pass : {false, true}) {
    Variant variant;
    variant.norm_and_rope = variant.one_pass = one_pass;
    const Sequences sequences({2, 1, 64, 256, 64}, act(), {full_or_reduced(1500, 300), 40}, 170);
    expect_reference(sequences,
                     sequences.run(*backend, prefilled_then_decoded(sequences.lengths()), variant),
                     variant);
  }
}

// More than a device plans for at once.
TEST_P(Attention, MatchesReferenceForVeryManySequences) {
  const auto backend = make();
  const std::vector<int> lengths(full_or_reduced(16385, 400), 2);
  const Sequences sequences({1, 1, 128, 16, 64}, act(), lengths, 180);
  for (const bool one_pass : {false, true}) {
    Variant variant;
    variant.norm_and_rope = variant.one_pass = one_pass;
    expect_reference(sequences, sequences.run(*backend, prefilled_then_decoded(lengths), variant),
                     variant);
  }
}

// Many sequences, whose contexts a device may deal out in pieces of equal size.
TEST_P(Attention, DecodesMatchReferenceInLargeRaggedBatches) {
  const auto backend = make();
  Random random(10);
  for (const int dim : full_or_reduced<std::vector<int>>({64, 128}, {64})) {
    std::vector<int> lengths = {full_or_reduced(600, 150)};
    for (int s = 0; s < full_or_reduced(70, 30); ++s) {
      lengths.push_back(random.between(1, full_or_reduced(100, 40)));
    }
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
    for (int s = 0; s < full_or_reduced(7, 4); ++s) lengths.push_back(random.between(1, 150));
    const Sequences sequences({4, 2, 64, block_size}, act(), lengths, 30);
    for (const bool norm_and_rope : {false, true}) {
      Variant variant;
      variant.norm_and_rope = norm_and_rope;
      expect_reference(sequences, sequences.run(*backend, ragged(lengths, 60, random), variant),
                       variant);
    }
  }
}

// Sizes that a GPU has kernels of their own for; a tenth of them, or less, on the CPU.
struct LargeCase {
  Shape shape;
  std::vector<int> lengths;
  int window;
  float soft_cap;

  std::vector<int> lengths_on(const Backend& backend, int divisor = 10) const {
    std::vector<int> all = lengths;
    if (backend.traits().shares_host_memory) {
      for (int& length : all) length = 1 + length / divisor;
    }
    return all;
  }
  Variant variant() const {
    Variant variant;
    variant.window = window;
    variant.soft_cap = soft_cap;
    variant.num_launches = full_or_reduced(3, 1);
    return variant;
  }
};

TEST_P(Attention, MatchesReferenceInLargeChunks) {
  const auto backend = make();
  const LargeCase cases[] = {
      {{16, 8, 128, 256}, {900, 70, 257, 129}, 0, 0}, {{8, 8, 128, 16}, {1500}, 0, 0},
      {{14, 2, 64, 48}, {1000, 400}, 150, 0},         {{48, 16, 64, 32}, {500, 128}, 0, 5},
      {{8, 8, 256, 16}, {1300, 130}, 0, 0},           {{10, 2, 256, 80}, {800, 300}, 64, 3},
      {{16, 16, 256, 32}, {1400, 90}, 40, 0}};
  for (const LargeCase& c : cases) {
    const std::vector<int> lengths = c.lengths_on(*backend, full_or_reduced(10, 20));
    Variant variant = c.variant();
    variant.norm_and_rope = c.soft_cap == 0;
    const Sequences sequences(c.shape, act(), lengths, 190);
    const std::vector<Step> steps = chunked(lengths, lengths[0] * 2 / 3);
    expect_reference(sequences, sequences.run(*backend, steps, variant), variant);
  }
}

// Whose keys a GPU's blocks may share.
TEST_P(Attention, MatchesReferenceInShortChunksBehindLongContexts) {
  const auto backend = make();
  const LargeCase cases[] = {
      {{16, 8, 128, 256}, {1500}, 0, 0},       {{4, 2, 128, 16}, {2100, 1}, 0, 5},
      {{7, 1, 64, 48}, {1300, 50, 300}, 0, 0}, {{6, 2, 64, 16}, {1900}, 700, 0},
      {{2, 2, 256, 32}, {1000, 700}, 0, 0},    {{5, 1, 256, 16}, {1100}, 500, 3},
      {{1, 1, 64, 256}, {4800}, 0, 0},         {{2, 1, 128, 64}, {4700, 120}, 300, 0}};
  for (const LargeCase& c : std::span(cases).first(full_or_reduced(std::size(cases), size_t{4}))) {
    const std::vector<int> lengths = c.lengths_on(*backend);
    std::vector<Step> steps(4);
    for (int s = 0; s < static_cast<int>(lengths.size()); ++s) {
      const int left = lengths[s] > 100 ? 70 : 0;
      steps[0].push_back({s, lengths[s] - left});
      if (left == 0) continue;
      steps[1].push_back({s, 5});
      steps[2].push_back({s, 63});
      steps[3].push_back({s, 2});
    }
    std::stable_partition(steps[0].begin(), steps[0].end(),
                          [](const Chunk& chunk) { return chunk.num_new == 1; });
    const Sequences sequences(c.shape, act(), lengths, 200);
    expect_reference(sequences, sequences.run(*backend, steps, c.variant()), c.variant());
  }
}

// Of kernels for any shape, for decodes with and without the new token's store, and for chunks,
// whose keys a GPU's blocks share or do not; each with rows that see little, where sinks weigh
// most.
TEST_P(Attention, MatchesReferenceWithSinksOrGates) {
  const auto backend = make();
  const LargeCase cases[] = {
      {{4, 2, 40, 16}, {400}, 0, 5},        {{4, 2, 64, 32, 64}, {1500, 40}, 0, 0},
      {{16, 2, 64, 16}, {700, 30}, 100, 0}, {{24, 2, 128, 32}, {300, 70}, 0, 3},
      {{8, 8, 128, 16}, {1500}, 0, 0},      {{2, 2, 256, 32}, {1000, 90}, 60, 5},
      {{48, 16, 64, 32}, {500, 128}, 0, 0}, {{1, 1, 64, 256}, {4800}, 0, 0}};
  const auto expect_reference_of = [&](const LargeCase& c) {
    const std::vector<int> lengths = c.lengths_on(*backend);
    Variant variant = c.variant();
    variant.has_sinks = !c.shape.has_gate;
    variant.one_pass = variant.norm_and_rope = c.soft_cap == 0;
    std::vector<Step> steps(5);
    for (int s = 0; s < static_cast<int>(lengths.size()); ++s) {
      const int left = lengths[s] > 90 ? 72 : 2;
      steps[0].push_back({s, lengths[s] - left});
      if (left > 2) steps[1].push_back({s, 6});
      if (left > 2) steps[2].push_back({s, 64});
      steps[3].push_back({s, 1});
      steps[4].push_back({s, 1});
    }
    std::erase(steps, Step{});
    const Sequences sequences(c.shape, act(), lengths, 210);
    expect_reference(sequences, sequences.run(*backend, steps, variant), variant);
  };
  for (LargeCase c : cases) {
    for (const bool has_gate : {false, true}) {
      c.shape.has_gate = has_gate;
      expect_reference_of(c);
    }
  }
}

TEST_P(Attention, MatchesReferenceOverLongContexts) {
  Random random(4);
  const Sequences sequences({2, 1, full_or_reduced(32, 16), 64}, act(), {1100}, 40);
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
}  // namespace
}  // namespace nanovllm::test
