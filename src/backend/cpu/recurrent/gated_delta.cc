#include "backend/cpu/recurrent/gated_delta.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/recurrent/state_layout.h"

namespace nanovllm {
namespace {

static_assert(kDeltaChunk == kStateChunk);
constexpr int kMaxConvWidth = 16;

// What all units of a call have in common.
struct Call {
  const GatedDeltaParams& params;
  const StateCache& cache;
  const ForwardBatch& batch;
  const StateSpec& spec;
  const StateLayout layout;
  const DeltaKernels kernels;
  const Tensor in, out;
  const char* const no_input;  // a row of zeros

  size_t element() const { return size_of(spec.dtype); }
  // Columns of `in`.
  int64_t z_column(int value_head) const {
    return spec.num_channels() + int64_t{value_head} * spec.value_dim;
  }
  int64_t b_column(int value_head) const { return z_column(spec.num_value_heads) + value_head; }
  int64_t a_column(int value_head) const { return b_column(spec.num_value_heads) + value_head; }
  int64_t v_channel(int value_head) const {
    return int64_t{2} * spec.num_key_heads * spec.key_dim + int64_t{value_head} * spec.value_dim;
  }
  // The j-th of those that read a key head.
  int value_head(int key_head, int j) const {
    const int group = spec.num_value_heads / spec.num_key_heads;
    return params.key_heads_take_turns ? j * spec.num_key_heads + key_head : key_head * group + j;
  }
  const char* at(const Tensor& tensor, int64_t row, int64_t column) const {
    return tensor.as<char>() + static_cast<size_t>(row * tensor.row_size() + column) * element();
  }
  float number(int64_t row, int64_t column) const {
    const char* const bytes = at(in, row, column);
    if (spec.dtype == DType::kFloat32) return *reinterpret_cast<const float*>(bytes);
    return to_float(*reinterpret_cast<const BFloat16*>(bytes));
  }
};

// A thread's memory.
struct Scratch {
  float *vectors, *products, *v, *reads, *wide_keys, *weighted;

  Scratch(float* memory, const Call& call) {
    const int64_t dim = call.spec.key_dim, width = call.layout.padded_dim;
    const auto take = [&](int64_t floats) { return std::exchange(memory, memory + floats); };
    vectors = take(2 * kStateChunk * dim);
    products = take(2 * kStateChunk * kStateChunk);
    v = take(kStateChunk * width);
    reads = take(2 * kStateChunk * width);
    wide_keys = take(kStateChunk * dim);
    weighted = take(kStateChunk * width);
  }
  static int64_t num_floats(const Call& call) {
    const int64_t dim = call.spec.key_dim, width = call.layout.padded_dim;
    const int64_t floats = kStateChunk * (3 * dim + 4 * width + 2 * kStateChunk);
    return (floats + 15) / 16 * 16;
  }
};

double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// All new rows of a sequence, for one key head and the value heads that read it.
class Unit {
 public:
  Unit(const Call& call, const Scratch& scratch, int seq, int key_head)
      : call_(call),
        scratch_(scratch),
        seq_(seq),
        key_head_(key_head),
        first_row_(call.batch.query_start_loc[seq]),
        num_rows_(call.batch.query_start_loc[seq + 1] - call.batch.query_start_loc[seq]),
        first_position_(call.batch.seq_lens[seq] - num_rows_),
        state_len_(call.batch.state_len[seq]),
        next_(slot(call.batch.next_slot[seq])),
        log_(static_cast<char*>(call.cache.logs) +
             int64_t{call.batch.log_slot[seq]} * call.layout.log) {
    if (state_len_ > 0) state_ = slot(call.batch.state_slot[seq]);
  }

  void run() {
    NANOVLLM_CHECK(state_len_ % kStateChunk == 0 && first_position_ >= state_len_ &&
                   first_position_ - state_len_ <= kStateChunk);
    if (state_len_ > 0 && first_position_ == state_len_) take_kept_inputs();
    for (int done = 0; done < num_rows_;) {
      const int position = first_position_ + done;
      if (position % kStateChunk == 0 && position > state_len_) fold(position);
      const int count = std::min(kStateChunk - position % kStateChunk, num_rows_ - done);
      compute(position, count);
      done += count;
    }
    keep_inputs();
  }

 private:
  char* slot(int32_t index) const {
    return static_cast<char*>(call_.cache.slots) + int64_t{index} * call_.layout.slot;
  }
  char* ring_row(int position) const {
    return log_ + call_.layout.ring + position % call_.layout.ring_rows * call_.layout.row_bytes;
  }
  // The convolution's inputs at a position before the last new row's end.
  const char* input(int position) const {
    if (position < 0) return call_.no_input;
    if (position < first_position_) return ring_row(position);
    return call_.at(call_.in, first_row_ + position - first_position_, 0);
  }
  // Calls copy(offset, bytes) for this unit's channels of a row of inputs.
  template <typename Copy>
  void for_channels(Copy copy) const {
    const auto element = static_cast<int64_t>(call_.element());
    const StateSpec& spec = call_.spec;
    const int64_t q = int64_t{key_head_} * spec.key_dim;
    copy(q * element, spec.key_dim * element);
    copy((q + int64_t{spec.num_key_heads} * spec.key_dim) * element, spec.key_dim * element);
    for (int j = 0; j < num_value_heads(); ++j) {
      copy(call_.v_channel(call_.value_head(key_head_, j)) * element, spec.value_dim * element);
    }
  }
  void copy_inputs(char* to, const char* from) const {
    for_channels([&](int64_t offset, int64_t bytes) {
      std::memcpy(to + offset, from + offset, static_cast<size_t>(bytes));
    });
  }
  int num_value_heads() const { return call_.spec.num_value_heads / call_.spec.num_key_heads; }
  int num_kept() const { return call_.spec.conv_width - 1; }

  // Where a sequence goes on from a slot, its log knows nothing of the text before.
  void take_kept_inputs() const {
    for (int i = 0; i < num_kept(); ++i) {
      copy_inputs(ring_row(first_position_ - num_kept() + i),
                  state_ + call_.layout.conv_rows + i * call_.layout.row_bytes);
    }
  }
  void keep_inputs() const {
    const int count = std::min(num_rows_, call_.layout.ring_rows);
    for (int i = num_rows_ - count; i < num_rows_; ++i) {
      copy_inputs(ring_row(first_position_ + i), call_.at(call_.in, first_row_ + i, 0));
    }
  }

  char* keys() const { return log_ + key_head_ * call_.layout.key_bytes; }
  float* values(int value_head) const {
    return reinterpret_cast<float*>(log_ + call_.layout.values) +
           value_head * call_.layout.value_floats;
  }
  double* gates(int value_head) const {
    return reinterpret_cast<double*>(log_ + call_.layout.gates) + int64_t{value_head} * kStateChunk;
  }
  float* state_of(char* slot, int value_head) const {
    return slot == nullptr
               ? nullptr
               : reinterpret_cast<float*>(slot) + value_head * call_.layout.state_floats;
  }

  // The chunk that ends before `position` becomes part of the state.
  void fold(int position) {
    for (int j = 0; j < num_value_heads(); ++j) {
      const int head = call_.value_head(key_head_, j);
      call_.kernels.fold({.key_dim = call_.spec.key_dim,
                          .padded_dim = call_.layout.padded_dim,
                          .keys = keys(),
                          .u = values(head),
                          .gates = gates(head),
                          .state = state_of(state_, head),
                          .next = state_of(next_, head),
                          .wide_keys = scratch_.wide_keys,
                          .weighted = scratch_.weighted});
    }
    for (int i = 0; i < num_kept(); ++i) {
      copy_inputs(next_ + call_.layout.conv_rows + i * call_.layout.row_bytes,
                  input(position - num_kept() + i));
    }
    state_ = next_;
    state_len_ = position;
  }

  // Rows of one chunk.
  void compute(int position, int count) {
    std::array<const void*, kStateChunk + kMaxConvWidth> inputs;
    for (int i = 0; i < num_kept() + count; ++i) inputs[i] = input(position - num_kept() + i);
    const StateSpec& spec = call_.spec;
    const DeltaRows rows = {.first = position % kStateChunk,
                            .count = count,
                            .inputs = inputs.data(),
                            .conv_width = spec.conv_width,
                            .conv_weight = call_.params.conv_weight,
                            .num_channels = spec.num_channels(),
                            .q_channel = int64_t{key_head_} * spec.key_dim,
                            .k_channel = int64_t{spec.num_key_heads + key_head_} * spec.key_dim,
                            .key_dim = spec.key_dim,
                            .value_dim = spec.value_dim,
                            .padded_dim = call_.layout.padded_dim,
                            .q_scale = 1 / std::sqrt(static_cast<float>(spec.key_dim)),
                            .keys = keys(),
                            .vectors = scratch_.vectors,
                            .products = scratch_.products,
                            .v = scratch_.v,
                            .reads = scratch_.reads};
    call_.kernels.keys(rows);
    const int64_t row = first_row_ + position - first_position_;
    for (int j = 0; j < num_value_heads(); ++j) {
      compute_head(rows, row, call_.value_head(key_head_, j));
    }
  }

  void compute_head(const DeltaRows& rows, int64_t row, int head) {
    std::array<float, kStateChunk> beta;
    double* const sums = gates(head);
    for (int r = 0; r < rows.count; ++r) {
      const int t = rows.first + r;
      const double b = call_.number(row + r, call_.b_column(head));
      const double a = call_.number(row + r, call_.a_column(head));
      beta[r] = static_cast<float>(call_.params.beta_scale / (1 + std::exp(-b)));
      const double g = call_.params.decay[head] * softplus(a + call_.params.dt_bias[head]);
      sums[t] = (t > 0 ? sums[t - 1] : 0) + g;
    }
    const int64_t column = int64_t{head} * call_.spec.value_dim;
    call_.kernels.values(rows, {.v_channel = call_.v_channel(head),
                                .state = state_of(state_, head),
                                .u = values(head),
                                .gates = sums,
                                .beta = beta.data(),
                                .z = call_.at(call_.in, row, call_.z_column(head)),
                                .out = const_cast<char*>(call_.at(call_.out, row, column)),
                                .z_stride = call_.in.row_size(),
                                .out_stride = call_.out.row_size(),
                                .norm = call_.params.out_norm,
                                .eps = call_.params.eps});
  }

  const Call& call_;
  const Scratch& scratch_;
  const int seq_, key_head_;
  const int64_t first_row_;
  const int num_rows_, first_position_;
  int state_len_;
  char* state_ = nullptr;  // null = zeros
  char* const next_;
  char* const log_;
};

}  // namespace

void GatedDeltaRule::run(Tensor out, Tensor in, const GatedDeltaParams& params,
                         const StateCache& cache, const ForwardBatch& batch) {
  const StateSpec& spec = cache.spec;
  const size_t row_bytes = static_cast<size_t>(spec.num_channels()) * size_of(spec.dtype);
  if (no_input_.size() < row_bytes) no_input_.resize(row_bytes);
  const bool is_bfloat16 = spec.dtype == DType::kBFloat16;
  const auto kernels = with_isa(isa_, [&]<Isa set>() { return delta_kernels<set>(is_bfloat16); });
  const Call call = {params, cache, batch,           spec, StateLayout(spec), kernels,
                     in,     out,   no_input_.data()};
  const int64_t floats = Scratch::num_floats(call);
  auto* const memory = reinterpret_cast<float*>(
      scratch_.get(static_cast<size_t>(floats * pool_.num_threads()) * sizeof(float)));
  const int64_t num_units = int64_t{batch.num_seqs} * spec.num_key_heads;
  std::atomic<int64_t> next{0};
  pool_.parallel_for(std::min<int64_t>(pool_.num_threads(), num_units), [&](int64_t, int thread) {
    const Scratch scratch(memory + thread * floats, call);
    for (int64_t i = next++; i < num_units; i = next++) {
      // The last sequences have most rows.
      const auto seq = static_cast<int>(batch.num_seqs - 1 - i / spec.num_key_heads);
      if (batch.next_slot[seq] < 0) continue;
      Unit(call, scratch, seq, static_cast<int>(i % spec.num_key_heads)).run();
      pool_.advance(thread);
    }
  });
}

StateBytes CpuBackend::state_bytes(const StateSpec& spec) const {
  const StateLayout layout(spec);
  return {layout.slot, layout.log};
}

void CpuBackend::gated_delta(Tensor out, Tensor in, const GatedDeltaParams& params,
                             const StateCache& cache, const ForwardBatch& batch) {
  const StateSpec& spec = cache.spec;
  NANOVLLM_CHECK(in.dtype == spec.dtype && out.dtype == spec.dtype);
  NANOVLLM_CHECK(spec.num_value_heads % spec.num_key_heads == 0);
  NANOVLLM_CHECK(0 < spec.conv_width && spec.conv_width <= kMaxConvWidth);
  NANOVLLM_CHECK(in.row_size() ==
                 spec.num_channels() + int64_t{spec.num_value_heads} * (spec.value_dim + 2));
  gated_delta_.run(out, in, params, cache, batch);
}

}  // namespace nanovllm
