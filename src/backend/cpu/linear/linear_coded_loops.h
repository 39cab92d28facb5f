// The loops of linear_loops.h over coded panels (coded_weights.h), the same sums in the same order.
// `Ops` gives moreover
//   Panel                    the instruction set's CodedPanel
//   Words                    what that decodes into
//   weights(words)           a vector of a plain step as a B
//   store_words(p, words)    to an aligned address
#pragma once

#include "backend/cpu/linear/linear_loops.h"

namespace nanovllm {

template <typename Ops>
class CodedLoops : private LinearLoops<Ops> {
 public:
  static void run(const LinearBlock& block) {
    if (block.patches == nullptr) {
      LinearLoops<Ops>::run(block);
    } else if (block.num_tiles == 1 && decodes_along(rows_of(block.tiling, block.first_tile))) {
      one_tile(block);
    } else {
      several_tiles(block);
    }
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
    Plain::all_panels(block,
                      Plain::is_foreseen(block, rows) ? find<Panels::kOne, Prefetch::kNone>(rows)
                                                      : find<Panels::kOne, Prefetch::kStream>(rows),
                      find<Panels::kSeveral, Prefetch::kStreams>(rows),
                      find<Panels::kOne, Prefetch::kStreams>(rows));
  }

  // Whether a tile of so many rows leaves registers to decode its weights as it goes.
  static constexpr bool decodes_along(int64_t rows) {
    return Ops::vectors(static_cast<int>(rows)) >= kVectorsPerPanel;
  }

  // A panel is decoded for all tiles, which find it in a cache: by the first one if it can, else by
  // a pass before it. Whoever decodes fetches the first third of the next panel from memory, the
  // next tile the rest.
  static void several_tiles(const LinearBlock& block) {
    const int64_t end = block.first_tile + block.num_tiles;
    const int64_t group = Plain::tiles_at_once(block);
    for (int64_t first = block.first_tile; first < end; first += group) {
      const int64_t last = first + group < end ? first + group : end;
      const int64_t rows = rows_of(block.tiling, first);
      const TileFn decode_along = find<Panels::kOne, Prefetch::kPointer>(rows);
      const int64_t others = decodes_along(rows) ? first + 1 : first;
      for (int64_t panel = 0; panel < block.num_panels; ++panel) {
        const char* b = block.b + panel * block.panel_bytes;
        const char* next = b + block.panel_bytes;
        (decodes_along(rows) ? decode_along : decode)(
            block, {first_row(block.tiling, first), panel, b, next});
        for (int64_t tile = others; tile < last; ++tile) {
          Plain::one_panel(block, tile, panel, block.scratch,
                           tile == others ? next + block.panel_bytes / 3 : nullptr);
        }
      }
    }
  }

  // Into block.scratch; a line of place.prefetch a unit.
  static void decode(const LinearBlock& block, const Place& place) {
    typename Ops::Panel coded(place.b, block.patches[place.panel]);
    char* keep = block.scratch;
    const char* fetch = place.prefetch;
    const uint32_t num_units = static_cast<uint32_t>(block.num_steps / kUnitSteps);
    for (uint32_t unit = 0; unit < num_units; ++unit) {
#pragma GCC unroll 2
      for (int part = 0; part < kParts; ++part) {
        Words w[2 * kPartVectors];
        coded.next(unit, part, w);
        store_part(keep, part, w);
      }
      keep += kUnitSteps * kPanelStepBytes;
      Ops::prefetch(fetch);
      fetch += 64;
    }
  }

  // With Prefetch::kPointer the decoded weights are kept in block.scratch, and lines are fetched
  // one a unit. Null where tiles can't decode along.
  template <Panels panels, Prefetch prefetch, int rows = Ops::kMaxRows>
  static TileFn find(int64_t wanted) {
    if constexpr (rows > 1) {
      if (wanted < rows) return find<panels, prefetch, rows - 1>(wanted);
    }
    constexpr int kPanels = panels == Panels::kSeveral ? Ops::vectors(rows) / kVectorsPerPanel : 1;
    if constexpr (decodes_along(rows)) return &tile<prefetch, rows, kPanels>;
    return nullptr;
  }

  // `rows` rows by `panels` panels.
  template <Prefetch prefetch, int rows, int panels>
  static void tile(const LinearBlock& block, const Place& place) {
    constexpr bool kKeep = prefetch == Prefetch::kPointer;
    constexpr int kVectors = panels * kVectorsPerPanel;
    constexpr int kStepBytes = rows * Ops::kRowBytes;
    const char* a = block.a + place.row * block.a_row_bytes;
    const char* fetch = place.prefetch;
    char* keep = block.scratch;
    typename Ops::Panel coded[panels];
#pragma GCC unroll 4
    for (int p = 0; p < panels; ++p) {
      coded[p] =
          typename Ops::Panel(place.b + p * block.panel_bytes, block.patches[place.panel + p]);
    }
    // The lists of patches are a stream too thin for processors to foresee.
    if (place.panel + panels < block.num_panels) {
      Ops::prefetch_near(reinterpret_cast<const char*>(block.patches[place.panel + panels]));
    }
    Vec acc[rows][kVectors];
    Plain::template clear<rows, kVectors>(acc);
    const uint32_t num_units = static_cast<uint32_t>(block.num_steps / kUnitSteps);
    for (uint32_t unit = 0; unit < num_units; ++unit) {
#pragma GCC unroll 4
      for (int p = 0; p < panels; ++p) {
#pragma GCC unroll 4
        for (int line = 0; line < kUnitBytes; line += 64) {
          Plain::template ask_ahead<prefetch, panels>(coded[p].unit() + line);
        }
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part) {
          Words w[2 * kPartVectors];
          coded[p].next(unit, part, w);
          if constexpr (kKeep) store_part(keep, part, w);
          multiply_part<rows>(a, w, (p * kParts + part) * kPartVectors, acc);
        }
      }
      if constexpr (kKeep) {
        keep += kUnitSteps * kPanelStepBytes;
        Ops::prefetch(fetch);
        fetch += 64;
      }
      a += kUnitSteps * kStepBytes;
    }
    Plain::template finish<rows, kVectors>(block, place.row, place.panel * kPanelColumns, acc);
  }

  static inline __attribute__((always_inline)) void store_part(char* keep, int part,
                                                               const Words (&w)[4]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      Ops::store_words(keep + i / kPartVectors * kPanelStepBytes +
                           (part * kPartVectors + i % kPartVectors) * kVectorBytes,
                       w[i]);
    }
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
