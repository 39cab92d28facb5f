// The gated delta rule of long sequences, chunk by chunk; see gated_delta.cu for the formulas and
// the order of sums, which are the same.
//
// A block has 64 of a head's values or 32, for their columns of u and o depend on no others. A
// chunk takes three phases. First some warps multiply the state with its keys and queries, the
// others those with each other. Then warps substitute: a thread has kThreadColumns columns of every
// sixteenth row of u and o, and as u comes row by row, adds it to all that follow. Last, the first
// warps fold the chunk into the state, while another sums up the next chunk's gates; its rows have
// come in the meantime.
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/recurrent/delta_chunks.h"
#include "backend/cuda/recurrent/delta_state.cuh"

namespace nanovllm::cuda {
namespace {

using T = __nv_bfloat16;

constexpr int kWeightWarps = kStateChunk / 16;
// Rows and columns of a thread's part of u and of o.
constexpr int kRowGroups = 16, kThreadRows = kStateChunk / kRowGroups;
constexpr int kThreadColumns = 4;
static_assert(kThreadRows == 4);  // weights are read by fours

// A chunk: rows before `known` are in the log, those from `end` on not there yet.
struct Chunk {
  int first;  // position
  int known, end;

  __device__ Chunk(const DeltaSequence& s, int first_position)
      : first(first_position),
        known(min(max(s.first - first, 0), kStateChunk)),
        end(min(s.end - first, kStateChunk)) {}
};

template <int kValues>
class ChunkBlock {
 public:
  static constexpr int kValueWarps = kValues / 16, kWarps = kValueWarps + kWeightWarps;
  static constexpr int kThreads = kWarps * 32;

  __device__ ChunkBlock(const DeltaProblem& p, const DeltaSequence& s, int head, int slice,
                        char* shared)
      : p_(p),
        s_(s),
        head_(head),
        key_head_(p.key_head_of(head)),
        first_value_(slice * kValues),
        places_(p.layout.key_dim, kValues),
        shared_(shared),
        state_(first_value_ + warp_ * 16) {}

  __device__ void run() {
    if (has_values()) state_.load(p_, s_, head_);
    wait_for_predecessor();
    release_successor();
    Chunk chunk(s_, s_.state_len);
    int stage = 0;
    load_rows(chunk, stage);
    wait_for_copies<0>();
    __syncthreads();
    if (is_for_gates()) sum_gates(chunk, stage);
    while (true) {
      __syncthreads();
      multiply(chunk, stage);
      const Chunk next(s_, chunk.first + kStateChunk);
      const bool is_last = next.first >= s_.end;
      __syncthreads();
      if (!is_last) load_rows(next, stage ^ 1);
      substitute(chunk, stage);
      wait_for_copies<0>();
      __syncthreads();
      if (is_last) break;
      if (has_values()) {
        state_.fold(p_, key(stage, 0), places_.key_stride, value(stage, 0) - first_value_,
                    kValueStride, rests(stage), decays(stage)[kStateChunk - 1]);
      } else if (is_for_gates()) {
        sum_gates(next, stage ^ 1);
      }
      stage ^= 1;
      chunk = next;
    }
    write_log(chunk, stage);
    if (has_values() && s_.folds()) state_.store(p_, s_, head_);
  }

 private:
  static constexpr int kValueStride = ChunkShared::stride_of(kValues);
  static constexpr int kWeightStride = ChunkShared::kWeightStride;

  __device__ bool has_values() const {
    return warp_ < kValueWarps && first_value_ + warp_ * 16 < p_.layout.value_dim;
  }
  __device__ bool is_for_gates() const { return warp_ == kWarps - 1; }

  // Sums of g up to each row.
  __device__ double* sums(int stage) const {
    return reinterpret_cast<double*>(shared_) + stage * kStateChunk;
  }
  // Of each row: beta, e^G, what its u is weighted with in the fold, and G.
  __device__ float* betas(int stage) const {
    return reinterpret_cast<float*>(shared_ + ChunkShared::kFactors) + stage * 5 * kStateChunk;
  }
  __device__ float* decays(int stage) const { return betas(stage) + kStateChunk; }
  __device__ float* rests(int stage) const { return betas(stage) + 2 * kStateChunk; }
  __device__ SplitSum* splits(int stage) const {
    return reinterpret_cast<SplitSum*>(betas(stage) + 3 * kStateChunk);
  }
  __device__ DeltaGate* gates(int stage) const {
    return reinterpret_cast<DeltaGate*>(shared_ + ChunkShared::kGates) + stage * kStateChunk;
  }
  // Row kStateChunk + t is query t.
  __device__ T* key(int stage, int row) const {
    return reinterpret_cast<T*>(shared_ + places_.keys + stage * places_.keys_bytes) +
           row * places_.key_stride;
  }
  __device__ float* value(int stage, int row) const {
    return reinterpret_cast<float*>(shared_ + places_.values) +
           (stage * kStateChunk + row) * kValueStride;
  }
  __device__ float* read(int row) const {
    return reinterpret_cast<float*>(shared_ + places_.reads) + row * kValueStride;
  }
  __device__ float* weight(int row) const {
    return reinterpret_cast<float*>(shared_ + places_.weights) + row * kWeightStride;
  }

  // Starts the copies of a chunk's rows: of a key and its query by a warp at once.
  __device__ void load_rows(const Chunk& chunk, int stage) const {
    const int half = lane_ / 16, element = lane_ % 16 * 8;
    for (int t = warp_; t < chunk.end && element < p_.layout.key_dim; t += kWarps) {
      const int position = chunk.first + t;
      if (t >= chunk.known) {
        const T* const from = p_.key<T>(s_.row(position), key_head_) + half * p_.layout.key_dim;
        copy_async(shared_address(key(stage, half * kStateChunk + t) + element), from + element,
                   true);
      } else if (half == 0) {
        copy_async(shared_address(key(stage, t) + element),
                   log_key<T>(p_, s_, key_head_, position) + element, true);
      }
    }
    constexpr int kVectors = kValues / 4, kRowsAtOnce = 32 / kVectors;
    const int c = lane_ % kVectors * 4, column = first_value_ + c;
    for (int t = kRowsAtOnce * warp_ + lane_ / kVectors;
         t < chunk.end && column < p_.layout.value_dim; t += kRowsAtOnce * kWarps) {
      const float* const from =
          t < chunk.known ? log_value(p_, s_, head_, t) : p_.value(s_.row(chunk.first + t), head_);
      copy_async(shared_address(value(stage, t) + c), from + column, true);
    }
    for (int t = chunk.known + thread_; t < chunk.end; t += kThreads) {
      copy_async(shared_address(gates(stage) + t), p_.gate(s_.row(chunk.first + t), head_), true);
    }
    commit_copies();
  }

  // x of rows begin .. end - 1 become sums of all up to theirs, as those before `begin` are.
  __device__ static void add_up(double* x, int begin, int end) {
    constexpr int kAtOnce = 16;
    double sum = begin > 0 ? x[begin - 1] : 0;
    for (; begin + kAtOnce <= end; begin += kAtOnce) {
      double g[kAtOnce];  // loads wait for no store
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) g[i] = x[begin + i];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) x[begin + i] = sum += g[i];
    }
    for (; begin < end; ++begin) x[begin] = sum += x[begin];
  }

  // By a warp: sums of g one after another, in float64, and what follows from them.
  __device__ void sum_gates(const Chunk& chunk, int stage) const {
    double* const sum_of = sums(stage);
    for (int t = lane_; t < chunk.end; t += 32) {
      if (t < chunk.known) {
        sum_of[t] = *log_gate(p_, s_, head_, t);
      } else {
        sum_of[t] = gates(stage)[t].g;
        betas(stage)[t] = gates(stage)[t].beta;
      }
    }
    __syncwarp();
    if (lane_ == 0) add_up(sum_of, chunk.known, chunk.end);
    __syncwarp();
    const double last = sum_of[chunk.end - 1];
    for (int t = lane_; t < chunk.end; t += 32) {
      splits(stage)[t] = SplitSum::of(sum_of[t]);
      decays(stage)[t] = expf(static_cast<float>(sum_of[t]));
      rests(stage)[t] = expf(static_cast<float>(last - sum_of[t]));
      // For the log, which the head's other blocks may still read.
      if (first_value_ == 0 && t >= chunk.known && chunk.first == s_.last_chunk()) {
        p_.gate(s_.row(chunk.first + t), head_)->sum = sum_of[t];
      }
    }
  }

  // Products of a chunk's keys and queries with the state and with its keys.
  __device__ void multiply(const Chunk& chunk, int stage) const {
    if (chunk.known >= kStateChunk) return;
    if (has_values()) multiply_state(chunk, stage);
    const int row = (warp_ - kValueWarps) * 16;
    if (row >= 0 && row < chunk.end) multiply_keys(chunk, row, stage);
  }

  __device__ void multiply_state(const Chunk& chunk, int stage) const {
    const float* const beta = betas(stage);
    const float* const decay = decays(stage);
    state_.template multiply<2 * kStateChunk>(
        p_, key(stage, 0), places_.key_stride, [&](int i, int column, float sum) {
          const int t = column % kStateChunk, c = i - first_value_;
          if (column >= kStateChunk) {
            read(t)[c] = sum;
          } else if (t >= chunk.known) {
            float& x = value(stage, t)[c];
            x = beta[t] * fmaf(-decay[t], sum, x);
          }
        });
  }

  // Of 16 rows. Zero is what rows before them would have of them, if it is read, and what there is
  // behind the chunk's end.
  __device__ void multiply_keys(const Chunk& chunk, int first_row, int stage) const {
    constexpr int kTiles = kStateChunk / 8;
    float products[2 * kTiles][4] = {};
    const uint32_t source = shared_address(key(stage, first_row + lane_ % 16) + lane_ / 16 * 8);
    multiply_tiles(products, key(stage, 0), places_.key_stride, p_.layout.key_dim / 16,
                   [&](uint32_t(&a)[4], int step) { load_matrices(a, source + 32 * step); });
    const int i = first_row + lane_ / 4, in_tile = lane_ % 4 * 2;
    const SplitSum at_row[2] = {splits(stage)[i], splits(stage)[i + 8]};
    float* const target = weight(i) + in_tile * kThreadRows;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (8 * n + 7 < first_row) continue;
      const SplitSum* const at_column = splits(stage) + 8 * n + in_tile;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = i + e / 2 * 8, t = 8 * n + in_tile + e % 2;
        const bool is_none = t < row || t >= chunk.end;
        const float decay = decay_between<T>(at_row[e / 2], at_column[e % 2]);
        float* const weight =
            target + e / 2 * 8 * kWeightStride + (n % 2 * 8 + e % 2) * kThreadRows + n / 2;
        weight[0] = is_none || t == row ? 0 : decay * products[n][e];
        weight[kStateChunk] = is_none ? 0 : decay * products[kTiles + n][e];
      }
    }
  }

  // x[first] and those behind it, of four.
  __device__ static void load_last(float (&x)[kThreadRows], const float* p, int first) {
    if (first < 2) {
      load_vector(x, p);
    } else {
      const float2 pair = first == 2 ? load_pair(p + 2) : float2{0, p[3]};
      x[2] = pair.x;
      x[3] = pair.y;
    }
  }

  // u, in place of what it is computed from, and o of a chunk's new rows. A thread has rows
  // group, group + 16 ... and computes u of its own; others get it by a shuffle.
  __device__ void substitute(const Chunk& chunk, int stage) const {
    if (chunk.known >= kStateChunk) return;
    constexpr int kColumnsOfWarp = 32 / kRowGroups * kThreadColumns;
    const int part = warp_ - (kWarps - kValues / kColumnsOfWarp);
    if (part < 0) return;
    const int group = lane_ % kRowGroups;
    const int column = part * kColumnsOfWarp + lane_ / kRowGroups * kThreadColumns;
    const bool is_inside = first_value_ + column < p_.layout.value_dim;
    float u_sums[kThreadRows][kThreadColumns] = {}, o_sums[kThreadRows][kThreadColumns] = {};
    const float* const weights = weight(0) + group * kThreadRows;
#pragma unroll
    for (int m = 0; m < kThreadRows; ++m) {
      if (m * kRowGroups >= chunk.end) break;
      const int t = m * kRowGroups + group;
      // u of a row of the log is what it is, and zero behind the chunk's end.
      const float factor = t < chunk.known || t >= chunk.end ? 0 : -betas(stage)[t];
      float x[kThreadColumns] = {};
      if (t < chunk.end) load_vector(x, value(stage, t) + column);
#pragma unroll
      for (int owner = 0; owner < kRowGroups; ++owner) {
        const float* const of_row = weights + (m * kRowGroups + owner) * kWeightStride;
        float for_u[kThreadRows], for_o[kThreadRows], u[kThreadColumns];
        load_last(for_u, of_row, m);
        load_last(for_o, of_row + kStateChunk, m);
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) {
          u[c] = __shfl_sync(~0u, fmaf(factor, u_sums[m][c], x[c]), owner, kRowGroups);
        }
#pragma unroll
        for (int r = m; r < kThreadRows; ++r) {
#pragma unroll
          for (int c = 0; c < kThreadColumns; ++c) {
            u_sums[r][c] = fmaf(for_u[r], u[c], u_sums[r][c]);
          }
        }
#pragma unroll
        for (int r = m; r < kThreadRows; ++r) {
#pragma unroll
          for (int c = 0; c < kThreadColumns; ++c) {
            o_sums[r][c] = fmaf(for_o[r], u[c], o_sums[r][c]);
          }
        }
      }
      // Rows add nothing to those before them, nor to their own u: the sums are still theirs.
      if (t >= chunk.end) continue;
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) x[c] = fmaf(factor, u_sums[m][c], x[c]);
      store_vector(value(stage, t) + column, x);
      if (t < chunk.known || !is_inside) continue;
      float o[kThreadColumns];
      load_vector(o, read(t) + column);
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) o[c] = fmaf(decays(stage)[t], o[c], o_sums[m][c]);
      store_vector(p_.value(s_.row(chunk.first + t), head_) + first_value_ + column, o);
    }
  }

  // u of the last chunk's new rows.
  __device__ void write_log(const Chunk& chunk, int stage) const {
    const int column = first_value_ + lane_ * 2;
    if (lane_ * 2 >= kValues || column >= p_.layout.value_dim) return;
    for (int t = chunk.known + warp_; t < chunk.end; t += kWarps) {
      store_pair(log_value(p_, s_, head_, t) + column, load_pair(value(stage, t) + lane_ * 2));
    }
  }

  const DeltaProblem& p_;
  const DeltaSequence& s_;
  const int head_, key_head_;
  const int first_value_;  // of the slice
  const ChunkShared places_;
  char* const shared_;
  const int thread_ = static_cast<int>(threadIdx.x);
  const int warp_ = thread_ / 32, lane_ = thread_ % 32;
  StateTile<T> state_;
};

template <int kValues>
__global__ void __launch_bounds__(ChunkBlock<kValues>::kThreads, 1)
    delta_chunks_kernel(const __grid_constant__ DeltaProblem p, int slices) {
  extern __shared__ __align__(16) char shared[];
  const int blocks = p.num_value_heads * slices, block = static_cast<int>(blockIdx.x) % blocks;
  const DeltaSequence s(p, sequence_of_block(p, blocks));
  if (s.next != nullptr && !s.is_short()) {
    return ChunkBlock<kValues>(p, s, block / slices, block % slices, shared).run();
  }
  wait_for_predecessor();
  release_successor();
}

}  // namespace

void launch_delta_chunks(cudaStream_t stream, const DeltaProblem& p, int slice_values,
                         size_t shared_bytes) {
  const int slices = (p.layout.value_dim + slice_values - 1) / slice_values;
  const int num_prompts = p.num_seqs - p.num_decodes;  // which stand behind the decodes
  with_constant<kFewSliceValues, kSliceValues>(slice_values, [&]<int kValues>() {
    launch(stream, delta_chunks_kernel<kValues>,
           static_cast<unsigned>(num_prompts * p.num_value_heads * slices),
           ChunkBlock<kValues>::kThreads, shared_bytes, p, slices);
  });
}

}  // namespace nanovllm::cuda
