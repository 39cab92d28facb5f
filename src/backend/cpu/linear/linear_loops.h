// The loops over row tiles, panels and steps, written once over the vector operations of an
// instruction set. Include it only where `Ops` is a type of an unnamed namespace: then every
// instantiation belongs to its own file and none can leak into code for lesser machines.
//
// Ops gives
//   Vec, A, B         an accumulator, a broadcast activation, a piece of a weight step
//   kLanes            columns of a Vec
//   kRowBytes         bytes of packed activation a row and step
//   kMaxRows          rows of the largest tile
//   kAskingRows       fewest rows of a tile that is too slow for WeightStreams::kOneForeseen
//   vectors(rows)     how many Vecs of columns a tile of so many rows takes at once
//   zero(), load_a<rows>(p), load_b(p), multiply_add(acc, a, b)
//   prefetch(p), prefetch_near(p)                     into the second-level cache, into the first;
//                                                     always inlined, for GCC drops calls of them
//   load(p), store(p, v), add(v, w)                   of whole Vecs of float32
//   store_f32(p, lanes, v), store_bf16(p, lanes, v)   of the first `lanes`
#pragma once

#include "backend/cpu/linear/linear_kernels.h"

namespace nanovllm {

template <typename Ops>
class LinearLoops {
 public:
  static void run(const LinearBlock& block) {
    if (block.num_tiles == 1) {
      one_tile(block);
    } else {
      several_tiles(block);
    }
  }

  // Adds the bias to [rows][columns] results, of which rows are `stride` apart, and stores those
  // whose columns exist.
  __attribute__((noinline)) static void write_out(const LinearBlock& block, int64_t row, int rows,
                                                  int64_t column, int columns, const float* results,
                                                  int64_t stride) {
    const int64_t left = block.num_columns - column;
    const int existing = left < columns ? static_cast<int>(left) : columns;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < existing; c += Ops::kLanes) {
        const int lanes = existing - c < Ops::kLanes ? existing - c : Ops::kLanes;
        auto value = Ops::load(results + r * stride + c);
        if (block.bias != nullptr) value = Ops::add(value, Ops::load(block.bias + column + c));
        const int64_t index = (row + r) * block.out_stride + column + c;
        if (block.out_is_bf16) {
          Ops::store_bf16(block.out + index * 2, lanes, value);
        } else {
          Ops::store_f32(block.out + index * 4, lanes, value);
        }
      }
    }
  }

 protected:
  using Vec = typename Ops::Vec;
  static constexpr int kVectorsPerPanel = kPanelColumns / Ops::kLanes;
  static constexpr int kVectorBytes = kPanelStepBytes / kVectorsPerPanel;
  // Of packed activations, that go through a panel one after another: a part of the second-level
  // cache that leaves room for the weights.
  static constexpr int64_t kGroupBytes = 256 << 10;

  enum class Prefetch {
    kNone,
    kStream,   // what comes next in the only stream of weights
    kStreams,  // the same of several streams, or of one where several are best
    kPointer   // what place.prefetch points to, a line a step
  };

  // A tile's place, its first panel's weights, and what to prefetch meanwhile.
  struct Place {
    int64_t row;
    int64_t panel;
    const char* b;
    const char* prefetch;
  };
  using TileFn = void (*)(const LinearBlock&, const Place&);

  // Few rows: the weights stream in from memory at its own speed.
  static void one_tile(const LinearBlock& block) {
    const int64_t rows = rows_of(block.tiling, block.first_tile);
    all_panels(block,
               is_foreseen(block, rows) ? find<Panels::kOne, Prefetch::kNone>(rows)
                                        : find<Panels::kOne, Prefetch::kStream>(rows),
               find<Panels::kSeveral, Prefetch::kStreams>(rows),
               find<Panels::kOne, Prefetch::kStreams>(rows));
  }

  static bool is_foreseen(const LinearBlock& block, int64_t rows) {
    return block.streams == WeightStreams::kOneForeseen && rows < Ops::kAskingRows;
  }

  // The first tile with all panels: one after another by the first function if that is how this
  // processor reads best, else several at once by the second as long as there are so many, and the
  // others by the third.
  static void all_panels(const LinearBlock& block, TileFn one, TileFn several, TileFn single) {
    const bool one_stream = block.streams != WeightStreams::kSeveral;
    const TileFn alone = one_stream ? one : single;
    const int at_once = one_stream ? 1 : panels_at_once(rows_of(block.tiling, block.first_tile));
    Place place{first_row(block.tiling, block.first_tile), 0, block.b, nullptr};
    while (place.panel < block.num_panels) {
      const int taken = place.panel + at_once <= block.num_panels ? at_once : 1;
      (taken > 1 ? several : alone)(block, place);
      place.panel += taken;
      place.b += taken * block.panel_bytes;
    }
  }

  // Asks for the line that lies ahead of p in the stream of one of so many panels. Memory takes
  // about 100 ns to answer, in which a core that reads 40 GB/s consumes 4 KiB, and varies.
  template <Prefetch prefetch, int panels>
  static void ask_ahead(const char* p) {
    // Cores of a Zen 4 and of a Zen 5 take less of one stream into the second-level cache than into
    // the first, and a few percent less from 4 KiB ahead.
    if constexpr (prefetch == Prefetch::kStream) Ops::prefetch_near(p + 8192);
    // A core of a Xeon does not care whether four streams, as AVX-512 has them for one to three
    // rows, share the distance.
    if constexpr (prefetch == Prefetch::kStreams) Ops::prefetch(p + (panels >= 4 ? 1024 : 4096));
  }

  // More rows: while some tiles go through a panel, which then is in a cache, they fetch the next
  // one from memory, so that computing and reading overlap.
  static void several_tiles(const LinearBlock& block) {
    const int64_t end = block.first_tile + block.num_tiles;
    const int64_t group = tiles_at_once(block);
    for (int64_t first = block.first_tile; first < end; first += group) {
      const int64_t last = first + group < end ? first + group : end;
      for (int64_t panel = 0; panel < block.num_panels; ++panel) {
        const char* b = block.b + panel * block.panel_bytes;
        const char* next = b + block.panel_bytes;
        for (int64_t tile = first; tile < last; ++tile) {
          // Each of the first two tiles fetches a half of it, a line a step.
          const bool fetch = tile < block.first_tile + 2;
          const char* half = tile == block.first_tile ? next : next + block.panel_bytes / 2;
          one_panel(block, tile, panel, b, fetch ? half : nullptr);
        }
      }
    }
  }

  static int64_t tiles_at_once(const LinearBlock& block) {
    const int64_t fit = kGroupBytes / (rows_of(block.tiling, block.first_tile) * block.a_row_bytes);
    return fit < 2 ? 2 : fit;
  }

  // `prefetch` may be null.
  static void one_panel(const LinearBlock& block, int64_t tile, int64_t panel, const char* b,
                        const char* prefetch) {
    const int64_t rows = rows_of(block.tiling, tile);
    const TileFn fn = prefetch != nullptr ? find<Panels::kOne, Prefetch::kPointer>(rows)
                                          : find<Panels::kOne, Prefetch::kNone>(rows);
    fn(block, {first_row(block.tiling, tile), panel, b, prefetch});
  }

  enum class Panels { kOne, kSeveral };

  static constexpr int panels_at_once(int64_t rows) {
    const int vectors = Ops::vectors(static_cast<int>(rows));
    return vectors > kVectorsPerPanel ? vectors / kVectorsPerPanel : 1;
  }

  template <Panels panels, Prefetch prefetch, int rows = Ops::kMaxRows>
  static TileFn find(int64_t wanted) {
    if constexpr (rows > 1) {
      if (wanted < rows) return find<panels, prefetch, rows - 1>(wanted);
    }
    if constexpr (Ops::vectors(rows) < kVectorsPerPanel) {
      return &panel_in_parts<rows, prefetch>;
    } else if constexpr (panels == Panels::kSeveral) {
      return &tile<rows, Ops::vectors(rows), prefetch>;
    } else {
      return &tile<rows, kVectorsPerPanel, prefetch>;
    }
  }

  template <int rows, Prefetch prefetch>
  static void panel_in_parts(const LinearBlock& block, const Place& place) {
    constexpr int kAtOnce = Ops::vectors(rows);
    tile<rows, kAtOnce, prefetch>(block, place);
    for (int v = kAtOnce; v < kVectorsPerPanel; v += kAtOnce) {
      part<rows, kAtOnce, Prefetch::kNone>(block, place, v);
    }
  }

  template <int rows, int vectors, Prefetch prefetch>
  static void tile(const LinearBlock& block, const Place& place) {
    part<rows, vectors, prefetch>(block, place, 0);
  }

  // `rows` rows by `vectors` Vecs of columns, from Vec `first` of a panel on. The Vecs are whole
  // panels or lie within one.
  template <int rows, int vectors, Prefetch prefetch>
  static void part(const LinearBlock& block, const Place& place, int first) {
    const int64_t panel_bytes = block.num_steps * kPanelStepBytes;
    const char* a = block.a + place.row * block.a_row_bytes;
    const char* b = place.b + first * kVectorBytes;
    const char* fetch = place.prefetch;
    Vec acc[rows][vectors];
    clear<rows, vectors>(acc);
    for (int64_t s = 0; s < block.num_steps; ++s) {
      typename Ops::B weights[vectors];
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) {
        const char* p =
            b + (v / kVectorsPerPanel) * panel_bytes + (v % kVectorsPerPanel) * kVectorBytes;
        weights[v] = Ops::load_b(p);
        if ((v * kVectorBytes) % 64 == 0) ask_ahead<prefetch, vectors / kVectorsPerPanel>(p);
      }
      if constexpr (prefetch == Prefetch::kPointer) {
        Ops::prefetch(fetch);
        fetch += 64;
      }
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const typename Ops::A x = Ops::template load_a<rows>(a + r * 4);
#pragma GCC unroll 16
        for (int v = 0; v < vectors; ++v) acc[r][v] = Ops::multiply_add(acc[r][v], x, weights[v]);
      }
      a += rows * Ops::kRowBytes;
      b += kPanelStepBytes;
    }
    finish<rows, vectors>(block, place.row, place.panel * kPanelColumns + first * Ops::kLanes, acc);
  }

  template <int rows, int vectors>
  static void clear(Vec (&acc)[rows][vectors]) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) acc[r][v] = Ops::zero();
    }
  }

  // Through memory, so that what follows exists once and not unrolled in every instantiation.
  template <int rows, int vectors>
  static void finish(const LinearBlock& block, int64_t row, int64_t column,
                     const Vec (&acc)[rows][vectors]) {
    alignas(64) float results[rows * vectors * Ops::kLanes];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) {
        Ops::store(results + (r * vectors + v) * Ops::kLanes, acc[r][v]);
      }
    }
    constexpr int kColumns = vectors * Ops::kLanes;
    write_out(block, row, rows, column, kColumns, results, kColumns);
  }
};

}  // namespace nanovllm
