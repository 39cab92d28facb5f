#include "engine/draft_planner.h"

#include <algorithm>
#include <cmath>

namespace nanovllm {

namespace {

constexpr double kMemoryOfTokens = 0.99;  // of what is known, kept with each new token of a class
constexpr double kMemoryOfSteps = 0.75;
constexpr double kHoping = 0.0002;  // of what is hoped for, added with each step without guesses
constexpr double kForgetting = 0.9995;
constexpr int kExactRows = 32;  // up to which each number is known by itself

// Numbers of rows that count as one: an eighth of a power of two apart.
int rounded(int num_rows) {
  int unit = 1;
  while (num_rows > kExactRows * unit) unit *= 2;
  return (num_rows + unit - 1) / unit * unit;
}

}  // namespace

void RowTimes::learn(int num_rows, double seconds) {
  if (num_rows < 1 || seconds <= 0) return;
  num_rows = rounded(num_rows);
  const auto place = std::ranges::lower_bound(measured_, num_rows, {}, &Measured::num_rows);
  if (place == measured_.end() || place->num_rows != num_rows) {
    measured_.insert(place, {num_rows, seconds, num_steps_});
    return;
  }
  place->seconds = kMemoryOfSteps * now(*place) + (1 - kMemoryOfSteps) * seconds;
  place->step = num_steps_;
}

double RowTimes::now(const Measured& measured) const {
  return measured.seconds * std::pow(kForgetting, static_cast<double>(num_steps_ - measured.step));
}

double RowTimes::seconds(int num_rows) const {
  if (measured_.empty()) return 0;
  num_rows = rounded(num_rows);
  const auto above = std::ranges::lower_bound(measured_, num_rows, {}, &Measured::num_rows);
  if (above == measured_.end()) return now(measured_.back());
  if (above->num_rows == num_rows || above == measured_.begin()) return now(*above);
  const Measured& below = *(above - 1);
  const double share =
      static_cast<double>(num_rows - below.num_rows) / (above->num_rows - below.num_rows);
  return now(below) + share * (now(*above) - now(below));
}

DraftPlanner::DraftPlanner(double least_probability, double hope)
    : least_probability_(least_probability), hope_(hope) {
  if (hope > 0) guesses_.emplace_back().fill({2 * hope, 2});
}

int DraftPlanner::class_of(int evidence) {
  constexpr std::array<int, kNumClasses - 1> kLast = {1, 2, 3, 4, 6, 10, 18};
  return static_cast<int>(std::ranges::lower_bound(kLast, evidence) - kLast.begin());
}

double DraftPlanner::probability(int evidence, int drafter) const {
  const Guesses& guesses = drafter < std::ssize(guesses_) ? guesses_[drafter] : kAtFirst;
  const Guess& guess = guesses[class_of(evidence)];
  return guess.hits / guess.tries;
}

double DraftPlanner::expected_length(const DraftTokens& draft) const {
  double survival = 1, length = 0;
  for (size_t i = 0; i < draft.ids.size(); ++i) {
    survival *= probability(draft.evidence + static_cast<int>(i), draft.drafter);
    length += survival;
  }
  return length;
}

void DraftPlanner::learn(const DraftTokens& draft, std::span<const int32_t> tokens) {
  while (std::ssize(guesses_) <= draft.drafter) guesses_.push_back(kAtFirst);
  const size_t count = std::min(draft.ids.size(), tokens.size());
  for (size_t i = 0; i < count; ++i) {
    const bool is_hit = draft.ids[i] == tokens[i];
    Guess& guess = guesses_[draft.drafter][class_of(draft.evidence + static_cast<int>(i))];
    guess.hits = kMemoryOfTokens * guess.hits + (is_hit ? 1 : 0);
    guess.tries = kMemoryOfTokens * guess.tries + 1;
    if (!is_hit) return;
  }
}

void DraftPlanner::learn_step(int num_rows, double seconds) {
  steps_.forget();
  passes_.forget();
  steps_.learn(num_rows, seconds);
}

// What a step takes without drafts comes first, and then no step of more than twice the rows.
int DraftPlanner::most_more_rows(int num_decodes) const {
  if (steps_.most() == 0 || steps_.fewest() > num_decodes) return 0;
  return 2 * steps_.most() - num_decodes;
}

int DraftPlanner::num_guesses(int num_decodes, int most) {
  most = std::min(most, most_more_rows(num_decodes) / num_decodes);
  double tokens = 1, best = tokens / seconds(num_decodes), survival = 1;
  int num_guesses = 0;
  for (int i = 1; i <= most; ++i) {
    survival *= probability(i);
    tokens += survival;
    const double rate =
        tokens / (seconds(num_decodes * (1 + i)) + i * passes_.seconds(num_decodes));
    if (rate <= best) continue;
    best = rate;
    num_guesses = i;
  }
  if (num_guesses == 0 && hope_ > 0) {
    for (Guess& guess : guesses_.front()) {
      guess.hits += kHoping * (hope_ * guess.tries - guess.hits);
    }
  }
  return num_guesses;
}

void DraftPlanner::cut(std::span<DraftTokens> drafts, int num_decodes, int most_rows) {
  slots_.clear();
  most_rows = std::min(most_rows, most_more_rows(num_decodes));
  for (size_t d = 0; d < drafts.size(); ++d) {
    double survival = 1;
    for (size_t i = 0; i < drafts[d].ids.size(); ++i) {
      survival *= probability(drafts[d].evidence + static_cast<int>(i), drafts[d].drafter);
      if (survival < least_probability_) break;
      slots_.push_back({survival, d});
    }
  }
  // No token of a draft is more probable than the one before it.
  std::ranges::sort(slots_, [](const Slot& a, const Slot& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.draft < b.draft;
  });
  if (std::ssize(slots_) > most_rows) slots_.resize(std::max(0, most_rows));
  double tokens = num_decodes, best = tokens / seconds(num_decodes);
  size_t num_slots = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    tokens += slots_[i].probability;
    const double rate = tokens / seconds(num_decodes + static_cast<int>(i) + 1);
    if (rate <= best) continue;
    best = rate;
    num_slots = i + 1;
  }
  std::vector<size_t> lengths(drafts.size());
  for (size_t i = 0; i < num_slots; ++i) ++lengths[slots_[i].draft];
  for (size_t d = 0; d < drafts.size(); ++d) drafts[d].ids.resize(lengths[d]);
}

}  // namespace nanovllm
