#include "models/workspace.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace nanovllm {
namespace {

constexpr size_t kAlignment = 256;  // bytes; whole cache lines, and what tensor cores like

// Deals out offsets; pointers are known once the total is.
class Layout {
 public:
  void add(Tensor* tensor, DType dtype, int64_t rows, int64_t cols) {
    *tensor = Tensor(nullptr, dtype, {rows, cols});
    entries_.push_back({tensor, end_});
    end_ += (tensor->bytes() + kAlignment - 1) / kAlignment * kAlignment;
    bytes_ = std::max(bytes_, end_);
  }
  size_t end() const { return end_; }
  void go_back(size_t end) { end_ = end; }
  void skip_to_total() { end_ = bytes_; }
  size_t bytes() const { return bytes_; }
  void place(void* memory) const {
    for (const Entry& entry : entries_) {
      entry.tensor->data = static_cast<char*>(memory) + entry.offset;
    }
  }

 private:
  struct Entry {
    Tensor* tensor;
    size_t offset;
  };
  std::vector<Entry> entries_;
  size_t end_ = 0;
  size_t bytes_ = 0;
};

}  // namespace

Workspace::Workspace(const ModelContext& context, const ShardSizes& sizes, bool has_lanes) {
  const ModelConfig& config = context.config;
  const int64_t rows = context.max_num_tokens;
  const int64_t hidden = config.hidden_size;
  const int64_t head_dim = config.head_dim;
  const DType act = context.dtype;

  Layout layout;
  layout.add(&all_.residual, DType::kFloat32, rows, hidden);
  layout.add(&kept_residual_, DType::kFloat32, rows, hidden);
  layout.add(&all_.hidden, act, rows, hidden);
  layout.add(&all_.branch, act, rows, hidden);
  const size_t shared = layout.end();
  layout.add(&all_.qkv, act, rows, (sizes.num_heads + 2 * sizes.num_kv_heads) * head_dim);
  layout.add(&all_.attention, act, rows, sizes.num_heads * head_dim);
  layout.go_back(shared);
  layout.add(&all_.gate_up, act, rows, int64_t{2} * sizes.intermediate_size);
  layout.add(&all_.mlp, act, rows, sizes.intermediate_size);
  layout.skip_to_total();
  const int64_t half = has_lanes ? (int64_t{context.max_num_logits} + 1) / 2 : 0;
  for (const auto& [tensor, whole] : {std::pair{&second_.qkv, &all_.qkv},
                                      {&second_.attention, &all_.attention},
                                      {&second_.gate_up, &all_.gate_up},
                                      {&second_.mlp, &all_.mlp}})
    layout.add(tensor, act, half, whole->row_size());
  layout.add(&logits_, DType::kFloat32, context.max_num_logits, config.vocab_size);
  if (sizes.vocab_is_sharded) {
    layout.add(&logits_shard_, DType::kFloat32, context.max_num_logits, sizes.vocab_size);
  }
  memory_ = context.backend.allocate(layout.bytes());
  layout.place(memory_->data());
}

Activations Workspace::activations(int num_tokens) const {
  Activations x = all_;
  for (Tensor* tensor :
       {&x.residual, &x.hidden, &x.branch, &x.qkv, &x.attention, &x.gate_up, &x.mlp}) {
    *tensor = tensor->first_rows(num_tokens);
  }
  return x;
}

Activations Workspace::lane_activations(int lane, int num_tokens) const {
  const int half = num_tokens / 2;
  if (lane == 0) return activations(half);
  Activations x = activations(num_tokens);
  for (Tensor* tensor : {&x.residual, &x.hidden, &x.branch})
    *tensor = tensor->slice_rows(half, num_tokens);
  const int rest = num_tokens - half;
  x.qkv = second_.qkv.first_rows(rest);
  x.attention = second_.attention.first_rows(rest);
  x.gate_up = second_.gate_up.first_rows(rest);
  x.mlp = second_.mlp.first_rows(rest);
  return x;
}

void Workspace::keep_rows(Step& step) const {
  const int num_rows = step.batch.num_logits;
  const Activations from = step.x;
  step.x = activations(num_rows);
  step.x.residual = kept_residual_.first_rows(num_rows);
  // qkv has been read, and its rows are wider: the kept rows of attention fit in its memory.
  step.x.attention.data = all_.qkv.data;
  step.backend.gather_rows(step.x.residual, from.residual, step.batch.logits_rows);
  step.backend.gather_rows(step.x.attention, from.attention, step.batch.logits_rows);
}

Tensor Workspace::logits(int num_rows) const { return logits_.first_rows(num_rows); }

Tensor Workspace::logits_shard(int num_rows) const {
  return logits_shard_ ? logits_shard_.first_rows(num_rows) : Tensor();
}

}  // namespace nanovllm
