// Where decode attention finds a batch's queries, new tokens and tiles.
#pragma once

#include "backend/cuda/attention/attention.cuh"
#include "backend/cuda/attention/attention_decode_warp.cuh"

namespace nanovllm::cuda {

template <int kDim, int kHeadTiles, bool kStores>
struct DecodeBatch {
  static constexpr int kHeads = 8 * kHeadTiles;
  static constexpr int kChunks = kDim / 8;

  const __nv_bfloat16* qkv;
  __nv_bfloat16* cache;  // written where kStores
  AttentionProblem p;
  Rope rope;             // where kStores
  const int32_t* slots;  // [num_seqs], likewise
  int parts, part_heads, units;

  // Of a KV head's query heads a unit of work takes part_heads, or what is left.
  __device__ int kv_head(int unit) const { return kStores ? unit : unit / parts; }
  __device__ int first_head(int unit) const {
    return kStores ? unit * p.group : unit / parts * p.group + unit % parts * kHeads;
  }
  __device__ int num_heads(int unit) const {
    return kStores ? p.group : min(kHeads, p.group - unit % parts * kHeads);
  }

  __device__ int first_tile(int seq_len) const { return p.first_visible(seq_len - 1) / kTile; }
  // There is one.
  __device__ Segment segment_after(const Segment& s) const {
    if (s.unit + 1 < units) return {s.seq, s.unit + 1, s.end, 2 * s.end - s.begin};
    int seq = s.seq + 1, len = p.seq_lens[seq];
    while (len == 0) len = p.seq_lens[++seq];
    return {seq, 0, s.end, s.end + (len + kTile - 1) / kTile - first_tile(len)};
  }

  // Any behind the sequence's last.
  __device__ int block_of(const Segment& s, int index) const {
    return p.block_table[static_cast<int64_t>(s.seq) * p.block_table_stride +
                         min(index, p.block_table_stride - 1)];
  }
  // Of a tile's first key among the rows of the cache.
  __device__ int tile_row(int block, int unit, int tile_in_block) const {
    const int head = 2 * block * p.kv.num_kv_heads + kv_head(unit);  // among all K and V
    return head * p.kv.block_size + tile_in_block * kTile;
  }
  __device__ int64_t to_values() const {
    return static_cast<int64_t>(p.kv.num_kv_heads) * p.kv.block_size * kDim;
  }

  __device__ void enter_segment(WarpWalk& walk) const {
    const int tile = first_tile(p.seq_lens[walk.segment.seq]);
    const int tiles = p.kv.block_size / kTile;
    walk.block_index = tile / tiles;
    walk.tile_in_block = tile - walk.block_index * tiles;
    const int block = block_of(walk.segment, walk.block_index);
    walk.next_block = block_of(walk.segment, walk.block_index + 1);
    walk.row = tile_row(block, walk.segment.unit, walk.tile_in_block);
  }
  __device__ void advance(WarpWalk& walk) const {
    if (++walk.index >= walk.end) {
      walk.row = -1;
    } else if (walk.index == walk.segment.end) {
      walk.segment = segment_after(walk.segment);
      enter_segment(walk);
    } else if (++walk.tile_in_block * kTile < p.kv.block_size) {
      walk.row += kTile;
    } else {
      walk.tile_in_block = 0;
      walk.row = tile_row(walk.next_block, walk.segment.unit, 0);
      walk.next_block = block_of(walk.segment, ++walk.block_index + 1);
    }
  }

  // Four neighbours a lane of the cos and sin of a sequence's last position.
  __device__ float4 load_angles(int seq_len, int lane) const {
    const float* row = rope.cos_sin + static_cast<int64_t>(seq_len - 1) * kDim;
    return lane * 4 < kDim ? *reinterpret_cast<const float4*>(row + lane * 4) : float4{};
  }
  // Of q, k or v, in their order.
  __device__ const __nv_bfloat16* head_row(int seq, int head) const {
    return qkv + seq * p.row_width + head * kDim;
  }

  // A segment's queries. Where kStores, `slot` is the newest token's if the warp is to store it,
  // and `token` 8 elements a lane: of the key, then of the value.
  struct Rows {
    RowPart<kDim> part[kHeadTiles];
    int slot;
    uint4 token;
  };
  __device__ static bool holds_value(int lane) { return lane >= kChunks; }

  __device__ Rows load_rows(const Segment& s, int end, int lane) const {
    const int heads = num_heads(s.unit);
    Rows rows;
    rows.slot = -1;
    if constexpr (kStores) {
      if (s.end <= end) rows.slot = slots[s.seq];
    }
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
      const int head = 8 * t + lane / 4;
      const __nv_bfloat16* source = nullptr;
      if (head < heads) source = head_row(s.seq, first_head(s.unit) + head);
      rows.part[t].load(source, lane);
    }
    rows.token = {};
    if (kStores && lane < 2 * kChunks) {
      const int head = p.params.num_heads + holds_value(lane) * p.kv.num_kv_heads + s.unit;
      rows.token = *reinterpret_cast<const uint4*>(head_row(s.seq, head) + lane % kChunks * 8);
    }
    return rows;
  }
};

}  // namespace nanovllm::cuda
