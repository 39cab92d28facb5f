// Where a unit of code_panels.h has the codes of a vector, for any instruction set. Everything is
// in an unnamed namespace (see linear_loops.h).
#pragma once

#include <cstdint>

#include "backend/cpu/linear/code_panels.h"

namespace nanovllm {
namespace {

// The codes of vector q of a unit in the lowest bits of words, with other bits above them. `Loaded`
// gives
//   Words
//   shifted(j, bits)           the unit's words j, shifted to the right
//   insert(to, from, mask)     to | (from & mask)
template <typename Loaded, CodeKind kind, int q>
inline __attribute__((always_inline)) typename Loaded::Words code_index(const Loaded& unit) {
  if constexpr (kind == CodeKind::k4) {
    return unit.shifted(q / 4, 4 * (q % 4));
  } else if constexpr (kind == CodeKind::k5 && q < 15) {
    return unit.shifted(q / 3, 5 * (q % 3));
  } else if constexpr (kind == CodeKind::k5) {
    typename Loaded::Words code = unit.shifted(0, 15);
    code = Loaded::insert(code, unit.shifted(1, 14), 2);
    code = Loaded::insert(code, unit.shifted(2, 13), 4);
    code = Loaded::insert(code, unit.shifted(3, 12), 8);
    return Loaded::insert(code, unit.shifted(4, 11), 16);
  } else {
    static_assert(kind == CodeKind::k6);
    constexpr int kFirst = q / 8 * 3, kInHalf = q % 8;
    if constexpr (kInHalf < 6) return unit.shifted(kFirst + kInHalf / 2, 6 * (kInHalf % 2));
    constexpr bool kIsSeventh = kInHalf == 6;
    return Loaded::insert(unit.shifted(kFirst + (kIsSeventh ? 0 : 2), 12),
                          unit.shifted(kFirst + 1, kIsSeventh ? 8 : 10), 0x30);
  }
}

}  // namespace
}  // namespace nanovllm
