// The gated delta rule on rows of a chunk, by forward substitution: Yang et al., arXiv 2412.06464,
// without the inverse of a matrix. With S the state at the chunk's start, G_t the sum of g up to
// row t, and k, q, v, beta of its rows,
//   u_t = beta_t (v_t - e^G_t S^T k_t) - beta_t sum over i < t of (e^(G_t - G_i) k_i.k_t) u_i
//   o_t =               e^G_t S^T q_t  +        sum over i <= t of (e^(G_t - G_i) k_i.q_t) u_i
// No exponent is positive. An element's sums run over ascending keys' elements or ascending rows,
// by the same instructions whatever the rows beside it: prefill, decode and verification give the
// same bits.
//
// A block computes a sequence's rows for one value head. A decode moves the head's state, 4 bytes
// an element, and on average half of the chunk's keys and u: 64 + 8 + 16 KiB for dimensions of 128,
// all of it asked for before the predecessor is waited for; the state is written once in
// kStateChunk tokens. A chunk of a prompt costs the tensor cores 512 key_dim (value_dim + 32)
// operations, as the fold's factor is split into two bfloat16, and 4096 multiply-adds in float32
// for each value; its state stays in registers from chunk to chunk.
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
constexpr int kKeepThreads = 256;

template <typename T, int kRows>
class DeltaBlock {
 public:
  __device__ DeltaBlock(const DeltaProblem& p, const DeltaSequence& s, int head, char* shared)
      : p_(p),
        s_(s),
        head_(head),
        places_(p.layout.key_dim, p.layout.value_dim, kRows, sizeof(T)),
        shared_(shared),
        inputs_(p, s) {}

  __device__ void run(bool keeps) {
    // What is older than the predecessor, as decode attention's keys and values are.
    state_.load(p_, s_, head_);
    load_log();
    prefetch();
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
    const int key_head = p_.key_head_of(head_);
    if (keeps && head_ == p_.value_head(key_head, 0)) keep_rows<T>(p_, s_, key_head);
  }

 private:
  __device__ double* gates() const { return reinterpret_cast<double*>(shared_); }
  __device__ float* betas() const { return reinterpret_cast<float*>(shared_ + places_.factors); }
  __device__ float* decays() const { return betas() + kManyDeltaRows; }
  __device__ T* key(int row) const {
    return reinterpret_cast<T*>(shared_ + places_.keys) + row * places_.key_stride;
  }
  __device__ T* vector(int i) const {
    return reinterpret_cast<T*>(shared_ + places_.vectors) + i * places_.key_stride;
  }
  __device__ float* value(int row) const {
    return reinterpret_cast<float*>(shared_ + places_.values) + row * places_.value_stride;
  }
  __device__ float* read(int row) const {
    return reinterpret_cast<float*>(shared_ + places_.reads) + row * places_.value_stride;
  }
  __device__ float* weight(int row) const {
    return reinterpret_cast<float*>(shared_ + places_.weights) + row * places_.weight_stride;
  }
  __device__ float* log_value(int row) const {
    return reinterpret_cast<float*>(s_.log + p_.layout.values) +
           (int64_t{head_} * kStateChunk + row) * p_.layout.value_dim;
  }
  __device__ double* log_gate(int row) const {
    return reinterpret_cast<double*>(s_.log + p_.layout.gates) + head_ * kStateChunk + row;
  }
  // Who computes gates: the last warp.
  __device__ bool has_gates() const { return warp_ == num_threads_ / 32 - 1; }

  // Starts the copies of the present chunk's rows.
  __device__ void load_log() const {
    const int count = s_.first - s_.state_len;
    constexpr int kElements = 16 / sizeof(T);
    const int key_vectors = p_.layout.key_dim / kElements, value_vectors = p_.layout.value_dim / 4;
    const int key_head = p_.key_head_of(head_);
    for (int i = thread_; i < count * key_vectors; i += num_threads_) {
      const int row = i / key_vectors, offset = i % key_vectors * kElements;
      copy_async(shared_address(key(row) + offset),
                 log_key<T>(p_, s_, key_head, s_.state_len + row) + offset, true);
    }
    for (int i = thread_; i < count * value_vectors; i += num_threads_) {
      const int row = i / value_vectors, offset = i % value_vectors * 4;
      copy_async(shared_address(value(row) + offset), log_value(row) + offset, true);
    }
    commit_copies();
    if (!has_gates()) return;
    for (int row = lane_; row < count; row += 32) gates()[row] = *log_gate(row);
  }

  // Into L2, what new rows are convolved with.
  __device__ void prefetch() const {
    constexpr int kLine = 32, kLines = kMaxStateValueDim / kLine;  // float32
    const int key_head = p_.key_head_of(head_), kept = p_.conv_width - 1;
    for (int i = thread_; i < 3 * kLines; i += num_threads_) {
      const int part = i / kLines, offset = i % kLines * kLine;
      if (offset >= (part < 2 ? p_.key_dim : p_.value_dim)) continue;
      const int c = offset + (part == 0   ? p_.q_channel(key_head)
                              : part == 1 ? p_.k_channel(key_head)
                                          : p_.v_channel(head_));
      for (int j = 0; j <= kept; ++j) {
        prefetch_line(p_.params.conv_weight + j * p_.layout.num_channels + c);
        const T* const x = j < kept ? inputs_.row(s_.first - kept + j) : nullptr;
        if (x != nullptr) prefetch_line(x + c);
      }
    }
  }

  // All rows of the chunk are there: they become part of the state.
  __device__ void fold() {
    wait_for_copies<0>();
    __syncthreads();
    const double last = gates()[kStateChunk - 1];
    const int width = p_.layout.value_dim;
    for (int i = thread_; i < kStateChunk * width; i += num_threads_) {
      const int row = i / width;
      value(row)[i % width] *= expf(static_cast<float>(last - gates()[row]));
    }
    __syncthreads();
    state_.fold(p_, key(0), places_.key_stride, value(0), places_.value_stride,
                expf(static_cast<float>(last)));
    __syncthreads();
  }

  // Keys, queries, values and gates of new rows, and what the log brings.
  __device__ void read_rows(int first, int count) const {
    const int t = first % kStateChunk, key_head = p_.key_head_of(head_);
    for (int job = warp_; job < 2 * count; job += num_threads_ / 32) {
      const int r = job / 2;
      if (job % 2 == 0) {
        inputs_.write_vector(first + r, p_.k_channel(key_head), 1, vector(r), key(t + r));
      } else {
        const float scale = 1 / sqrtf(static_cast<float>(p_.key_dim));
        inputs_.write_vector(first + r, p_.q_channel(key_head), scale, vector(kRows + r));
      }
    }
    const int pairs = p_.layout.value_dim / 2;
    // Of one row, by other warps than its key and query.
    for (int i = (thread_ + num_threads_ / 2) % num_threads_; i < count * pairs;
         i += num_threads_) {
      const int r = i / pairs, c = i % pairs * 2;
      const bool is_inside = c < p_.value_dim;
      const float2 v = is_inside ? inputs_.convolved(first + r, p_.v_channel(head_) + c) : float2{};
      store_pair(value(t + r) + c, v);
    }
    if (has_gates()) read_gates(first, count);
    wait_for_copies<0>();
    __syncthreads();
  }

  // The sums of g are taken one after another, in float64.
  __device__ void read_gates(int first, int count) const {
    const int t = first % kStateChunk;
    if (lane_ < count) {
      const T* const row = inputs_.row(first + lane_);
      const float b = load(row + p_.b_column(head_));
      const float a = load(row + p_.a_column(head_)) + p_.params.dt_bias[head_];
      betas()[lane_] = p_.params.beta_scale / (1.f + expf(-b));
      gates()[t + lane_] = p_.params.decay[head_] * (a > 20.f ? a : log1pf(expf(a)));
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
    if (first >= s_.last_chunk()) *log_gate(t + lane_) = sum;
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
      weight(i)[column] = expf(static_cast<float>(gates()[t + r] - gates()[i])) * product;
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
      const int num_warps = num_threads_ / 32;
      for (int row = (num_warps - 1 - warp_) * 16; row < t + count; row += num_warps * 16) {
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
    const int column = thread_ % width;
    const bool is_for_u = thread_ < width, is_kept = first >= s_.last_chunk();
    const int offset = is_for_u ? 0 : kRows;
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
        if (is_kept) log_value(t + i)[column] = u;
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

  // Their norm and gate: a row a warp.
  __device__ void write_rows(int first, int count) const {
    constexpr int kPairs = kMaxStateValueDim / 64;  // a lane's
    const int dim = p_.value_dim;
    for (int r = warp_; r < count; r += num_threads_ / 32) {
      const T* const z = inputs_.row(first + r) + p_.z_column(head_);
      float2 o[kPairs] = {}, gate[kPairs], norm[kPairs];
      float squares = 0;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int c = 2 * lane_ + 64 * i;
        if (c >= dim) continue;
        gate[i] = load_pair(z + c);
        norm[i] = load_pair(p_.params.out_norm + c);
        o[i] = load_pair(read(r) + c);
        squares = fmaf(o[i].x, o[i].x, squares);
        squares = fmaf(o[i].y, o[i].y, squares);
      }
      const float mean = warp_sum(squares) / static_cast<float>(dim);
      const float factor = 1 / sqrtf(mean + p_.params.eps);
      T* const out = static_cast<T*>(p_.out) +
                     (s_.first_row + first + r - s_.first) * p_.out_width() + head_ * dim;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int c = 2 * lane_ + 64 * i;
        if (c >= dim) continue;
        store_pair(out + c, {o[i].x * factor * norm[i].x * activate<Activation::kSilu>(gate[i].x),
                             o[i].y * factor * norm[i].y * activate<Activation::kSilu>(gate[i].y)});
      }
    }
  }

  const DeltaProblem& p_;
  const DeltaSequence& s_;
  const int head_;
  const DeltaShared places_;
  char* const shared_;
  const DeltaInputs<T> inputs_;
  const int thread_ = static_cast<int>(threadIdx.x), num_threads_ = static_cast<int>(blockDim.x);
  const int warp_ = thread_ / 32, lane_ = thread_ % 32;
  StateTile<T> state_;
};

template <typename T>
__device__ void clear_rows(const DeltaProblem& p, const DeltaSequence& s, int head) {
  wait_for_predecessor();
  release_successor();
  for (int i = static_cast<int>(threadIdx.x); i < s.num_rows * p.value_dim;
       i += static_cast<int>(blockDim.x)) {
    store(static_cast<T*>(p.out) + (s.first_row + i / p.value_dim) * p.out_width() +
              head * p.value_dim + i % p.value_dim,
          0);
  }
}

// Sequences with many rows stand behind: their blocks come first.
__device__ int sequence_of_block(const DeltaProblem& p, int blocks_a_sequence) {
  return p.num_seqs - 1 - static_cast<int>(blockIdx.x) / blocks_a_sequence;
}

template <typename T, int kRows>
__global__ void __launch_bounds__(kBoundThreads, 1)
    gated_delta_kernel(const __grid_constant__ DeltaProblem p, bool keeps) {
  extern __shared__ __align__(16) char shared[];
  const int head = static_cast<int>(blockIdx.x) % p.num_value_heads;
  const DeltaSequence s(p, sequence_of_block(p, p.num_value_heads));
  if (s.next == nullptr) return clear_rows<T>(p, s, head);
  DeltaBlock<T, kRows>(p, s, head, shared).run(keeps);
}

template <typename T>
__global__ void __launch_bounds__(kKeepThreads)
    keep_rows_kernel(const __grid_constant__ DeltaProblem p) {
  wait_for_predecessor();
  release_successor();
  const DeltaSequence s(p, sequence_of_block(p, p.num_key_heads));
  if (s.next != nullptr) keep_rows<T>(p, s, static_cast<int>(blockIdx.x) % p.num_key_heads);
}

DeltaProblem problem_of(Tensor out, Tensor in, const GatedDeltaParams& params,
                        const StateCache& cache, const ForwardBatch& batch) {
  const StateSpec& spec = cache.spec;
  return {.layout = DeltaLayout(spec),
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
          .num_seqs = batch.num_seqs,
          .query_start_loc = batch.query_start_loc,
          .seq_lens = batch.seq_lens,
          .state_slot = batch.state_slot,
          .state_len = batch.state_len,
          .next_slot = batch.next_slot,
          .log_slot = batch.log_slot};
}

}  // namespace

void launch_gated_delta(cudaStream_t stream, Tensor out, Tensor in, const GatedDeltaParams& params,
                        const StateCache& cache, const ForwardBatch& batch,
                        const GatedDeltaPlan& plan) {
  if (batch.num_tokens == 0) return;
  const DeltaProblem problem = problem_of(out, in, params, cache, batch);
  const auto blocks = [&](int heads) {
    return static_cast<unsigned>(int64_t{batch.num_seqs} * heads);
  };
  with_act_type(cache.spec.dtype, [&]<typename T>(T) {
    with_constant<1, kManyDeltaRows>(plan.rows, [&]<int kRows>() {
      launch(stream, gated_delta_kernel<T, kRows>, blocks(problem.num_value_heads),
             plan.num_threads, plan.shared_bytes, problem, !plan.keeps_apart);
    });
    if (!plan.keeps_apart) return;
    launch(stream, keep_rows_kernel<T>, blocks(problem.num_key_heads), kKeepThreads, 0, problem);
  });
}

}  // namespace nanovllm::cuda
