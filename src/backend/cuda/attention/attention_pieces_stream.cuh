// How a warp finds pieces, and has the copy engine bring their queries and slices: as far ahead as
// the ring has room, into the next piece too. For code of sm_90 and later.
#pragma once

#include "backend/cuda/attention/attention_pieces.cuh"

namespace nanovllm::cuda::key_pieces {

// All members are for all lanes of the warp at once.
template <int kDim, int kRowTiles>
class PieceStream {
 public:
  using Shared = PieceShared<kDim, kRowTiles>;

  __device__ PieceStream(const PieceArguments& arguments, Shared& shared, char* ring, char* queries)
      : arguments_(arguments),
        shared_(shared),
        ring_(shared_address(ring)),
        queries_(shared_address(queries)),
        num_warps_(gridDim.x * blockDim.x / 32),
        next_(static_cast<int>(threadIdx.x / 32 * gridDim.x + blockIdx.x)) {}

  // Before the predecessor has ended: all but the new tokens' keys and values are older than it.
  __device__ void prepare() {
    if (arguments_.queue_is_new) return;
    count_items();
    if (next_ >= num_items_) return;
    enter_item();
    limit_ = shared_.jobs[0].piece.position / kSlice * kSlice;
    fetch();
    limit_ = kNoLimit;
  }
  // After.
  __device__ void start() {
    if (arguments_.queue_is_new) count_items();
    if (entered_ == 0) return;
    bring_queries();
    take();
  }

  // The next item is the one that the warp computes; there may be no more.
  __device__ void begin_item() {
    if (entered_ == begun_) enter();
    ++begun_;
  }

  // As many slices as there is room for and places are known.
  __device__ void fetch() {
#pragma unroll 1
    while (has_places_ && fetch_slices()) {
    }
  }
  // And then of the next piece, once the queries of this one are in use.
  __device__ void fetch_ahead() {
#pragma unroll 1
    do {
      fetch();
    } while (!has_places_ && find_places());
  }

  // The warp has read so many slices.
  __device__ void pass(int count) {
    __syncwarp();
    passed_ += count;
  }

 private:
  static constexpr int kSpan = 32 * kSlice;  // keys whose places the lanes know
  static constexpr int kNoLimit = 0x7fffffff;

  __device__ void count_items() { num_items_ = *arguments_.queue.count * arguments_.units; }

  // Lane 0 gets to know it.
  __device__ void take() {
    if (lane_ != 0) return;
    next_ = static_cast<int>(atomicAdd(&arguments_.words[0], 1) + 1 + num_warps_);
  }

  // False where none are left, or where the job before is still at work.
  __device__ bool find_places() {
    if (!has_slices_) return enter();
    know_places();
    return true;
  }

  // False where there is none, or where the job before is still at work.
  __device__ bool enter() {
    if (is_over_ || entered_ > begun_) return false;
    next_ = __shfl_sync(0xffffffffu, next_, 0);
    if (next_ >= num_items_) {
      end();
      return false;
    }
    enter_item();
    bring_queries();
    take();
    return true;
  }

  __device__ void enter_item() {
    const int item = next_, slot = entered_ % kJobs;
    PieceJob& job = shared_.jobs[slot];
    constexpr int kWords = sizeof(KeyPiece) / sizeof(int);
    const auto* words =
        reinterpret_cast<const int*>(arguments_.queue.pieces + item / arguments_.units);
    if (lane_ < kWords) reinterpret_cast<int*>(&job.piece)[lane_] = words[lane_];
    if (lane_ == kWords) job.unit = item % arguments_.units;
    __syncwarp();
    ++entered_;
    seq_ = job.piece.seq;
    head_ = arguments_.kv_head(job.unit);
    end_ = job.piece.end;
    has_slices_ = true;
    enter_tile(job.piece.begin);
    know_places();
  }

  // Of the item that was entered last, which the predecessor has written.
  __device__ void bring_queries() {
    const PieceJob& job = shared_.jobs[(entered_ - 1) % kJobs];
    const int buffer = (entered_ - 1) % Shared::kQueryBuffers;
    const int heads = arguments_.num_heads(job.unit), head = arguments_.first_head(job.unit);
    const int rows = job.piece.num_tokens * heads;
    Barrier& there = shared_.queries_there[buffer];
    if (lane_ == 0) there.expect(rows * kDim * 2);
    __syncwarp();
    const uint32_t target = queries_ + buffer * arguments_.slot_rows * Shared::kQueryStride;
#pragma unroll 1
    for (int row = lane_; row < rows; row += 32) {
      const int64_t token = job.piece.first_token + row / heads;
      copy_bulk(target + row * Shared::kQueryStride,
                arguments_.qkv + token * arguments_.p.row_width + (head + row % heads) * kDim,
                kDim * 2, there);
    }
  }

  // The last warp to come in vain leaves the counters as they were.
  __device__ void end() {
    is_over_ = true;
    const int slot = entered_++ % kJobs;
    if (lane_ == 0) {
      shared_.jobs[slot].piece.num_tokens = 0;
      uint32_t* const counters = arguments_.words;
      if (atomicAdd(&counters[1], 1) + 2 == num_warps_) counters[0] = counters[1] = ~0u;
    }
    __syncwarp();
  }

  __device__ void enter_tile(int begin) {
    tile_ = key_ = begin;
    tile_end_ = min(end_, begin / Shared::kKeys * Shared::kKeys + Shared::kKeys);
    is_value_ = false;
  }

  // From the tile on, of 16 keys' vectors among all of the cache.
  __device__ void know_places() {
    first_known_ = tile_;
    has_places_ = true;
    const int key = tile_ + lane_ * kSlice;
    if (key >= end_) return;
    const AttentionProblem& p = arguments_.p;
    const int index = key / p.kv.block_size;
    const int block = p.block_table[static_cast<int64_t>(seq_) * p.block_table_stride + index];
    place_ = (2 * block * p.kv.num_kv_heads + head_) * (p.kv.block_size / kSlice) +
             (key - index * p.kv.block_size) / kSlice;
  }

  // The lane's stage, counted from the next to be filled, of lanes that are fewer than stages.
  __device__ StagePlace stage_of_lane() const {
    StagePlace stage = {stage_.place + lane_, stage_.parity};
    if (stage.place < arguments_.stages) return stage;
    return {stage.place - arguments_.stages, stage.parity ^ 1};
  }

  // Of the tile's keys, or values, a lane a slice. False where there is no room, or no key.
  __device__ bool fetch_slices() {
    const int left = min(tile_end_, limit_) - key_;
    const int room = arguments_.stages - (fetched_ - passed_);
    const int count = min(room, (left + kSlice - 1) / kSlice);
    if (count <= 0) return false;
    const int64_t place = __shfl_sync(0xffffffffu, place_, (key_ - first_known_) / kSlice + lane_);
    if (lane_ < count) {
      const KvView& kv = arguments_.p.kv;
      const int64_t row = place * kSlice + (is_value_ ? kv.num_kv_heads * kv.block_size : 0);
      const StagePlace stage = stage_of_lane();
      Barrier& there = shared_.slice_there[stage.place];
      there.expect(Shared::kSliceBytes);
      copy_bulk(ring_ + stage.place * Shared::kSliceBytes, arguments_.cache + row * kDim,
                Shared::kSliceBytes, there, kEvictFirst);
    }
    __syncwarp();
    fetched_ += count;
    stage_.advance(count, arguments_.stages);
    key_ += count * kSlice;
    if (key_ >= tile_end_) leave_half();
    return true;
  }

  // From a tile's keys to its values, or on to the next one.
  __device__ void leave_half() {
    if (!is_value_) {
      is_value_ = true;
      key_ = tile_;
    } else if (tile_end_ < end_) {
      enter_tile(tile_end_);
      has_places_ = tile_end_ <= first_known_ + kSpan;
    } else {
      has_slices_ = has_places_ = false;
    }
  }

  const PieceArguments& arguments_;
  Shared& shared_;
  const uint32_t ring_, queries_;
  const uint32_t num_warps_;  // of the launch
  const int lane_ = static_cast<int>(threadIdx.x) % 32;
  int num_items_ = 0;
  int next_;  // item, in lane 0
  int entered_ = 0, begun_ = 0;
  bool is_over_ = false;
  // Where it is in the piece that was entered last.
  int seq_ = 0, head_ = 0, end_ = 0;
  int tile_ = 0, tile_end_ = 0, key_ = 0;
  int limit_ = kNoLimit;  // of keys that may be fetched
  bool is_value_ = false, has_slices_ = false, has_places_ = false;
  int first_known_ = 0, place_ = 0;
  StagePlace stage_;
  int fetched_ = 0, passed_ = 0;  // slices
};

}  // namespace nanovllm::cuda::key_pieces
