// Paged prefill attention on Hopper's warpgroup products, in the manner of FlashAttention-3
// (https://arxiv.org/abs/2407.08608): the same sums as attention_prefill.cu, in other tiles.
//
// Blocks stay for the whole launch and take pieces of kRows rows from a counter. One warp has the
// copy engine bring tiles of keys and values, which lie in the cache as the products want them (see
// kv_layout.cuh); three warps bring the queries of the piece after. Two warpgroups compute 64 rows
// each: a tile's scores are multiplied while the weights of the tile before meet their values, and
// one group's softmax runs beside the other's products.
//
// Few rows behind long contexts are too few pieces: then several blocks share the keys of one, and
// merge what they have, see attention_prefill_merge.cuh.
#include <algorithm>
#include <type_traits>

#include "backend/cuda/attention_prefill.cuh"
#include "backend/cuda/attention_prefill_merge.cuh"
#include "backend/cuda/attention_softmax.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/tensor_map.h"
#include "backend/cuda/tma.cuh"
#include "backend/cuda/vector.cuh"
#include "backend/cuda/wgmma.cuh"
#include "backend/cuda/wgmma_weights.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kGroups = 2;      // warpgroups that compute
constexpr int kGroupRows = 64;  // of each
constexpr int kGroupThreads = 128;
constexpr int kRows = kGroups * kGroupRows;
constexpr int kConsumers = kGroups * kGroupThreads;
static_assert(kConsumers == kPartThreads);
constexpr int kLoaders = 96;  // threads that bring queries
constexpr int kThreads = kConsumers + kLoaders + 32;
constexpr int kStages = 2;
constexpr int kChunk = 64;  // columns of a line
constexpr int kLineBytes = kChunk * 2;

// What a block computes next.
struct PrefillJob {
  PrefillWork work = {};  // num_rows = 0: no more
  int index = 0;          // among all jobs
  int part = 0;           // of the keys
};

template <int kDim>
struct PrefillShared {
  static constexpr int kChunks = kDim / kChunk;
  static constexpr int kKeys = kDim <= 128 ? 128 : 64;
  static constexpr int kQueryBuffers = kDim <= 128 ? 2 : 1;
  using Queries = uint8_t[kChunks][kRows][kLineBytes];
  using Keys = uint8_t[kChunks][kKeys][kLineBytes];

  alignas(1024) Queries queries[kQueryBuffers];
  alignas(1024) Keys keys[kStages], values[kStages];
  PrefillJob jobs[kQueryBuffers];
  Barrier job_known[kQueryBuffers], queries_there[kQueryBuffers], queries_free[kQueryBuffers];
  Barrier keys_there[kStages], keys_free[kStages];
  Barrier values_there[kStages], values_free[kStages];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A place among `n`, and the parity of the round.
template <int n>
struct Turn {
  int place = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++place == n) place = 0, parity ^= 1;
  }
};

__device__ inline void meet_group(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(2 + group), "n"(kGroupThreads) : "memory");
}

template <int kRegisters>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#endif

template <int kDim>
struct WgmmaPrefillKernel {
  using Shared = PrefillShared<kDim>;

  __nv_bfloat16* out;
  const __nv_bfloat16* qkv;
  AttentionProblem p;
  PrefillParts parts;
  uint32_t* counters;  // two
  int box_rows;        // of a copy: a divisor of kKeys and the block size

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

  static constexpr int kChunks = Shared::kChunks, kKeys = Shared::kKeys;
  static constexpr int kVectors = kDim / 8;  // of 16 bytes in a row
  static constexpr int kSteps = kChunk / 16;

  // The positions whose keys a job's rows see, in tiles that begin at multiples of kKeys.
  struct Span {
    int first, end;
  };
  __device__ Span span_of(const PrefillJob& job) const {
    const PrefillWork& work = job.work;
    const int last_row = min(work.row + kRows, work.num_rows) - 1;
    const int first = p.first_visible(work.context + work.row / p.group) / kKeys * kKeys;
    const int end = work.context + last_row / p.group + 1;
    if (parts.count == 1) return {first, end};
    const int tiles = (end - first + kKeys - 1) / kKeys;
    return {first + tiles * job.part / parts.count * kKeys,
            min(end, first + tiles * (job.part + 1) / parts.count * kKeys)};
  }

  __device__ void run(const CUtensorMap& map, Shared& shared, int* sums) const {
    // The lengths are older than the predecessor, which released this kernel after it had waited.
    const int num_pieces = count_prefill_pieces<kThreads, kRows>(sums, p);
    const int num_jobs = num_pieces * p.kv.num_kv_heads * parts.count;
    if (threadIdx.x == 0) init_barriers(shared);
    __syncthreads();
    wait_for_predecessor();
    release_successor();
    const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
    if (group < kGroups) {
      take_registers<232>();
      consume(shared, group);
    } else {
      give_registers<40>();
      if (threadIdx.x < kConsumers + kLoaders) {
        bring_queries(shared);
      } else {
        bring_keys(map, shared, sums, num_jobs);
      }
    }
  }

 private:
  __device__ static void init_barriers(Shared& shared) {
    for (int i = 0; i < Shared::kQueryBuffers; ++i) {
      shared.job_known[i].init(1);
      shared.queries_there[i].init(kLoaders);
      shared.queries_free[i].init_warps(kConsumers / 32);
    }
    for (int i = 0; i < kStages; ++i) {
      shared.keys_there[i].init(1);
      shared.values_there[i].init(1);
      shared.keys_free[i].init_warps(kConsumers / 32);
      shared.values_free[i].init_warps(kConsumers / 32);
    }
    publish_barriers();
  }

  // By one thread, which has taken `num_taken` before. Blocks that wait for each other's parts take
  // one job each; else the last block to come in vain leaves the counters as they were.
  __device__ PrefillJob next_job(const int* sums, int num_jobs, int num_taken) const {
    PrefillJob job;
    if (parts.count > 1) {
      job.index = num_taken == 0 ? static_cast<int>(blockIdx.x) : num_jobs;
    } else {
      job.index = static_cast<int>(atomicAdd(&counters[0], 1) + 1);
      if (job.index >= num_jobs && atomicAdd(&counters[1], 1) + 2 == gridDim.x)
        counters[0] = counters[1] = ~0u;
    }
    if (job.index >= num_jobs) return job;
    const int unit = job.index / parts.count;
    job.part = job.index % parts.count;
    job.work = prefill_work<kRows>(sums, p, unit / p.kv.num_kv_heads, unit % p.kv.num_kv_heads);
    return job;
  }

  // By one warp: all of a block's tiles, and what its pieces are.
  __device__ void bring_keys(const CUtensorMap& map, Shared& shared, const int* sums,
                             int num_jobs) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    Turn<Shared::kQueryBuffers> buffer;
    Turn<kStages> stage;
    for (int i = 0;; ++i, buffer.next()) {
      shared.queries_free[buffer.place].wait(buffer.parity ^ 1);
      if (lane == 0) {
        shared.jobs[buffer.place] = next_job(sums, num_jobs, i);
        shared.job_known[buffer.place].arrive();
      }
      __syncwarp();
      const PrefillJob job = shared.jobs[buffer.place];
      if (job.work.num_rows == 0) return;
      const Span span = span_of(job);
      for (int tile = span.first; tile < span.end; tile += kKeys, stage.next()) {
        shared.keys_free[stage.place].wait(stage.parity ^ 1);
        bring_tile(map, job.work, tile, span.end, 0, shared.keys[stage.place],
                   shared.keys_there[stage.place]);
        shared.values_free[stage.place].wait(stage.parity ^ 1);
        bring_tile(map, job.work, tile, span.end, 1, shared.values[stage.place],
                   shared.values_there[stage.place]);
      }
    }
  }

  // Keys (or values) of positions tile .. tile + kKeys - 1, but for boxes that lie behind `end`. A
  // lane copies a box.
  __device__ void bring_tile(const CUtensorMap& map, const PrefillWork& work, int tile, int end,
                             int is_value, typename Shared::Keys& target, Barrier& there) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, boxes = kKeys / box_rows;
    const int used = min(boxes, (end - tile + box_rows - 1) / box_rows);
    if (lane == 0) there.expect(used * box_rows * kChunks * kLineBytes);
    __syncwarp();
    const int box = lane % boxes, chunk = lane / boxes, position = tile + box * box_rows;
    if (chunk >= kChunks || box >= used) return;
    const int32_t* table = p.block_table + static_cast<int64_t>(work.seq) * p.block_table_stride;
    const int64_t block = table[position / p.kv.block_size];
    const int64_t element =
        p.kv.offset_in_block(block, position % p.kv.block_size, work.kv_head, is_value);
    load_lines(&target[chunk][box * box_rows], map, static_cast<int>(element / kDim), chunk, there);
  }

  // By kLoaders threads.
  __device__ void bring_queries(Shared& shared) const {
    Turn<Shared::kQueryBuffers> buffer;
    for (;; buffer.next()) {
      shared.job_known[buffer.place].wait(buffer.parity);
      const PrefillWork work = shared.jobs[buffer.place].work;
      load_queries(work, shared.queries[buffer.place]);
      wait_for_copies<0>();
      order_copies_behind_writes();
      shared.queries_there[buffer.place].arrive();
      if (work.num_rows == 0) return;
    }
  }
  __device__ void load_queries(const PrefillWork& work, typename Shared::Queries& target) const {
    const int64_t width = (p.params.num_heads + 2 * p.kv.num_kv_heads) * kDim;
    const int count = min(kRows, work.num_rows - work.row) * kVectors;
    for (int i = static_cast<int>(threadIdx.x) - kConsumers; i < count; i += kLoaders) {
      const int row = i / kVectors, vector = i % kVectors, r = work.row + row;
      const int head = work.kv_head * p.group + r % p.group;
      copy_async(shared_address(place_in(target, row, vector)),
                 qkv + (work.first_token + r / p.group) * width + head * kDim + vector * 8, true);
    }
    commit_copies();
  }
  // Where 16 bytes of a row lie.
  __device__ static void* place_in(typename Shared::Queries& queries, int row, int vector) {
    return &queries[vector / 8][row][(vector ^ row) % 8 * 16];
  }

  // What a thread of a warpgroup holds of its 64 rows.
  struct State {
    float o[kDim / 2] = {};
    uint32_t weights[kKeys / 16][4];
    SoftmaxRows rows;
    int row;                            // the thread's first, of the sequence's
    int own[2];                         // positions of its rows
    int first_position, last_position;  // of the warpgroup's rows
  };

  __device__ State start(const PrefillWork& work, int group) const {
    const int first_row = work.row + group * kGroupRows;
    State state;
    state.row = first_row + static_cast<int>(threadIdx.x) % kGroupThreads / 32 * 16 +
                static_cast<int>(threadIdx.x) % 32 / 4;
    state.own[0] = work.context + state.row / p.group;
    state.own[1] = work.context + (state.row + 8) / p.group;
    state.first_position = work.context + first_row / p.group;
    state.last_position = work.context + (first_row + kGroupRows - 1) / p.group;
    return state;
  }

  __device__ void consume(Shared& shared, int group) const {
    Turn<Shared::kQueryBuffers> buffer;
    Turn<kStages> stage;
    for (;; buffer.next()) {
      shared.queries_there[buffer.place].wait(buffer.parity);
      const PrefillJob job = shared.jobs[buffer.place];
      if (job.work.num_rows == 0) return;
      auto& queries = shared.queries[buffer.place];
      State state = start(job.work, group);
      const Span span = span_of(job);
      if (span.first < span.end)
        attend(shared, shared_address(&queries[0][group * kGroupRows]), span, state, stage);
      if (parts.count > 1) {
        merge(job, state);
      } else {
        write(job.work, state, queries, group);
      }
      shared.queries_free[buffer.place].arrive_warp();
    }
  }

  // The scores of the next tile are multiplied before the last one's weights, and arrive first.
  __device__ void attend(Shared& shared, uint32_t queries, const Span& span, State& state,
                         Turn<kStages>& stage) const {
    float s[kKeys / 2], keep[2];
    begin_scores(s, shared, queries, stage);
    wait_products<0>();
    settle(s);
    shared.keys_free[stage.place].arrive_warp();
    weigh(s, state, span.first, keep);
    pack_weights(s, state);
    for (int tile = span.first + kKeys; tile < span.end; tile += kKeys) {
      const Turn<kStages> last = stage;
      stage.next();
      begin_scores(s, shared, queries, stage);
      shared.values_there[last.place].wait(last.parity);
      add_values(state, shared.values[last.place]);
      wait_products<1>();
      settle(s);
      shared.keys_free[stage.place].arrive_warp();
      weigh(s, state, tile, keep);
      wait_products<0>();
      settle(state.o);
      shared.values_free[last.place].arrive_warp();
#  pragma unroll
      for (int i = 0; i < kDim / 2; ++i) state.o[i] *= keep[i / 2 % 2];
      pack_weights(s, state);
    }
    shared.values_there[stage.place].wait(stage.parity);
    if (span.end % kKeys != 0) clear_lines(shared.values[stage.place], span.end % kKeys);
    begin_products();
    add_values(state, shared.values[stage.place]);
    wait_products<0>();
    settle(state.o);
    shared.values_free[stage.place].arrive_warp();
    stage.next();
  }

  __device__ void merge(const PrefillJob& job, const State& state) const {
    const bool has_rows = __any_sync(0xffffffffu, state.row < job.work.num_rows);
    merge_parts<kDim>(parts, job.index, job.part, has_rows, state.o, state.rows, score_factor(p),
                      [&](int h, int n, float low, float high) {
                        write_pair(job.work, state.row + 8 * h, n, low, high);
                      });
  }

  // Two neighbours of the lane's in column tile n.
  __device__ void write_pair(const PrefillWork& work, int r, int n, float low, float high) const {
    if (r >= work.num_rows) return;
    const int64_t token = work.first_token + r / p.group;
    const int head = work.kv_head * p.group + r % p.group;
    auto* target = out + (token * p.params.num_heads + head) * kDim + 8 * n;
    reinterpret_cast<uint32_t*>(target)[threadIdx.x % 4] = pack_bfloat16(low, high);
  }

  // Zeros from line `first` on, where anything may lie that no row sees, NaN too.
  __device__ static void clear_lines(typename Shared::Keys& lines, int first) {
    const int count = (kKeys - first) * 8;
    for (int i = threadIdx.x; i < count * kChunks; i += kConsumers)
      *reinterpret_cast<uint4*>(&lines[i / count][first + i % count / 8][i % 8 * 16]) = {};
    order_copies_behind_writes();
    meet_part_threads();
  }

  __device__ static void begin_scores(float (&s)[kKeys / 2], Shared& shared, uint32_t queries,
                                      const Turn<kStages>& stage) {
    shared.keys_there[stage.place].wait(stage.parity);
    const uint64_t q = describe_tile(queries);
    const uint64_t k = describe_tile(shared_address(&shared.keys[stage.place]));
    begin_products();
#  pragma unroll
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
#  pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
#  pragma unroll
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
    if (p.params.soft_cap > 0) cap_scores(scores, p);
    const bool some_hidden =
        tile + kKeys - 1 > state.first_position || tile < p.first_visible(state.last_position);
    if (some_hidden) hide_keys(scores, p, state.own, tile, static_cast<int>(threadIdx.x) % 32);
    weigh_keys(scores, state.rows, score_factor(p), keep);
  }

  __device__ static void pack_weights(const float (&s)[kKeys / 2], State& state) {
#  pragma unroll
    for (int i = 0; i < kKeys / 4; ++i)
      state.weights[i / 4][i % 4] = pack_bfloat16(s[2 * i], s[2 * i + 1]);
  }

  // Through the warp's rows of the queries' memory, which no product of the group reads any more,
  // so that rows go out in whole vectors.
  __device__ void write(const PrefillWork& work, const State& state, typename Shared::Queries& rows,
                        int group) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp_row =
        group * kGroupRows + static_cast<int>(threadIdx.x) % kGroupThreads / 32 * 16;
    meet_group(group);
#  pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float factor = softmax_factor(state.rows, h);
#  pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        auto* place = static_cast<uint32_t*>(place_in(rows, warp_row + lane / 4 + 8 * h, n));
        place[lane % 4] =
            pack_bfloat16(state.o[4 * n + 2 * h] * factor, state.o[4 * n + 2 * h + 1] * factor);
      }
    }
    __syncwarp();
    const int count = min(16, work.num_rows - work.row - warp_row) * kVectors;
    for (int i = lane; i < count; i += 32) {
      const int row = warp_row + i / kVectors, vector = i % kVectors, r = work.row + row;
      const int64_t token = work.first_token + r / p.group;
      const int head = work.kv_head * p.group + r % p.group;
      *reinterpret_cast<uint4*>(out + (token * p.params.num_heads + head) * kDim + vector * 8) =
          *static_cast<const uint4*>(place_in(rows, row, vector));
    }
  }

#endif
};

template <typename Kernel>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_prefill_kernel(const __grid_constant__ CUtensorMap map,
                         const __grid_constant__ Kernel kernel) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shared = typename Kernel::Shared;
  extern __shared__ uint8_t dynamic[];
  auto& shared = *reinterpret_cast<Shared*>(dynamic + (-shared_address(dynamic) & 1023));
  kernel.run(map, shared, reinterpret_cast<int*>(&shared + 1));
#endif
}

// Whether this build has the kernels for Hopper proper (sm_90a): without, they are empty, and have
// no arrays in shared memory.
bool is_compiled() {
  static const bool result = [] {
    cudaFuncAttributes attributes = {};
    NANOVLLM_CUDA_CHECK(
        cudaFuncGetAttributes(&attributes, wgmma_prefill_kernel<WgmmaPrefillKernel<64>>));
    return attributes.sharedSizeBytes > 0;
  }();
  return result;
}

// The workspace: counters of work, counters of parts, and the parts.
constexpr int kWorkCounters = 2, kCounters = 1024;

// Into how many parts to cut the keys of up to `max_jobs` jobs, so that all blocks get one.
template <int kDim>
int count_parts(int64_t max_jobs, int max_seq_len, const AttentionWorkspace& workspace) {
  const int max_parts = max_seq_len / (kMinPartTiles * PrefillShared<kDim>::kKeys);
  const int64_t blocks = std::min(workspace.num_multiprocessors, kCounters - kWorkCounters);
  const int64_t parts = blocks / max_jobs;
  return static_cast<int>(std::clamp<int64_t>(parts, 1, std::max(max_parts, 1)));
}

template <int kDim>
bool launch_for_dim(cudaStream_t stream, __nv_bfloat16* out, const __nv_bfloat16* qkv,
                    const KvCache& cache, const AttentionProblem& p, const PrefillBatch& batch,
                    const AttentionWorkspace& workspace) {
  using Kernel = WgmmaPrefillKernel<kDim>;
  const int num_seqs = p.num_seqs - p.first_seq, heads = p.kv.num_kv_heads;
  const size_t bytes = 1024 + sizeof(PrefillShared<kDim>) + sizeof(int) * (num_seqs + 1);
  if (bytes + 1024 > static_cast<size_t>(workspace.max_shared_bytes)) return false;
  const int64_t rows = int64_t{batch.num_tokens} * p.group;
  // Every sequence may end in a piece of one row.
  const int64_t max_jobs = (rows + int64_t{num_seqs} * (kRows - 1)) / kRows * heads;
  const int parts = count_parts<kDim>(max_jobs, batch.max_seq_len, workspace);
  const bool is_large =
      rows / num_seqs > kGroupRows && max_jobs >= workspace.num_multiprocessors / 4;
  if (parts == 1 && !is_large) return false;
  int box_rows = 16;
  while (box_rows < PrefillShared<kDim>::kKeys && p.kv.block_size % (box_rows * 2) == 0)
    box_rows *= 2;
  const CUtensorMap map =
      make_line_map(cache.data, cache.num_blocks * 2 * heads * p.kv.block_size, kDim, box_rows);
  const auto blocks = std::min<int64_t>(max_jobs * parts, workspace.num_multiprocessors);
  uint32_t* words = workspace.prefill_words;
  auto* sums = reinterpret_cast<float*>(words + kCounters);
  launch(stream, wgmma_prefill_kernel<Kernel>, static_cast<unsigned>(blocks), kThreads, bytes, map,
         Kernel{out, qkv, p, {parts, sums, words + kWorkCounters}, words, box_rows});
  return true;
}

}  // namespace

size_t prefill_attention_bytes(int num_multiprocessors) {
  return sizeof(uint32_t) *
         (kCounters + size_t{kMaxPartWords} * kPartThreads * num_multiprocessors);
}

bool launch_wgmma_prefill_attention(cudaStream_t stream, __nv_bfloat16* out,
                                    const __nv_bfloat16* qkv, const KvCache& cache,
                                    const AttentionProblem& problem, const PrefillBatch& batch,
                                    const AttentionWorkspace& workspace) {
  if (workspace.prefill_words == nullptr || !is_compiled()) return false;
  switch (problem.kv.head_dim) {
    case 64:
      return launch_for_dim<64>(stream, out, qkv, cache, problem, batch, workspace);
    case 128:
      return launch_for_dim<128>(stream, out, qkv, cache, problem, batch, workspace);
    case 256:
      return launch_for_dim<256>(stream, out, qkv, cache, problem, batch, workspace);
    default:
      return false;
  }
}

}  // namespace nanovllm::cuda
