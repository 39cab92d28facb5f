// The gated delta rule on rows of a chunk, by forward substitution: Yang et al., arXiv 2412.06464,
// without the inverse of a matrix. With S the state at the chunk's start, G_t the sum of g up to
// row t, and k, q, v, beta of its rows,
//   u_t = beta_t (v_t - e^G_t S^T k_t) - beta_t sum over i < t of (e^(G_t - G_i) k_i.k_t) u_i
//   o_t =               e^G_t S^T q_t  +        sum over i <= t of (e^(G_t - G_i) k_i.q_t) u_i
// No exponent is positive. An element's sums run over ascending keys' elements or ascending rows,
// by the same instructions whatever the rows beside it: prefill, decode and verification give the
// same bits.
//
// Keys, queries, values and gates of new rows are prepared by a kernel before (delta_rows.cu). Here
// a block computes a sequence's rows for one value head. A decode moves the head's state, 4 bytes
// an element, and on average half of the chunk's keys and u: 64 + 8 + 16 KiB for dimensions of 128,
// all of it asked for before the predecessor is waited for; the state is written once in
// kStateChunk tokens. Long sequences are delta_chunks.cu's, where it has a kernel for them.
#include <type_traits>

#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/recurrent/delta_state.cuh"
#include "backend/cuda/recurrent/gated_delta.h"
#include "base/assert.h"

namespace nanovllm::cuda {
namespace {

// Of a block at most, as the compiler is told: two blocks for heads of 128, which have 256, then
// fit the registers of a multiprocessor.
constexpr int kBoundThreads = 512;
static_assert(2 * kMaxStateValueDim <= kBoundThreads);

// Of one value head.
template <typename T, int kRows>
class DeltaBlock {
 public:
  __device__ DeltaBlock(const DeltaProblem& p, const DeltaSequence& s, int head, char* shared)
      : p_(p),
        s_(s),
        head_(head),
        places_(p.layout.key_dim, p.layout.value_dim, kRows, sizeof(T)),
        shared_(shared),
        state_(warp_ * 16) {}

  __device__ void run() {
    // What older steps left is asked for early, as decode attention does with keys and values.
    state_.load(p_, s_, head_);
    load_log();
    wait_for_predecessor();
    release_successor();
    for (int first = s_.first; first < s_.end;) {
      const int t = first % kStateChunk;
      if (t == 0 && first > s_.state_len) fold();
      const int count = min(min(kRows, kStateChunk - t), s_.end - first);
      read_rows(first, count);
      multiply(t, count);
      substitute(first, count);
      write_rows(first, count);
      first += count;
    }
    if (s_.folds()) state_.store(p_, s_, head_);
  }

 private:
  __device__ double* gates() const { return reinterpret_cast<double*>(shared_); }
  __device__ T* key(int row) const {
    return reinterpret_cast<T*>(shared_ + DeltaShared::keys) + row * places_.key_stride;
  }
  __device__ float* value(int row) const {
    return reinterpret_cast<float*>(shared_ + places_.values) + row * places_.value_stride;
  }
  __device__ float* betas() const {
    return reinterpret_cast<float*>(shared_ + DeltaShared::factors);
  }
  __device__ float* decays() const { return betas() + kManyDeltaRows; }
  __device__ T* vector(int i) const {
    return reinterpret_cast<T*>(shared_ + places_.vectors) + i * places_.key_stride;
  }
  __device__ float* read(int row) const {
    return reinterpret_cast<float*>(shared_ + places_.reads) + row * places_.value_stride;
  }
  __device__ float* weight(int row) const {
    return reinterpret_cast<float*>(shared_ + places_.weights) + row * places_.weight_stride;
  }
  // Who computes gates: the last warp.
  __device__ bool has_gates() const { return warp_ == num_warps_ - 1; }

  // Starts the copies of the present chunk's rows: gates, by their warp, then the rest.
  __device__ void load_log() const {
    const int count = s_.first - s_.state_len, key_head = p_.key_head_of(head_);
    for (int i = lane_; has_gates() && 2 * i < count; i += 32) {
      copy_async(shared_address(gates() + 2 * i), log_gate(p_, s_, head_, 2 * i), true);
    }
    commit_copies();
    constexpr int kRing = DeltaLayout::kKeyRing, kElements = 16 / sizeof(T);
    const T* const keys = log_key<T>(p_, s_, key_head, 0);
    const float* const values = log_value(p_, s_, head_, 0);
#pragma unroll 4
    for (int row = warp_, at = s_.state_len % kRing + warp_; row < count;
         row += num_warps_, at += num_warps_) {
      const T* const from = keys + (at < kRing ? at : at - kRing) * p_.layout.key_dim;
      for (int c = lane_ * kElements; c < p_.layout.key_dim; c += 32 * kElements) {
        copy_async(shared_address(key(row) + c), from + c, true);
      }
      for (int c = lane_ * 4; c < p_.layout.value_dim; c += 128) {
        copy_async(shared_address(value(row) + c), values + row * p_.layout.value_dim + c, true);
      }
    }
    commit_copies();
  }

  // All rows of the chunk are there: they become part of the state.
  __device__ void fold() {
    wait_for_copies<0>();
    __syncthreads();
    const double last = gates()[kStateChunk - 1];
    float* const rests = weight(0);
    for (int row = thread_; row < kStateChunk; row += num_threads_) {
      rests[row] = expf(static_cast<float>(last - gates()[row]));
    }
    __syncthreads();
    state_.fold(p_, key(0), places_.key_stride, value(0), places_.value_stride, rests,
                expf(static_cast<float>(last)));
    __syncthreads();
  }

  // Keys, queries, values and gates of new rows, and what the log brings.
  __device__ void read_rows(int first, int count) const {
    const int t = first % kStateChunk, row = s_.row(first), key_head = p_.key_head_of(head_);
    constexpr int kHalf = 16, kElements = 16 / sizeof(T);
    for (int r = warp_; r < count; r += num_warps_) {
      const bool is_key = lane_ < kHalf;
      const T* const from = is_key ? p_.key<T>(row + r, key_head) : p_.query<T>(row + r, key_head);
      for (int c = lane_ % kHalf * kElements; c < p_.layout.key_dim; c += kHalf * kElements) {
        const auto x = *reinterpret_cast<const uint4*>(from + c);
        *reinterpret_cast<uint4*>(vector(is_key ? r : kRows + r) + c) = x;
        if (is_key) *reinterpret_cast<uint4*>(key(t + r) + c) = x;
      }
    }
    // Of one row, by another warp than its key and query.
    for (int r = (warp_ + 1) % num_warps_; r < count; r += num_warps_) {
      const float* const from = p_.value(row + r, head_);
      for (int c = 4 * lane_; c < p_.layout.value_dim; c += 128) {
        *reinterpret_cast<float4*>(value(t + r) + c) = *reinterpret_cast<const float4*>(from + c);
      }
    }
    if (has_gates()) read_gates(first, count);
    wait_for_copies<0>();
    __syncthreads();
  }

  // The sums of g are taken one after another, in float64.
  __device__ void read_gates(int first, int count) const {
    const int t = first % kStateChunk;
    wait_for_copies<1>();
    __syncwarp();
    if (lane_ < count) {
      const DeltaGate& gate = *p_.gate(s_.row(first) + lane_, head_);
      gates()[t + lane_] = gate.g;
      betas()[lane_] = gate.beta;
    }
    __syncwarp();
    if (lane_ == 0) {
      double sum = t > 0 ? gates()[t - 1] : 0;
#pragma unroll 1
      for (int r = 0; r < count; ++r) gates()[t + r] = sum += gates()[t + r];
    }
    __syncwarp();
    if (lane_ >= count) return;
    const double sum = gates()[t + lane_];
    decays()[lane_] = expf(static_cast<float>(sum));
    if (first >= s_.last_chunk()) *log_gate(p_, s_, head_, t + lane_) = sum;
  }

  // Products of keys and queries with the state and with the chunk's keys.
  __device__ void multiply(int t, int count) const {
    state_.template multiply<2 * kRows>(p_, vector(0), places_.key_stride,
                                        [&](int i, int column, float sum) {
                                          const int r = column % kRows;
                                          if (r >= count || column >= 2 * kRows) return;
                                          if (column >= kRows) {
                                            read(r)[i] = sum;
                                          } else {
                                            float& x = value(t + r)[i];
                                            x = betas()[r] * fmaf(-decays()[r], sum, x);
                                          }
                                        });
    const auto set_weight = [&](int i, int column, float product) {
      const int r = column % kRows;
      if (i > t + r || r >= count || column >= 2 * kRows) return;
      const float decay = decay_between<T>(SplitSum::of(gates()[i]), SplitSum::of(gates()[t + r]));
      weight(i)[column] = decay * product;
    };
    if constexpr (std::is_same_v<T, float>) {
      for (int i = thread_; i < (t + count) * 2 * kRows; i += num_threads_) {
        const int row = i / (2 * kRows), column = i % (2 * kRows);
        float sum = 0;
#pragma unroll 4
        for (int d = 0; d < p_.key_dim; ++d) sum = fmaf(key(row)[d], vector(column)[d], sum);
        set_weight(row, column, sum);
      }
    } else {
      const uint32_t source = shared_address(key(lane_ % 16) + lane_ / 16 * 8);
      for (int row = (num_warps_ - 1 - warp_) * 16; row < t + count; row += num_warps_ * 16) {
        float sum[(2 * kRows + 7) / 8][4] = {};
        multiply_tiles(sum, vector(0), places_.key_stride, p_.layout.key_dim / 16,
                       [&](uint32_t(&a)[4], int step) {
                         load_matrices(a, source + (row * places_.key_stride + 16 * step) * 2);
                       });
        for_each_element(sum, row, set_weight);
      }
    }
    __syncthreads();
  }

  // u of the new rows, into the log too, and then o. Two threads share a column of values: one is
  // for u, one for o.
  __device__ void substitute(int first, int count) const {
    const int t = first % kStateChunk, width = p_.layout.value_dim;
    const bool is_for_u = thread_ < width, is_kept = first >= s_.last_chunk();
    const int column = is_for_u ? thread_ : thread_ - width, offset = is_for_u ? 0 : kRows;
    float sum[kRows] = {}, w[kRows];
#pragma unroll(kRows > 1 ? 4 : 8)
    for (int i = 0; i < t; ++i) {
      load_vector(w, weight(i) + offset);
      const float u = value(i)[column];
#pragma unroll
      for (int r = 0; r < kRows; ++r) sum[r] = fmaf(w[r], u, sum[r]);
    }
    if (is_for_u) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (i >= count) break;
        const float u = fmaf(-betas()[i], sum[i], value(t + i)[column]);
        value(t + i)[column] = u;
        if (is_kept) log_value(p_, s_, head_, t + i)[column] = u;
        load_vector(w, weight(t + i) + offset);
#pragma unroll
        for (int r = i + 1; r < kRows; ++r) sum[r] = fmaf(w[r], u, sum[r]);
      }
    }
    __syncthreads();
    if (!is_for_u) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (i >= count) break;
        load_vector(w, weight(t + i) + offset);
        const float u = value(t + i)[column];
#pragma unroll
        for (int r = i; r < kRows; ++r) sum[r] = fmaf(w[r], u, sum[r]);
        read(i)[column] = fmaf(decays()[i], read(i)[column], sum[i]);
      }
    }
    __syncthreads();
  }

  // Their norm and gate.
  __device__ void write_rows(int first, int count) const {
    for (int r = warp_; r < count; r += num_warps_) {
      RowWriter<T>(p_, head_).write(s_.row(first + r), read(r));
    }
  }

  const DeltaProblem& p_;
  const DeltaSequence& s_;
  const int head_;
  const DeltaShared places_;
  char* const shared_;
  const int thread_ = static_cast<int>(threadIdx.x), num_threads_ = static_cast<int>(blockDim.x);
  const int warp_ = thread_ / 32, lane_ = thread_ % 32, num_warps_ = num_threads_ / 32;
  StateTile<T> state_;
};

template <typename T, int kRows>
__global__ void __launch_bounds__(kBoundThreads, 1)
    gated_delta_kernel(const __grid_constant__ DeltaProblem p) {
  extern __shared__ __align__(16) char shared[];
  const int head = static_cast<int>(blockIdx.x) % p.num_value_heads;
  const DeltaSequence s(p, sequence_of_block(p, p.num_value_heads));
  if (s.next != nullptr && !(p.takes_chunks && !s.is_short())) {
    return DeltaBlock<T, kRows>(p, s, head, shared).run();
  }
  wait_for_predecessor();
  release_successor();
  if (s.next != nullptr) return;
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  for (int r = static_cast<int>(threadIdx.x) / 32; r < s.num_rows; r += num_warps) {
    clear_row<T>(p, s.first_row + r, head);
  }
}

DeltaProblem problem_of(Tensor out, Tensor in, const GatedDeltaParams& params,
                        const StateCache& cache, const ForwardBatch& batch, void* rows,
                        const GatedDeltaPlan& plan) {
  const StateSpec& spec = cache.spec;
  const DeltaLayout layout(spec);
  return {.layout = layout,
          .row_layout = DeltaRowLayout(spec, layout),
          .params = params,
          .num_key_heads = spec.num_key_heads,
          .num_value_heads = spec.num_value_heads,
          .key_dim = spec.key_dim,
          .value_dim = spec.value_dim,
          .conv_width = spec.conv_width,
          .in = in.data,
          .out = out.data,
          .slots = static_cast<char*>(cache.slots),
          .logs = static_cast<char*>(cache.logs),
          .rows = static_cast<char*>(rows),
          .num_tokens = batch.num_tokens,
          .num_seqs = batch.num_seqs,
          .num_decodes = batch.num_decodes,
          .max_query_len = batch.max_query_len,
          .takes_chunks = plan.chunk_bytes > 0,
          .query_start_loc = batch.query_start_loc,
          .seq_lens = batch.seq_lens,
          .state_slot = batch.state_slot,
          .state_len = batch.state_len,
          .next_slot = batch.next_slot,
          .log_slot = batch.log_slot};
}

}  // namespace

void launch_gated_delta(cudaStream_t stream, Tensor out, Tensor in, const GatedDeltaParams& params,
                        const StateCache& cache, const ForwardBatch& batch, void* rows,
                        const GatedDeltaPlan& plan) {
  if (batch.num_tokens == 0) return;
  const DeltaProblem problem = problem_of(out, in, params, cache, batch, rows, plan);
  launch_prepare_rows(stream, problem, cache.spec.dtype);
  if (!problem.takes_chunks || batch.num_seqs > 1) {
    with_act_type(cache.spec.dtype, [&]<typename T>(T) {
      with_constant<1, kManyDeltaRows>(plan.rows, [&]<int kRows>() {
        launch(stream, gated_delta_kernel<T, kRows>,
               static_cast<unsigned>(batch.num_seqs * problem.num_value_heads), plan.num_threads,
               plan.shared_bytes, problem);
      });
    });
  }
  if (problem.takes_chunks) {
    launch_delta_chunks(stream, problem, plan.chunk_values, plan.chunk_bytes);
  }
  if (plan.finishes) launch_finish_rows(stream, problem, cache.spec.dtype);
}

}  // namespace nanovllm::cuda
