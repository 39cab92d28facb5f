// Where the panels of code_panels.h have what: what packs them and what reads them back share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cpu/linear/code_panels.h"
#include "backend/cpu/linear/linear_pack.h"
#include "base/code_format.h"

namespace nanovllm {

inline constexpr int kUnitVectors = 16;
inline constexpr int kVectorWords = 32;

// Where a header has what belongs to a group.
struct CodeHeader {
  const CodePanels& shape;
  char* at;
  int64_t group;  // of the block

  char* offsets() const { return at + kPanelColumns * size_of(shape.scales); }
  char* codes() const {
    const int64_t vector = kPanelColumns * size_of(shape.scales);
    const int64_t vectors = shape.has_offsets ? 2 : 1;
    return at + vectors * vector + group * vectors * kPanelColumns;
  }
};

// visit(group, CodeHeader, its first unit, units) for all groups of a panel.
template <typename Visit>
void for_each_group(const CodePanels& shape, const char* panel, Visit visit) {
  char* at = const_cast<char*>(panel);
  int64_t units_left = shape.num_units;
  for (int64_t group = 0; group < shape.num_groups;) {
    char* const header = at;
    const int64_t end = std::min(group + shape.block_groups, shape.num_groups);
    at += shape.header_bytes;
    for (int64_t in_block = 0; group < end; ++group, ++in_block) {
      const int64_t units = std::min(shape.group_units, units_left);
      units_left -= units;
      visit(group, CodeHeader{shape, header, in_block}, at, units);
      at += units * shape.unit_bytes;
    }
  }
}

}  // namespace nanovllm
