// How many tokens of each draft a step verifies.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/drafter.h"

namespace nanovllm {

// The lengths with the most expected tokens for each expected second of the step. What a token of a
// draft is worth is learned from those that came, by how much evidence it had; what a row more of a
// step costs, from the steps. Choices change speed and no token. Not thread-safe.
class DraftPlanner {
 public:
  // Tokens that are expected to come less often are not verified.
  explicit DraftPlanner(double least_probability = 0) : least_probability_(least_probability) {}

  // Cuts the drafts of a step in which num_decodes sequences decode, which has room for most_rows
  // rows more.
  void cut(std::span<DraftTokens> drafts, int num_decodes, int most_rows);
  // A draft, whole, be it verified or not, and the tokens that came in its place.
  void learn(const DraftTokens& draft, std::span<const int32_t> tokens);
  // A step in which sequences decode and nothing else is computed.
  void learn_step(int num_rows, double seconds);

  // The probability that a token with so much evidence comes where those before it came.
  double probability(int evidence, int drafter = 0) const;
  // Of its tokens that come, were it verified to its end.
  double expected_length(const DraftTokens& draft) const;
  // Of a step with so many rows; 0 = nothing is known yet.
  double seconds(int num_rows) const;

 private:
  // Evidence in classes: 1, 2, 3, 4, up to 6, 10, 18, and more.
  static constexpr int kNumClasses = 8;
  static int class_of(int evidence);

  struct Guess {
    double hits, tries;
  };
  struct Measured {
    int num_rows;
    double seconds;
    int64_t step;  // in which it was measured last
  };
  struct Slot {
    double probability;  // that its token comes, and all before it
    size_t draft;
  };
  double now(const Measured& measured) const;

  double least_probability_;
  using Guesses = std::array<Guess, kNumClasses>;
  static constexpr Guesses kAtFirst = {
      {{.6, 2}, {.9, 2}, {1.1, 2}, {1.2, 2}, {1.3, 2}, {1.5, 2}, {1.7, 2}, {1.8, 2}}};
  std::vector<Guesses> guesses_;    // by drafter, as far as they have proposed anything
  std::vector<Measured> measured_;  // by num_rows
  int64_t num_steps_ = 0;
  std::vector<Slot> slots_;  // reused
};

}  // namespace nanovllm
