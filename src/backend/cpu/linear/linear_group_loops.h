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

#include "backend/cpu/linear/code_blocks.h"
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
    }
  }

 private:
  using Plain = LinearLoops<Ops>;
  using typename Plain::Vec;
  using Words = typename Ops::Words;
  using Group = CodeGroup<const char>;
  using Plain::kVectorBytes;
  using Plain::kVectorsPerPanel;
  static constexpr int kParts = 4;  // of a unit
  static constexpr int kStepsOfPart = kCodeUnitSteps / kParts;

  // Rows from `row` on with the panel that lies at `b`.
  struct Place {
    int64_t row;
    int64_t panel;
    const char* b;
  };
  using TileFn = void (*)(const LinearBlock&, const Place&);

  // Few rows: codes stream in from memory, and are decoded into registers.
  static void one_tile(const LinearBlock& block) {
    const int64_t rows = rows_of(block.tiling, block.first_tile);
    const TileFn fn = find_of_kind(block.codes->kind, rows);
    Place place{first_row(block.tiling, block.first_tile), 0, block.b};
    for (; place.panel < block.num_panels; ++place.panel) {
      fn(block, place);
      place.b += block.panel_bytes;
    }
  }

  // Some neighbouring blocks of all panels. Between the first and the last of them, the products so
  // far are in block.totals.
  struct Chunk {
    int64_t first_unit;
    int64_t num_units;
    int64_t first_group;
    int64_t num_groups;
    int64_t bytes;  // in a panel, unless it is the last
    bool is_first;
    bool is_last;
  };

  // A chunk of a panel is decoded once for all tiles, which do the same sums as few rows. It stays
  // in the second-level cache, and so do many of the activations that meet it and the same chunk of
  // the other panels.
  static void several_tiles(const LinearBlock& block) {
    const CodePanels& shape = *block.codes;
    const int64_t block_units = shape.block_groups * shape.group_units;
    const int64_t num_blocks = block.num_tiles == 1 ? shape.num_units : blocks_at_once(block_units);
    Chunk chunk = {};
    chunk.bytes = num_blocks * (shape.header_bytes + block_units * shape.unit_bytes);
    const char* b = block.b;
    while (!chunk.is_last) {
      chunk.first_unit += chunk.num_units;
      chunk.first_group += chunk.num_groups;
      chunk.num_units = num_blocks * block_units;
      chunk.num_groups = num_blocks * shape.block_groups;
      chunk.is_first = chunk.first_unit == 0;
      chunk.is_last = chunk.first_unit + chunk.num_units >= shape.num_units;
      if (chunk.is_last) {
        chunk.num_units = shape.num_units - chunk.first_unit;
        chunk.num_groups = shape.num_groups - chunk.first_group;
      }
      chunk_of_panels(block, chunk, b);
      b += chunk.bytes;
    }
  }

  // The chunk lies at `b` in the first panel.
  static void chunk_of_panels(const LinearBlock& block, const Chunk& chunk, const char* b) {
    const int64_t end = block.first_tile + block.num_tiles;
    float* totals = block.totals;
    for (int64_t panel = 0; panel < block.num_panels; ++panel) {
      decode_chunk(block, chunk, b);
      b += block.panel_bytes;
      // What is next comes from memory while this is multiplied.
      const bool is_last = panel + 1 == block.num_panels;
      const char* fetch = is_last ? b - block.num_panels * block.panel_bytes + chunk.bytes : b;
      const char* const fetch_end = fetch + chunk.bytes;
      for (int64_t tile = block.first_tile; tile < end; ++tile) {
        const int64_t rows = rows_of(block.tiling, tile);
        find_decoded(rows)(
            block, chunk,
            {first_row(block.tiling, tile), panel, totals, fetch < fetch_end ? fetch : nullptr});
        fetch += chunk.num_units * kFetchBytes;
        totals += rows * kPanelColumns;
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
    }
    return nullptr;
  }

  template <CodeKind kind, int rows = Ops::kMaxRows>
  static TileFn find(int64_t wanted) {
    if constexpr (rows > 1) {
      if (wanted < rows) return find<kind, rows - 1>(wanted);
    }
    return &tile<kind, rows>;
  }

  // `rows` rows by a panel.
  template <CodeKind kind, int rows>
  static void tile(const LinearBlock& block, const Place& place) {
    constexpr int kVectors = kVectorsPerPanel;
    const CodePanels& shape = *block.codes;
    const char* a = block.a + place.row * block.a_row_bytes;
    const float* sums = block.sums + place.row * shape.num_groups;
    const typename Ops::Table table = Ops::load_table(shape.values);
    const int64_t ahead = Plain::is_foreseen(block, rows) ? 0 : kAheadBytes;
    Vec total[rows][kVectors];
    Plain::template clear<rows, kVectors>(total);
    const auto add = [&](const Group& group) __attribute__((always_inline)) {
      // All of it, though most is needed later: a processor foresees what is read in order.
      if (group.in_block == 0) ask(group.header + ahead, shape.header_bytes);
      Vec acc[rows][kVectors];
      Plain::template clear<rows, kVectors>(acc);
      const char* b = group.units;
      for (int64_t unit = 0; unit < group.num_units; ++unit) {
        if (ahead != 0) ask(b + ahead, kUnitBytes<kind>);
        multiply_part<kind, 0>(a, b, table, acc);
        multiply_part<kind, 1>(a, b, table, acc);
        multiply_part<kind, 2>(a, b, table, acc);
        multiply_part<kind, 3>(a, b, table, acc);
        a += kCodeUnitSteps * rows * Ops::kRowBytes;
        b += kUnitBytes<kind>;
      }
      Scale scales[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) scales[v] = scale_of(group, v);
      add_group<rows, kVectors>(shape, scales, acc, sums, total);
      sums += rows;
    };
    for_each_group(shape, place.b, shape.num_groups, shape.num_units, add);
    Plain::template finish<rows, kVectors>(block, place.row, place.panel * kPanelColumns, total);
  }

  struct Scale {
    Vec scale, offset;
  };

  // A group's products, of the activations that have such sums, to the totals.
  template <int rows, int vectors>
  static inline __attribute__((always_inline)) void add_group(const CodePanels& shape,
                                                              const Scale (&scales)[vectors],
                                                              const Vec (&acc)[rows][vectors],
                                                              const float* sums,
                                                              Vec (&total)[rows][vectors]) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        total[r][v] = Ops::fused_multiply_add(scales[v].scale, acc[r][v], total[r][v]);
      }
      if (!shape.has_offsets) continue;
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const Vec sum = Ops::broadcast(sums[r]);
        total[r][v] = Ops::fused_multiply_add(scales[v].offset, sum, total[r][v]);
      }
    }
  }

  // Rows from `row` on with a decoded chunk of a panel: where their totals so far are, and what is
  // prefetched meanwhile, kFetchBytes a unit; or null.
  struct DecodedPlace {
    int64_t row;
    int64_t panel;
    float* totals;
    const char* fetch;
  };
  static constexpr int kFetchBytes = 256;
  using DecodedFn = void (*)(const LinearBlock&, const Chunk&, const DecodedPlace&);

  template <int rows = Ops::kMaxRows>
  static DecodedFn find_decoded(int64_t wanted) {
    if constexpr (rows > 1) {
      if (wanted < rows) return find_decoded<rows - 1>(wanted);
    }
    return &decoded_tile<rows>;
  }

  // `rows` rows by a panel, as many Vecs of columns at once as there are registers for.
  template <int rows>
  static void decoded_tile(const LinearBlock& block, const Chunk& chunk, const DecodedPlace& at) {
    // Where that leaves enough of them to work on, each has registers for its sum and its total.
    constexpr int kFit = Ops::vectors(rows) / (Ops::kDecodesAlong ? 2 : 1);
    constexpr int kAtOnce = kFit < kVectorsPerPanel ? kFit : kVectorsPerPanel;
    for (int v = 0; v < kVectorsPerPanel; v += kAtOnce) {
      decoded_part<rows, kAtOnce>(block, chunk, at, v);
    }
  }

  template <int rows, int vectors>
  static void decoded_part(const LinearBlock& block, const Chunk& chunk, const DecodedPlace& at,
                           int first) {
    const CodePanels& shape = *block.codes;
    const int64_t stream_bytes = stream_bytes_of(shape, chunk);
    const char* a = block.a + at.row * block.a_row_bytes +
                    chunk.first_unit * kCodeUnitSteps * rows * Ops::kRowBytes;
    const float* sums = block.sums + at.row * shape.num_groups + chunk.first_group * rows;
    const char* b = block.scratch + first * stream_bytes;
    const char* fetch = first == 0 ? at.fetch : nullptr;
    float* const totals = at.totals + first * Ops::kLanes;
    Vec total[rows][vectors];
    Plain::template clear<rows, vectors>(total);
    if (!chunk.is_first) load_totals<rows, vectors>(totals, total);
    int64_t units_left = chunk.num_units;
    for (int64_t group = 0; group < chunk.num_groups; ++group) {
      const int64_t units = units_left < shape.group_units ? units_left : shape.group_units;
      units_left -= units;
      if (fetch != nullptr) {
        ask_far(fetch, units * kFetchBytes);
        fetch += units * kFetchBytes;
      }
      const char* const header = b;
      b += header_bytes_of(shape);
      Vec acc[rows][vectors];
      Plain::template clear<rows, vectors>(acc);
      // Not unrolled, so that code stays small: nothing is gained.
#pragma GCC unroll 1
      for (int64_t steps = units * kCodeUnitSteps; steps > 0; --steps) {
        typename Ops::B w[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) w[v] = Ops::load_b(b + v * stream_bytes);
        multiply_step<rows, vectors>(a, w, acc);
        a += rows * Ops::kRowBytes;
        b += kVectorBytes;
      }
      Scale scales[vectors];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        const auto* scale = reinterpret_cast<const float*>(header + v * stream_bytes);
        scales[v] = {Ops::load(scale), Ops::zero()};
        if (shape.has_offsets) scales[v].offset = Ops::load(scale + Ops::kLanes);
      }
      add_group<rows, vectors>(shape, scales, acc, sums, total);
      sums += rows;
    }
    if (!chunk.is_last) return store_totals<rows, vectors>(total, totals);
    Plain::template finish<rows, vectors>(block, at.row,
                                          at.panel * kPanelColumns + first * Ops::kLanes, total);
  }

  // A decoded chunk is a stream for each Vec of columns: of each group scales, offsets if there are
  // any, then the steps of its units, as of a plain panel.
  static int64_t header_bytes_of(const CodePanels& shape) {
    return (shape.has_offsets ? 2 : 1) * kVectorBytes;
  }
  static int64_t stream_bytes_of(const CodePanels& shape, const Chunk& chunk) {
    return chunk.num_groups * header_bytes_of(shape) +
           chunk.num_units * kCodeUnitSteps * kVectorBytes;
  }

  template <int rows, int vectors>
  static inline __attribute__((always_inline)) void load_totals(const float* from,
                                                                Vec (&total)[rows][vectors]) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        total[r][v] = Ops::load(from + r * kPanelColumns + v * Ops::kLanes);
      }
    }
  }

  template <int rows, int vectors>
  static inline __attribute__((always_inline)) void store_totals(const Vec (&total)[rows][vectors],
                                                                 float* to) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        Ops::store(to + r * kPanelColumns + v * Ops::kLanes, total[r][v]);
      }
    }
  }

  template <CodeKind kind>
  static constexpr int kUnitBytes = kind == CodeKind::k4   ? 256
                                    : kind == CodeKind::k5 ? 320
                                    : kind == CodeKind::k6 ? 384
                                                           : 512;
  // Ahead of what is read from memory; see LinearLoops::ask_ahead.
  static constexpr int kAheadBytes = 8192;
  static inline __attribute__((always_inline)) void ask(const char* p, int64_t bytes) {
#pragma GCC unroll 8
    for (int64_t line = 0; line < bytes; line += 64) Ops::prefetch_near(p + line);
  }

  // Into the second-level cache.
  static void ask_far(const char* p, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += 64) Ops::prefetch(p + line);
  }

  // Of a chunk, unless a block has more. With fewer, totals come and go more often; with more, what
  // is decoded leaves less of the second-level cache to activations.
  static constexpr int64_t kChunkUnits = 128;
  static int64_t blocks_at_once(int64_t block_units) {
    return kChunkUnits > block_units ? kChunkUnits / block_units : 1;
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

  // Of a group's Vec `v`, for a product: what is taken off for zeros is their product with the
  // scale.
  static inline __attribute__((always_inline)) Scale scale_of(const Group& group, int v) {
    Scale got = stored_scale(group, v);
    if (group.shape.offsets_are_zeros) {
      got.offset = Ops::multiply(Ops::multiply(got.scale, got.offset), Ops::broadcast(-1.0f));
    }
    return got;
  }

  static inline __attribute__((always_inline)) Scale stored_scale(const Group& group, int v) {
    const CodePanels& shape = group.shape;
    const int column = v * Ops::kLanes;
    Scale got{load_scale(shape.scales, group.scale(column)), Ops::zero()};
    if (shape.has_offsets) got.offset = load_scale(shape.scales, group.offset(column));
    if (shape.is_super) {
      got.scale = Ops::multiply(got.scale, Ops::load_int8(group.scale_code(column)));
      if (shape.has_offsets) {
        // Changing the sign comes last, because a compiler may fuse it with an addition.
        const Vec minimum = Ops::multiply(got.offset, Ops::load_int8(group.offset_code(column)));
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

  static void decode_chunk(const LinearBlock& block, const Chunk& chunk, const char* b) {
    const CodePanels& shape = *block.codes;
    switch (shape.kind) {
      case CodeKind::k4:
        return decode_chunk_of<CodeKind::k4>(block, chunk, b);
      case CodeKind::k5:
        return decode_chunk_of<CodeKind::k5>(block, chunk, b);
      case CodeKind::k6:
        return decode_chunk_of<CodeKind::k6>(block, chunk, b);
      case CodeKind::kInt8:
        return decode_chunk_of<CodeKind::kInt8>(block, chunk, b);
      case CodeKind::kE4M3:
        return decode_chunk_of<CodeKind::kE4M3>(block, chunk, b);
    }
  }

  // Into block.scratch.
  template <CodeKind kind>
  static void decode_chunk_of(const LinearBlock& block, const Chunk& chunk, const char* b) {
    const CodePanels& shape = *block.codes;
    const typename Ops::Table table = Ops::load_table(shape.values);
    const int64_t stream_bytes = stream_bytes_of(shape, chunk);
    const bool is_panel = chunk.is_first && chunk.is_last;
    char* out = block.scratch;
    const auto decode = [&](const Group& group) __attribute__((always_inline)) {
      if (is_panel && group.in_block == 0) ask(group.header + kAheadBytes, shape.header_bytes);
      for (int v = 0; v < kVectorsPerPanel; ++v) {
        const Scale scale = scale_of(group, v);
        auto* at = reinterpret_cast<float*>(out + v * stream_bytes);
        Ops::store(at, scale.scale);
        if (shape.has_offsets) Ops::store(at + Ops::kLanes, scale.offset);
      }
      out += header_bytes_of(shape);
      const char* unit = group.units;
      for (int64_t left = group.num_units; left > 0; --left) {
        decode_unit<kind>(unit, table, out, kVectorBytes, stream_bytes);
        if (is_panel) ask(unit + kAheadBytes, kUnitBytes<kind>);
        unit += kUnitBytes<kind>;
        out += kCodeUnitSteps * kVectorBytes;
      }
    };
    for_each_group(shape, b, chunk.num_groups, chunk.num_units, decode);
  }

  // To vectors that are so far apart from step to step and from one to the next.
  template <CodeKind kind>
  static inline __attribute__((always_inline)) void decode_unit(const char* b,
                                                                const typename Ops::Table& table,
                                                                char* out, int64_t step_bytes,
                                                                int64_t vector_bytes) {
    decode_part<kind, 0>(b, table, out, step_bytes, vector_bytes);
    decode_part<kind, 1>(b, table, out, step_bytes, vector_bytes);
    decode_part<kind, 2>(b, table, out, step_bytes, vector_bytes);
    decode_part<kind, 3>(b, table, out, step_bytes, vector_bytes);
  }

  template <CodeKind kind, int part>
  static inline __attribute__((always_inline)) void decode_part(const char* b,
                                                                const typename Ops::Table& table,
                                                                char* out, int64_t step_bytes,
                                                                int64_t vector_bytes) {
    Words words[kStepsOfPart * kVectorsPerPanel];
    Ops::template decode<kind, part>(b, table, words);
#pragma GCC unroll 8
    for (int i = 0; i < kStepsOfPart * kVectorsPerPanel; ++i) {
      const int step = part * kStepsOfPart + i / kVectorsPerPanel;
      Ops::store_words(out + step * step_bytes + i % kVectorsPerPanel * vector_bytes, words[i]);
    }
  }

  template <CodeKind kind>
  static void decode_rounded_of(const CodePanels& shape, const char* b, int64_t num_steps,
                                char* out) {
    const typename Ops::Table table = Ops::load_table(shape.values);
    char* const end = out + num_steps * kPanelStepBytes;
    const auto decode = [&](const Group& group) __attribute__((always_inline)) {
      Scale scales[kVectorsPerPanel];
      for (int v = 0; v < kVectorsPerPanel; ++v) scales[v] = stored_scale(group, v);
      for (int64_t unit = 0; unit < group.num_units; ++unit) {
        decode_unit<kind>(group.units + unit * kUnitBytes<kind>, table, out, kPanelStepBytes,
                          kVectorBytes);
        for (int step = 0; step < kCodeUnitSteps; ++step) {
          for (int v = 0; v < kVectorsPerPanel; ++v, out += kVectorBytes) {
            const Words words = Ops::load_words(out);
            Ops::store_words(out, Ops::rounded_pairs(scaled(shape, scales[v], Ops::even(words)),
                                                     scaled(shape, scales[v], Ops::odd(words))));
          }
        }
      }
    };
    for_each_group(shape, b, shape.num_groups, shape.num_units, decode);
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
