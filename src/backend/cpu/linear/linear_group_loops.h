// The loops over row tiles, panels and groups of code_panels.h, written once over the vector
// operations of an instruction set (see linear_loops.h) and the kinds of codes. `Ops` gives
// moreover
//   kDecodesAlong                   whether there are registers to decode codes where they are
//                                   used, for few rows: else panels are decoded one by one
//   Words, weights(words)           a vector of a plain step; the same as a B
//   store_words(p, words)           to an aligned address
//   Table, load_table(values)       what decode() needs of CodePanels::values
//   decode<kind, part>(unit, table, w)   steps 2 part and 2 part + 1 of a unit
//   load_half(p), load_bf16(p), load_int8(p)   as a Vec of float32
//   broadcast(x), multiply(v, w), divide(v, w), fused_multiply_add(v, w, u) = v w + u
#pragma once

#include "backend/cpu/linear/code_panels.h"
#include "backend/cpu/linear/linear_loops.h"

namespace nanovllm {

template <typename Ops>
class GroupLoops : private LinearLoops<Ops> {
 public:
  static void run(const LinearBlock& block) {
    if constexpr (Ops::kDecodesAlong) {
      if (block.num_tiles == 1) return one_tile(block);
    }
    several_tiles(block);
  }

  // See LinearKernels::decode_rounded.
  static void decode_rounded(const CodePanels& shape, const char* b, int64_t num_steps, char* out) {
    switch (shape.kind) {
      case CodeKind::k4:
        return decode_rounded_of<CodeKind::k4>(shape, b, num_steps, out);
      case CodeKind::k5:
        return decode_rounded_of<CodeKind::k5>(shape, b, num_steps, out);
      case CodeKind::k6:
        return decode_rounded_of<CodeKind::k6>(shape, b, num_steps, out);
      case CodeKind::kInt8:
        return decode_rounded_of<CodeKind::kInt8>(shape, b, num_steps, out);
      case CodeKind::kE4M3:
        return decode_rounded_of<CodeKind::kE4M3>(shape, b, num_steps, out);
      case CodeKind::kBFloat16:
        break;
    }
  }

 private:
  using Plain = LinearLoops<Ops>;
  using typename Plain::Vec;
  using Words = typename Ops::Words;
  using Plain::kVectorBytes;
  using Plain::kVectorsPerPanel;
  static constexpr int kParts = 4;  // of a unit
  static constexpr int kStepsOfPart = kCodeUnitSteps / kParts;

  // Rows from `row` on with the panel that lies at `b`, and what is prefetched meanwhile,
  // kFetchBytes a unit; or null.
  struct Place {
    int64_t row;
    int64_t panel;
    const char* b;
    const char* fetch = nullptr;
  };
  static constexpr int kFetchBytes = 256;
  using TileFn = void (*)(const LinearBlock&, const CodePanels&, const Place&);

  // Few rows: codes stream in from memory, and are decoded into registers.
  static void one_tile(const LinearBlock& block) {
    const int64_t rows = rows_of(block.tiling, block.first_tile);
    const TileFn fn = find_of_kind(block.codes->kind, rows);
    Place place{first_row(block.tiling, block.first_tile), 0, block.b};
    for (; place.panel < block.num_panels; ++place.panel) {
      fn(block, *block.codes, place);
      place.b += block.panel_bytes;
    }
  }

  // A panel is decoded once for as many tiles as a cache holds, which do the same sums as few rows.
  static void several_tiles(const LinearBlock& block) {
    const int64_t end = block.first_tile + block.num_tiles;
    // More than of plain panels: to decode one again takes longer than to read more rows from the
    // third-level cache.
    const int64_t group = 4 * Plain::tiles_at_once(block);
    for (int64_t first = block.first_tile; first < end; first += group) {
      const int64_t last = first + group < end ? first + group : end;
      for (int64_t panel = 0; panel < block.num_panels; ++panel) {
        decode_panel(block, block.b + panel * block.panel_bytes);
        // The next panel comes from memory while this one is multiplied.
        const char* fetch = block.b + (panel + 1) * block.panel_bytes;
        const char* const fetch_end = fetch + block.panel_bytes;
        for (int64_t tile = first; tile < last; ++tile) {
          find<CodeKind::kBFloat16>(rows_of(block.tiling, tile))(
              block, *block.decoded,
              {first_row(block.tiling, tile), panel, block.scratch,
               fetch < fetch_end ? fetch : nullptr});
          fetch += block.codes->num_units * kFetchBytes;
        }
      }
    }
  }

  static TileFn find_of_kind(CodeKind kind, int64_t rows) {
    switch (kind) {
      case CodeKind::k4:
        return find<CodeKind::k4>(rows);
      case CodeKind::k5:
        return find<CodeKind::k5>(rows);
      case CodeKind::k6:
        return find<CodeKind::k6>(rows);
      case CodeKind::kInt8:
        return find<CodeKind::kInt8>(rows);
      case CodeKind::kE4M3:
        return find<CodeKind::kE4M3>(rows);
      case CodeKind::kBFloat16:
        break;
    }
    return find<CodeKind::kBFloat16>(rows);
  }

  template <CodeKind kind, int rows = Ops::kMaxRows>
  static TileFn find(int64_t wanted) {
    if constexpr (rows > 1) {
      if (wanted < rows) return find<kind, rows - 1>(wanted);
    }
    return &tile<kind, rows>;
  }

  // `rows` rows by a panel, as many Vecs of columns at once as there are registers for.
  template <CodeKind kind, int rows>
  static void tile(const LinearBlock& block, const CodePanels& shape, const Place& place) {
    // Where that leaves enough of them to work on, each has registers for its sum and its total.
    constexpr bool kHalves = Ops::kDecodesAlong && kind == CodeKind::kBFloat16;
    constexpr int kFit = Ops::vectors(rows) / (kHalves ? 2 : 1);
    constexpr int kAtOnce = kFit < kVectorsPerPanel ? kFit : kVectorsPerPanel;
    for (int v = 0; v < kVectorsPerPanel; v += kAtOnce) {
      part<kind, rows, kAtOnce>(block, shape, place, v);
    }
  }

  template <CodeKind kind, int rows, int vectors>
  static void part(const LinearBlock& block, const CodePanels& shape, const Place& place,
                   int first) {
    const char* a = block.a + place.row * block.a_row_bytes;
    const float* sums = block.sums + place.row * shape.num_groups;
    const char* b = place.b;
    const typename Ops::Table table = Ops::load_table(shape.values);
    const char* fetch = first == 0 ? place.fetch : nullptr;
    const int64_t ahead = Plain::is_foreseen(block, rows) ? 0 : kAheadBytes;
    Vec total[rows][vectors];
    Plain::template clear<rows, vectors>(total);
    int64_t units_left = shape.num_units;
    for (int64_t group = 0; group < shape.num_groups;) {
      const char* header = b;
      // All of it, though most is needed later: a processor foresees what is read in order.
      if constexpr (kind != CodeKind::kBFloat16) ask(header + ahead, shape.header_bytes);
      b += shape.header_bytes;
      const int64_t left = shape.num_groups - group;
      const int64_t groups = left < shape.block_groups ? left : shape.block_groups;
      for (int64_t in_block = 0; in_block < groups; ++in_block, ++group) {
        const int64_t units = units_left < shape.group_units ? units_left : shape.group_units;
        units_left -= units;
        Vec acc[rows][vectors];
        Plain::template clear<rows, vectors>(acc);
        for (int64_t unit = 0; unit < units; ++unit) {
          if constexpr (kind == CodeKind::kBFloat16) {
            if (fetch != nullptr) {
#pragma GCC unroll 4
              for (int line = 0; line < kFetchBytes; line += 64) Ops::prefetch(fetch + line);
              fetch += kFetchBytes;
            }
          } else if (ahead != 0) {
            ask(b + ahead, kUnitBytes<kind>);
          }
          multiply_unit<kind, rows, vectors>(a, b, table, first, acc);
          a += kCodeUnitSteps * rows * Ops::kRowBytes;
          b += kUnitBytes<kind>;
        }
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
          const Scale scale = scale_of(shape, header, in_block, first + v);
#pragma GCC unroll 16
          for (int r = 0; r < rows; ++r) {
            total[r][v] = Ops::fused_multiply_add(scale.scale, acc[r][v], total[r][v]);
          }
          if (!shape.has_offsets) continue;
#pragma GCC unroll 16
          for (int r = 0; r < rows; ++r) {
            const Vec sum = Ops::broadcast(sums[r * shape.num_groups + group]);
            total[r][v] = Ops::fused_multiply_add(scale.offset, sum, total[r][v]);
          }
        }
      }
    }
    Plain::template finish<rows, vectors>(block, place.row,
                                          place.panel * kPanelColumns + first * Ops::kLanes, total);
  }

  template <CodeKind kind>
  static constexpr int kUnitBytes = kind == CodeKind::k4          ? 256
                                    : kind == CodeKind::k5        ? 320
                                    : kind == CodeKind::k6        ? 384
                                    : kind == CodeKind::kBFloat16 ? 1024
                                                                  : 512;
  // Ahead of what is read from memory; see LinearLoops::ask_ahead.
  static constexpr int kAheadBytes = 8192;
  static inline __attribute__((always_inline)) void ask(const char* p, int64_t bytes) {
#pragma GCC unroll 8
    for (int64_t line = 0; line < bytes; line += 64) Ops::prefetch_near(p + line);
  }

  template <CodeKind kind, int rows, int vectors>
  static inline __attribute__((always_inline)) void multiply_unit(const char* a, const char* b,
                                                                  const typename Ops::Table& table,
                                                                  int first,
                                                                  Vec (&acc)[rows][vectors]) {
    if constexpr (kind == CodeKind::kBFloat16) {
      // Not unrolled, so that code stays small: nothing is gained.
#pragma GCC unroll 1
      for (int s = 0; s < kCodeUnitSteps; ++s) {
        const char* at = b + s * kPanelStepBytes + first * kVectorBytes;
        typename Ops::B w[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) w[v] = Ops::load_b(at + v * kVectorBytes);
        multiply_step<rows, vectors>(a + s * rows * Ops::kRowBytes, w, acc);
      }
    } else {
      multiply_part<kind, 0>(a, b, table, acc);
      multiply_part<kind, 1>(a, b, table, acc);
      multiply_part<kind, 2>(a, b, table, acc);
      multiply_part<kind, 3>(a, b, table, acc);
    }
  }

  template <CodeKind kind, int part, int rows, int vectors>
  static inline __attribute__((always_inline)) void multiply_part(const char* a, const char* b,
                                                                  const typename Ops::Table& table,
                                                                  Vec (&acc)[rows][vectors]) {
    static_assert(vectors == kVectorsPerPanel);
    Words words[kStepsOfPart * vectors];
    Ops::template decode<kind, part>(b, table, words);
#pragma GCC unroll 2
    for (int step = 0; step < kStepsOfPart; ++step) {
      const int s = part * kStepsOfPart + step;
      typename Ops::B w[vectors];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) w[v] = Ops::weights(words[step * vectors + v]);
      multiply_step<rows, vectors>(a + s * rows * Ops::kRowBytes, w, acc);
    }
  }

  template <int rows, int vectors>
  static inline __attribute__((always_inline)) void multiply_step(const char* a,
                                                                  const typename Ops::B* w,
                                                                  Vec (&acc)[rows][vectors]) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const typename Ops::A x = Ops::template load_a<rows>(a + r * 4);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) acc[r][v] = Ops::multiply_add(acc[r][v], x, w[v]);
    }
  }

  struct Scale {
    Vec scale, offset;
  };

  // Of a panel's Vec `v` in the block's group `group`, for a product: what is taken off for zeros
  // is their product with the scale.
  static inline __attribute__((always_inline)) Scale scale_of(const CodePanels& shape,
                                                              const char* header, int64_t group,
                                                              int v) {
    Scale got = stored_scale(shape, header, group, v);
    if (shape.offsets_are_zeros) {
      got.offset = Ops::multiply(Ops::multiply(got.scale, got.offset), Ops::broadcast(-1.0f));
    }
    return got;
  }

  static inline __attribute__((always_inline)) Scale stored_scale(const CodePanels& shape,
                                                                  const char* header, int64_t group,
                                                                  int v) {
    const int column = v * Ops::kLanes;
    const int bytes = shape.scales == ScaleKind::kFloat32 ? 4 : 2;
    const char* at = header + column * bytes;
    Scale got{load_scale(shape.scales, at), Ops::zero()};
    if (shape.has_offsets) got.offset = load_scale(shape.scales, at + kPanelColumns * bytes);
    if (shape.is_super) {
      const int vectors = shape.has_offsets ? 2 : 1;
      const char* code =
          header + (kPanelColumns * bytes + group * kPanelColumns) * vectors + column;
      got.scale = Ops::multiply(got.scale, Ops::load_int8(code));
      if (shape.has_offsets) {
        // Changing the sign comes last, because a compiler may fuse it with an addition.
        const Vec minimum = Ops::multiply(got.offset, Ops::load_int8(code + kPanelColumns));
        got.offset = Ops::multiply(minimum, Ops::broadcast(-1.0f));
      }
      return got;
    }
    if (shape.divides_by_factor) {
      got.scale = Ops::divide(got.scale, Ops::broadcast(shape.factor));
    } else if (shape.factor != 1) {
      got.scale = Ops::multiply(got.scale, Ops::broadcast(shape.factor));
    }
    return got;
  }

  static Vec load_scale(ScaleKind kind, const char* p) {
    switch (kind) {
      case ScaleKind::kFloat16:
        return Ops::load_half(p);
      case ScaleKind::kBFloat16:
        return Ops::load_bf16(p);
      case ScaleKind::kFloat32:
        break;
    }
    return Ops::load(reinterpret_cast<const float*>(p));
  }

  static void decode_panel(const LinearBlock& block, const char* b) {
    const CodePanels& shape = *block.codes;
    switch (shape.kind) {
      case CodeKind::k4:
        return decode_panel_of<CodeKind::k4>(block, b);
      case CodeKind::k5:
        return decode_panel_of<CodeKind::k5>(block, b);
      case CodeKind::k6:
        return decode_panel_of<CodeKind::k6>(block, b);
      case CodeKind::kInt8:
        return decode_panel_of<CodeKind::kInt8>(block, b);
      case CodeKind::kE4M3:
        return decode_panel_of<CodeKind::kE4M3>(block, b);
      case CodeKind::kBFloat16:
        break;
    }
  }

  // Into block.scratch, a panel of block.decoded.
  template <CodeKind kind>
  static void decode_panel_of(const LinearBlock& block, const char* b) {
    const CodePanels& shape = *block.codes;
    const typename Ops::Table table = Ops::load_table(shape.values);
    char* out = block.scratch;
    int64_t units_left = shape.num_units;
    for (int64_t group = 0; group < shape.num_groups;) {
      const char* header = b;
      ask(header + kAheadBytes, shape.header_bytes);
      b += shape.header_bytes;
      const int64_t left = shape.num_groups - group;
      const int64_t groups = left < shape.block_groups ? left : shape.block_groups;
      for (int64_t in_block = 0; in_block < groups; ++in_block, ++group) {
        for (int v = 0; v < kVectorsPerPanel; ++v) {
          const Scale scale = scale_of(shape, header, in_block, v);
          char* at = out + v * Ops::kLanes * 4;
          Ops::store(reinterpret_cast<float*>(at), scale.scale);
          if (!shape.has_offsets) continue;
          Ops::store(reinterpret_cast<float*>(at + kPanelColumns * 4), scale.offset);
        }
        out += block.decoded->header_bytes;
        const int64_t units = units_left < shape.group_units ? units_left : shape.group_units;
        units_left -= units;
        for (int64_t unit = 0; unit < units; ++unit) {
          decode_part<kind, 0>(b, table, out);
          decode_part<kind, 1>(b, table, out);
          decode_part<kind, 2>(b, table, out);
          decode_part<kind, 3>(b, table, out);
          ask(b + kAheadBytes, kUnitBytes<kind>);
          b += kUnitBytes<kind>;
          out += kCodeUnitSteps * kPanelStepBytes;
        }
      }
    }
  }

  template <CodeKind kind, int part>
  static inline __attribute__((always_inline)) void decode_part(const char* b,
                                                                const typename Ops::Table& table,
                                                                char* out) {
    Words words[kStepsOfPart * kVectorsPerPanel];
    Ops::template decode<kind, part>(b, table, words);
#pragma GCC unroll 8
    for (int i = 0; i < kStepsOfPart * kVectorsPerPanel; ++i) {
      Ops::store_words(out + part * kStepsOfPart * kPanelStepBytes + i * kVectorBytes, words[i]);
    }
  }

  template <CodeKind kind>
  static void decode_rounded_of(const CodePanels& shape, const char* b, int64_t num_steps,
                                char* out) {
    const typename Ops::Table table = Ops::load_table(shape.values);
    char* const end = out + num_steps * kPanelStepBytes;
    int64_t units_left = shape.num_units;
    for (int64_t group = 0; group < shape.num_groups;) {
      const char* header = b;
      b += shape.header_bytes;
      const int64_t left = shape.num_groups - group;
      const int64_t groups = left < shape.block_groups ? left : shape.block_groups;
      for (int64_t in_block = 0; in_block < groups; ++in_block, ++group) {
        Scale scales[kVectorsPerPanel];
        for (int v = 0; v < kVectorsPerPanel; ++v) {
          scales[v] = stored_scale(shape, header, in_block, v);
        }
        const int64_t units = units_left < shape.group_units ? units_left : shape.group_units;
        units_left -= units;
        for (int64_t unit = 0; unit < units; ++unit) {
          decode_part<kind, 0>(b, table, out);
          decode_part<kind, 1>(b, table, out);
          decode_part<kind, 2>(b, table, out);
          decode_part<kind, 3>(b, table, out);
          b += kUnitBytes<kind>;
          for (int step = 0; step < kCodeUnitSteps; ++step) {
            for (int v = 0; v < kVectorsPerPanel; ++v, out += kVectorBytes) {
              const Words words = Ops::load_words(out);
              Ops::store_words(out, Ops::rounded_pairs(scaled(shape, scales[v], Ops::even(words)),
                                                       scaled(shape, scales[v], Ops::odd(words))));
            }
          }
        }
      }
    }
    for (; out < end; out += kVectorBytes) Ops::store_words(out, Words{});
  }

  // In the operations of MatrixDecoder::decode.
  static Vec scaled(const CodePanels& shape, const Scale& scale, Vec value) {
    if (shape.offsets_are_zeros) value = Ops::subtract(value, scale.offset);
    value = Ops::rounded_product(scale.scale, value);
    const bool adds = shape.has_offsets && !shape.offsets_are_zeros;
    return adds ? Ops::add(value, scale.offset) : value;
  }
};

}  // namespace nanovllm
