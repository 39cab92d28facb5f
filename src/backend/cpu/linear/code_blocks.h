// Where the panels of code_panels.h have what, for what packs them and what reads them, with any
// instruction set. Everything is in an unnamed namespace (see linear_loops.h).
#pragma once

#include <cstdint>

#include "backend/cpu/linear/code_panels.h"
#include "backend/cpu/linear/linear_kernels.h"

namespace nanovllm {
namespace {

constexpr int kUnitVectors = 16;
constexpr int kVectorWords = 32;

// A group of a panel: its units, and where its block's header has what belongs to a column. `Char`
// is char or const char.
template <typename Char>
struct CodeGroup {
  const CodePanels& shape;
  Char* header;
  int64_t in_block;  // which one of the block
  Char* units;
  int64_t num_units;

  Char* scale(int64_t column) const { return header + column * scale_bytes(); }
  Char* offset(int64_t column) const { return scale(kPanelColumns + column); }
  // Of WeightLayout::kSuper.
  Char* scale_code(int64_t column) const {
    const int64_t vectors = shape.has_offsets ? 2 : 1;
    return header + vectors * kPanelColumns * (scale_bytes() + in_block) + column;
  }
  Char* offset_code(int64_t column) const { return scale_code(kPanelColumns + column); }

 private:
  int64_t scale_bytes() const { return shape.scales == ScaleKind::kFloat32 ? 4 : 2; }
};

// visit(CodeGroup) for the groups of some whole blocks that lie at `at`.
template <typename Char, typename Visit>
inline __attribute__((always_inline)) void for_each_group(const CodePanels& shape, Char* at,
                                                          int64_t num_groups, int64_t num_units,
                                                          Visit visit) {
  while (num_groups > 0) {
    Char* const header = at;
    at += shape.header_bytes;
    const int64_t groups = num_groups < shape.block_groups ? num_groups : shape.block_groups;
    num_groups -= groups;
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t units = num_units < shape.group_units ? num_units : shape.group_units;
      num_units -= units;
      visit(CodeGroup<Char>{shape, header, group, at, units});
      at += units * shape.unit_bytes;
    }
  }
}

}  // namespace
}  // namespace nanovllm
