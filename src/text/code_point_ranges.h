// Sets of characters as ranges, ascending and apart.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace nanovllm::text {

struct CodePointRange {
  uint32_t first, last;
};

// The range of an array or span that c lies in, or its end. The elements have `first` and `last`.
template <typename Ranges>
auto find_range(const Ranges& ranges, uint32_t c) {
  const auto range =
      std::upper_bound(std::begin(ranges), std::end(ranges), c,
                       [](uint32_t value, const auto& other) { return value <= other.last; });
  return range != std::end(ranges) && c >= range->first ? range : std::end(ranges);
}

template <typename Ranges>
bool contains(const Ranges& ranges, uint32_t c) {
  return find_range(ranges, c) != std::end(ranges);
}

}  // namespace nanovllm::text
