// The loops of linear_loops.h over coded panels (coded_weights.h), the same sums in the same order.
// Include it behind the CodedPanel of the instruction set. `Ops` gives moreover
//   Words                    what CodedPanel decodes into
//   weights(words)           a vector of a plain step as a B
//   store_words(p, words)    to an aligned address
#pragma once

#include "backend/cpu/linear_loops.h"

namespace nanovllm {

template <typename Ops>
class CodedLoops : private LinearLoops<Ops> {
 public:
  static void run(const LinearBlock& block) {
    if (block.patches == nullptr)
      LinearLoops<Ops>::run(block);
    else if (block.num_tiles == 1)
      one_tile(block);
    else
      several_tiles(block);
  }

 private:
  using Plain = LinearLoops<Ops>;
  using typename Plain::Panels;
  using typename Plain::Place;
  using typename Plain::Prefetch;
  using typename Plain::TileFn;
  using typename Plain::Vec;
  using Words = typename Ops::Words;
  using Plain::kVectorBytes;
  using Plain::kVectorsPerPanel;
  // Decoding gives four vectors of a unit at a time: two of each step.
  static constexpr int kPartVectors = 2;
  static constexpr int kParts = kVectorsPerPanel / kPartVectors;

  static void one_tile(const LinearBlock& block) {
    const int64_t rows = rows_of(block.tiling, block.first_tile);
    const TileFn one = find<Panels::kOne, Prefetch::kStream>(rows);
    if (block.one_stream) return Plain::all_panels(block, 1, one, one);
    Plain::all_panels(block, Plain::panels_at_once(rows),
                      find<Panels::kSeveral, Prefetch::kStreams>(rows),
                      find<Panels::kOne, Prefetch::kStreams>(rows));
  }

  // The first tile decodes a panel for the others, which find it in a cache. Meanwhile it fetches
  // the first third of the next panel from memory, the second tile the rest.
  static void several_tiles(const LinearBlock& block) {
    const int64_t end = block.first_tile + block.num_tiles;
    const int64_t group = Plain::tiles_at_once(block);
    for (int64_t first = block.first_tile; first < end; first += group) {
      const int64_t last = first + group < end ? first + group : end;
      for (int64_t panel = 0; panel < block.num_panels; ++panel) {
        const char* b = block.b + panel * block.panel_bytes;
        const char* next = b + block.panel_bytes;
        find<Panels::kOne, Prefetch::kPointer>(rows_of(block.tiling, first))(
            block, {first_row(block.tiling, first), panel, b, next});
        for (int64_t tile = first + 1; tile < last; ++tile)
          Plain::one_panel(block, tile, panel, block.scratch,
                           tile == first + 1 ? next + block.panel_bytes / 3 : nullptr);
      }
    }
  }

  // With Prefetch::kPointer the decoded weights are kept in block.scratch, and lines are fetched
  // one a unit.
  template <Panels panels, Prefetch prefetch, int rows = Ops::kMaxRows>
  static TileFn find(int64_t wanted) {
    if constexpr (rows > 1) {
      if (wanted < rows) return find<panels, prefetch, rows - 1>(wanted);
    }
    constexpr int kPanels = panels == Panels::kSeveral ? Ops::vectors(rows) / kVectorsPerPanel : 1;
    if constexpr (Ops::vectors(rows) < kVectorsPerPanel)
      return &panel_in_parts<prefetch, rows>;
    else
      return &tile<prefetch, rows, kPanels, 0, kParts>;
  }

  template <Prefetch prefetch, int rows>
  static void panel_in_parts(const LinearBlock& block, const Place& place) {
    static_assert(Ops::vectors(rows) == kPartVectors && kParts == 2);
    tile<prefetch, rows, 1, 0, 1>(block, place);
    tile<prefetch, rows, 1, 1, 1>(block, place);
  }

  // `rows` rows by `parts` parts of `panels` panels, from part `first_part` of each on.
  template <Prefetch prefetch, int rows, int panels, int first_part, int parts>
  static void tile(const LinearBlock& block, const Place& place) {
    constexpr bool kKeep = prefetch == Prefetch::kPointer;
    constexpr int kVectors = panels * parts * kPartVectors;
    constexpr int kStepBytes = rows * Ops::kRowBytes;
    const char* a = block.a + place.row * block.a_row_bytes;
    const char* fetch = place.prefetch;
    char* keep = block.scratch;
    CodedPanel coded[panels];
#pragma GCC unroll 4
    for (int p = 0; p < panels; ++p)
      coded[p] = CodedPanel(place.b + p * block.panel_bytes, block.patches[place.panel + p]);
    Vec acc[rows][kVectors];
    Plain::template clear<rows, kVectors>(acc);
    const uint32_t num_units = static_cast<uint32_t>(block.num_steps / kUnitSteps);
    for (uint32_t unit = 0; unit < num_units; ++unit) {
#pragma GCC unroll 4
      for (int p = 0; p < panels; ++p) {
        if constexpr (first_part == 0) {
#pragma GCC unroll 4
          for (int line = 0; line < kUnitBytes; line += 64)
            Plain::template ask_ahead<prefetch, panels>(coded[p].unit() + line);
        }
#pragma GCC unroll 2
        for (int part = first_part; part < first_part + parts; ++part) {
          Words w[2 * kPartVectors];
          if constexpr (kParts == 1)
            coded[p].next(unit, w);
          else
            coded[p].next(unit, part, part == first_part + parts - 1, w);
          if constexpr (kKeep) store_part(keep, part, w);
          multiply_part<rows>(a, w, (p * parts + part - first_part) * kPartVectors, acc);
        }
      }
      if constexpr (kKeep) {
        keep += kUnitSteps * kPanelStepBytes;
        if constexpr (first_part == 0) {
          Ops::prefetch(fetch);
          fetch += 64;
        }
      }
      a += kUnitSteps * kStepBytes;
    }
    const int64_t column = place.panel * kPanelColumns + first_part * kPartVectors * Ops::kLanes;
    Plain::template finish<rows, kVectors>(block, place.row, column, acc);
  }

  static inline __attribute__((always_inline)) void store_part(char* keep, int part,
                                                               const Words (&w)[4]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      Ops::store_words(keep + i / kPartVectors * kPanelStepBytes +
                           (part * kPartVectors + i % kPartVectors) * kVectorBytes,
                       w[i]);
  }

  // Adds the products of a unit's steps to the accumulators from `first` on.
  template <int rows, int vectors>
  static inline __attribute__((always_inline)) void multiply_part(const char* a,
                                                                  const Words (&w)[4], int first,
                                                                  Vec (&acc)[rows][vectors]) {
#pragma GCC unroll 2
    for (int step = 0; step < kUnitSteps; ++step) {
      const typename Ops::B left = Ops::weights(w[2 * step]);
      const typename Ops::B right = Ops::weights(w[2 * step + 1]);
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const char* x_at = a + step * rows * Ops::kRowBytes + r * 4;
        const typename Ops::A x = Ops::template load_a<rows>(x_at);
        acc[r][first] = Ops::multiply_add(acc[r][first], x, left);
        acc[r][first + 1] = Ops::multiply_add(acc[r][first + 1], x, right);
      }
    }
  }
};

}  // namespace nanovllm
