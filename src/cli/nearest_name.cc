#include "cli/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace nanovllm::cli {
namespace {

constexpr size_t kLeastBeginning = 3;  // letters: "--max" may be the beginning of a name

// How many characters are left out, added, replaced or swapped with their neighbour.
size_t num_slips(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      const bool is_swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view typed, const std::vector<std::string>& names) {
  const size_t num_dashes = std::min(typed.find_first_not_of('-'), typed.size());
  const bool may_be_beginning = typed.size() - num_dashes >= kLeastBeginning;
  std::string best;
  size_t least = typed.size() / 3 + 1;
  for (const std::string& name : names) {
    const bool is_beginning = may_be_beginning && name.starts_with(typed);
    const size_t slips = is_beginning ? 1 : num_slips(typed, name);
    if (slips >= least) continue;
    least = slips;
    best = name;
  }
  return best;
}

}  // namespace nanovllm::cli
