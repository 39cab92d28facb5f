// The side of Hopper's prefill attention that brings what the other side computes with: one warp
// the keys and values, three the queries. For code of sm_90a.
#pragma once

#include "backend/cuda/attention/attention_prefill_hopper.cuh"
#include "backend/cuda/device/tma.cuh"

namespace nanovllm::cuda::hopper_prefill {

template <int kDim>
class PrefillProducer {
 public:
  using Shared = PrefillShared<kDim>;

  // `map`: of the cache's lines.
  __device__ PrefillProducer(const PrefillArguments& arguments, const CUtensorMap& map,
                             Shared& shared)
      : arguments_(arguments), p_(arguments.p), map_(map), shared_(shared) {}

  // By one warp: all of a block's tiles, and what its pieces are.
  __device__ void bring_keys(const int* sums, int num_jobs) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    RingPlace<Shared::kQueryBuffers> buffer;
    RingPlace<kStages> stage;
    for (int i = 0;; ++i, buffer.next()) {
      shared_.queries_free[buffer.place].wait(buffer.parity ^ 1);
      if (lane == 0) {
        shared_.jobs[buffer.place] = next_job(sums, num_jobs, i);
        shared_.job_known[buffer.place].arrive();
      }
      __syncwarp();
      const PrefillJob job = shared_.jobs[buffer.place];
      __syncwarp();  // the place may be the next job's
      if (job.work.num_rows == 0) return;
      const auto span = span_of<kKeys>(p_, job.work).part(job.part, job.num_parts);
      for (int tile = span.first; tile < span.end; tile += kKeys, stage.next()) {
        shared_.keys_free[stage.place].wait(stage.parity ^ 1);
        bring_tile(job.work, tile, span.end, 0, shared_.keys[stage.place],
                   shared_.keys_there[stage.place]);
        shared_.values_free[stage.place].wait(stage.parity ^ 1);
        bring_tile(job.work, tile, span.end, 1, shared_.values[stage.place],
                   shared_.values_there[stage.place]);
      }
    }
  }

  // By kLoaders threads.
  __device__ void bring_queries() const {
    RingPlace<Shared::kQueryBuffers> buffer;
    for (;; buffer.next()) {
      shared_.job_known[buffer.place].wait(buffer.parity);
      const PrefillWork work = shared_.jobs[buffer.place].work;
      load_queries(work, shared_.queries[buffer.place]);
      wait_for_copies<0>();
      order_copies_behind_writes();
      shared_.queries_there[buffer.place].arrive();
      if (work.num_rows == 0) return;
    }
  }

 private:
  static constexpr int kChunks = Shared::kChunks, kKeys = Shared::kKeys;
  static constexpr int kVectors = kDim / 8;  // of 16 bytes in a row

  // By one thread, which has taken `num_taken` before. Blocks that wait for each other's parts take
  // one job each, which may be none; else the last block to come in vain leaves the counters as
  // they were.
  __device__ PrefillJob next_job(const int* sums, int num_jobs, int num_taken) const {
    const int max_parts = arguments_.parts.max_count;
    uint32_t* counters = arguments_.counters;
    PrefillJob job;
    if (max_parts > 1) {
      job.index = num_taken == 0 ? static_cast<int>(blockIdx.x) : num_jobs;
    } else {
      job.index = static_cast<int>(atomicAdd(&counters[0], 1) + 1);
      if (job.index >= num_jobs && atomicAdd(&counters[1], 1) + 2 == gridDim.x) {
        counters[0] = counters[1] = ~0u;
      }
    }
    if (job.index >= num_jobs) return job;
    const int unit = job.index / max_parts;
    const PrefillWork work =
        prefill_work<kRows>(sums, p_, unit / p_.kv.num_kv_heads, unit % p_.kv.num_kv_heads);
    job.part = job.index % max_parts;
    job.num_parts = max(1, min(max_parts, span_of<kKeys>(p_, work).num_tiles() / kMinPartTiles));
    if (job.part < job.num_parts) job.work = work;
    return job;
  }

  // Keys (or values) of positions tile .. tile + kKeys - 1, but for boxes that lie behind `end`. A
  // lane copies a box. Boxes that no row sees may be in blocks that were given back: they hold the
  // first that is seen, and are hidden.
  __device__ void bring_tile(const PrefillWork& work, int tile, int end, int is_value,
                             typename Shared::Keys& target, Barrier& there) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int box_rows = arguments_.box_rows, boxes = kKeys / box_rows;
    const int used = min(boxes, (end - tile + box_rows - 1) / box_rows);
    if (lane == 0) there.expect(used * box_rows * kChunks * kLineBytes);
    __syncwarp();
    const int first = p_.first_visible(work.context + work.row / p_.group) / box_rows * box_rows;
    const int box = lane % boxes, chunk = lane / boxes;
    const int position = max(first, tile + box * box_rows);
    if (chunk >= kChunks || box >= used) return;
    const int32_t* table = p_.block_table + static_cast<int64_t>(work.seq) * p_.block_table_stride;
    const int64_t block = table[position / p_.kv.block_size];
    const int64_t element =
        p_.kv.offset_in_block(block, position % p_.kv.block_size, work.kv_head, is_value);
    load_lines(&target[chunk][box * box_rows], map_, static_cast<int>(element / kDim), chunk,
               there);
  }

  __device__ void load_queries(const PrefillWork& work, typename Shared::Queries& target) const {
    const int count = min(kRows, work.num_rows - work.row) * kVectors;
    for (int i = static_cast<int>(threadIdx.x) - kConsumers; i < count; i += kLoaders) {
      const int row = i / kVectors, vector = i % kVectors;
      const auto [token, head] = work.place_of(work.row + row, p_.group);
      copy_async(shared_address(Shared::place_in(target, row, vector)),
                 arguments_.qkv + token * p_.row_width + head * kDim + vector * 8, true);
    }
    commit_copies();
  }

  const PrefillArguments& arguments_;
  const AttentionProblem& p_;
  const CUtensorMap& map_;
  Shared& shared_;
};

}  // namespace nanovllm::cuda::hopper_prefill
