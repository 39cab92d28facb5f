// The side of Hopper's prefill attention that computes: each of two warpgroups 64 rows. For code of
// sm_90a.
#pragma once

#include "backend/cuda/attention/attention_prefill_hopper.cuh"
#include "backend/cuda/attention/attention_softmax.cuh"
#include "backend/cuda/device/vector.cuh"
#include "backend/cuda/device/wgmma.cuh"
#include "backend/cuda/device/wgmma_weights.cuh"

namespace nanovllm::cuda::hopper_prefill {

template <int kDim>
class PrefillConsumer {
 public:
  using Shared = PrefillShared<kDim>;

  __device__ PrefillConsumer(const PrefillArguments& arguments, Shared& shared)
      : arguments_(arguments), p_(arguments.p), shared_(shared) {}

  __device__ void run() const {
    RingPlace<Shared::kQueryBuffers> buffer;
    RingPlace<kStages> stage;
    for (;; buffer.next()) {
      shared_.queries_there[buffer.place].wait(buffer.parity);
      const PrefillJob job = shared_.jobs[buffer.place];
      if (job.work.num_rows == 0) return;
      auto& queries = shared_.queries[buffer.place];
      State state = start(job.work);
      const auto span = span_of<kKeys>(p_, job.work).part(job.part, job.num_parts);
      if (span.first < span.end) {
        attend(shared_address(&queries[0][group_ * kGroupRows]), span, state, stage);
      }
      if (job.num_parts > 1) {
        merge(job, state);
      } else {
        write(job.work, state, queries);
      }
      shared_.queries_free[buffer.place].arrive_warp();
    }
  }

 private:
  static constexpr int kChunks = Shared::kChunks, kKeys = Shared::kKeys;
  static constexpr int kVectors = kDim / 8;  // of 16 bytes in a row
  static constexpr int kSteps = kChunk / 16;

  // What a thread of a warpgroup holds of its 64 rows.
  struct State {
    float o[kDim / 2] = {};
    uint32_t weights[kKeys / 16][4];
    SoftmaxRows rows;
    int row;                            // the thread's first, of the sequence's
    int own[2];                         // positions of its rows
    int first_position, last_position;  // of the warpgroup's rows
  };

  __device__ State start(const PrefillWork& work) const {
    const int first_row = work.row + group_ * kGroupRows;
    State state;
    state.row = first_row + static_cast<int>(threadIdx.x) % kGroupThreads / 32 * 16 +
                static_cast<int>(threadIdx.x) % 32 / 4;
    state.own[0] = work.context + state.row / p_.group;
    state.own[1] = work.context + (state.row + 8) / p_.group;
    state.first_position = work.context + first_row / p_.group;
    state.last_position = work.context + (first_row + kGroupRows - 1) / p_.group;
    return state;
  }

  // The scores of the next tile are multiplied before the last one's weights, and arrive first.
  __device__ void attend(uint32_t queries, const Span<kKeys>& span, State& state,
                         RingPlace<kStages>& stage) const {
    float s[kKeys / 2], keep[2];
    begin_scores(s, queries, stage);
    wait_products<0>();
    settle(s);
    shared_.keys_free[stage.place].arrive_warp();
    weigh(s, state, span.first, keep);
    pack_weights(s, state);
    for (int tile = span.first + kKeys; tile < span.end; tile += kKeys) {
      const RingPlace<kStages> last = stage;
      stage.next();
      begin_scores(s, queries, stage);
      shared_.values_there[last.place].wait(last.parity);
      add_values(state, shared_.values[last.place]);
      wait_products<1>();
      settle(s);
      shared_.keys_free[stage.place].arrive_warp();
      weigh(s, state, tile, keep);
      wait_products<0>();
      settle(state.o);
      shared_.values_free[last.place].arrive_warp();
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) state.o[i] *= keep[i / 2 % 2];
      settle(state.o);
      pack_weights(s, state);
    }
    shared_.values_there[stage.place].wait(stage.parity);
    if (span.end % kKeys != 0) clear_lines(shared_.values[stage.place], span.end % kKeys);
    begin_products();
    add_values(state, shared_.values[stage.place]);
    wait_products<0>();
    settle(state.o);
    shared_.values_free[stage.place].arrive_warp();
    stage.next();
  }

  __device__ void merge(const PrefillJob& job, const State& state) const {
    const bool has_rows = __any_sync(0xffffffffu, state.row < job.work.num_rows);
    const PartGroup<kDim> group(arguments_.parts, job.index, job.part, job.num_parts);
    const int heads[2] = {job.work.head_of(state.row, p_.group),
                          job.work.head_of(state.row + 8, p_.group)};
    merge_parts<kDim>(group, has_rows, state.o, state.rows, p_, heads,
                      [&](int h, int n, float low, float high) {
                        write_pair(job.work, state.row + 8 * h, n, low, high);
                      });
  }

  // Two neighbours of the lane's in column tile n.
  __device__ void write_pair(const PrefillWork& work, int r, int n, float low, float high) const {
    if (r >= work.num_rows) return;
    const auto [token, head] = work.place_of(r, p_.group);
    auto* target = arguments_.out + (token * p_.params.num_heads + head) * kDim + 8 * n;
    const int i = static_cast<int>(threadIdx.x) % 4 * 2;
    float first[1] = {low}, second[1] = {high};
    p_.apply_gate<__nv_bfloat16>(first, token, head, 8 * n + i);
    p_.apply_gate<__nv_bfloat16>(second, token, head, 8 * n + i + 1);
    *reinterpret_cast<uint32_t*>(target + i) = pack_bfloat16(first[0], second[0]);
  }

  // Zeros from line `first` on, where anything may lie that no row sees, NaN too.
  __device__ static void clear_lines(typename Shared::Keys& lines, int first) {
    const int count = (kKeys - first) * 8;
    for (int i = threadIdx.x; i < count * kChunks; i += kConsumers) {
      *reinterpret_cast<uint4*>(&lines[i / count][first + i % count / 8][i % 8 * 16]) = {};
    }
    order_copies_behind_writes();
    meet_part_threads();
  }

  __device__ void begin_scores(float (&s)[kKeys / 2], uint32_t queries,
                               const RingPlace<kStages>& stage) const {
    shared_.keys_there[stage.place].wait(stage.parity);
    const uint64_t q = describe_tile(queries);
    const uint64_t k = describe_tile(shared_address(&shared_.keys[stage.place]));
    begin_products();
#pragma unroll
    for (int i = 0; i < kChunks * kSteps; ++i) {
      const int chunk = i / kSteps, step = i % kSteps * 2;
      const uint64_t a = q + chunk * (kRows * kLineBytes / 16) + step;
      const uint64_t b = k + chunk * (kKeys * kLineBytes / 16) + step;
      if (i == 0) {
        multiply_tile<false>(s, a, b);
      } else {
        multiply_tile(s, a, b);
      }
    }
    commit_products();
  }

  // Products of up to 128 columns.
  __device__ static void add_values(State& state, const typename Shared::Keys& values) {
    constexpr int kColumns = kDim < 128 ? kDim : 128, kChunkBytes = kKeys * kLineBytes;
    const uint64_t v = describe_columns(shared_address(&values), kChunkBytes);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
#pragma unroll
      for (int column = 0; column < kDim; column += kColumns) {
        auto& sums = *reinterpret_cast<float(*)[kColumns / 2]>(&state.o[column / 2]);
        multiply_weights(sums, state.weights[step],
                         v + column / kChunk * (kChunkBytes / 16) + step * (16 * kLineBytes / 16));
      }
    }
    commit_products();
  }

  __device__ void weigh(float (&s)[kKeys / 2], State& state, int tile, float (&keep)[2]) const {
    auto& scores = *reinterpret_cast<float(*)[kKeys / 8][4]>(&s);
    if (p_.params.soft_cap > 0) cap_scores(scores, p_);
    const bool some_hidden =
        tile + kKeys - 1 > state.first_position || tile < p_.first_visible(state.last_position);
    if (some_hidden) hide_keys(scores, p_, state.own, tile, static_cast<int>(threadIdx.x) % 32);
    weigh_keys(scores, state.rows, score_factor(p_), keep);
  }

  __device__ static void pack_weights(const float (&s)[kKeys / 2], State& state) {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) {
      state.weights[i / 4][i % 4] = pack_bfloat16(s[2 * i], s[2 * i + 1]);
    }
    settle(state.weights);
  }

  // Through the warp's rows of the queries' memory, which no product of the group reads any more,
  // so that rows go out in whole vectors.
  __device__ void write(const PrefillWork& work, const State& state,
                        typename Shared::Queries& rows) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp_row =
        group_ * kGroupRows + static_cast<int>(threadIdx.x) % kGroupThreads / 32 * 16;
    sync_threads<kGroupThreads>(2 + group_);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int head = work.head_of(state.row + 8 * h, p_.group);
      const float factor = softmax_factor(state.rows, h, p_, head);
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        auto* place =
            static_cast<uint32_t*>(Shared::place_in(rows, warp_row + lane / 4 + 8 * h, n));
        place[lane % 4] =
            pack_bfloat16(state.o[4 * n + 2 * h] * factor, state.o[4 * n + 2 * h + 1] * factor);
      }
    }
    __syncwarp();
    const int count = min(16, work.num_rows - work.row - warp_row) * kVectors;
    for (int i = lane; i < count; i += 32) {
      const int row = warp_row + i / kVectors, vector = i % kVectors;
      const auto [token, head] = work.place_of(work.row + row, p_.group);
      write_vector(arguments_.out,
                   static_cast<const __nv_bfloat16*>(Shared::place_in(rows, row, vector)), p_,
                   token, head, vector);
    }
  }

  const PrefillArguments& arguments_;
  const AttentionProblem& p_;
  Shared& shared_;
  const int group_ = static_cast<int>(threadIdx.x) / kGroupThreads;
};

}  // namespace nanovllm::cuda::hopper_prefill
