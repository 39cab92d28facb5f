#include "ops/layer_program.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "base/parallel_jobs.h"

namespace nanovllm {
namespace {

constexpr size_t kAlignment = 256;  // bytes; whole cache lines, and what tensor cores like

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Vectors of the host that become one piece of device memory.
class Vectors {
 public:
  void add(const float** out, const std::vector<float>& values) {
    entries_.push_back({out, values, bytes_});
    bytes_ += aligned(values.size() * sizeof(float));
  }
  std::unique_ptr<Buffer> upload(Backend& backend) const {
    auto memory = backend.allocate(bytes_);
    for (const Entry& entry : entries_) {
      char* const at = static_cast<char*>(memory->data()) + entry.offset;
      backend.upload(at, entry.values.data(), entry.values.size() * sizeof(float));
      *entry.out = reinterpret_cast<const float*>(at);
    }
    return memory;
  }

 private:
  struct Entry {
    const float** out;
    std::span<const float> values;
    size_t offset;
  };
  std::vector<Entry> entries_;
  size_t bytes_ = 0;
};

int64_t size_of_experts(const Experts& experts) {
  const auto size = [](const Matrix& matrix) {
    return matrix.in_features() * matrix.out_features();
  };
  const Dense& one = experts.experts.front();
  return std::ssize(experts.experts) * (size(one.gate_up) + size(one.down));
}

// Calls `pack`, which reads these matrices; checks their files before, releases them after.
template <typename Pack>
auto read_sources(const std::vector<const Matrix*>& matrices, Pack pack) {
  std::set<const MatrixSource*> sources;
  for (const Matrix* matrix : matrices) {
    for (const HostMatrix& piece : matrix->pieces) {
      if (piece.source != nullptr) sources.insert(piece.source);
    }
  }
  for (const MatrixSource* source : sources) source->check_size();
  auto packed = pack();
  for (const MatrixSource* source : sources) source->release();
  return packed;
}

// The weights of a layer that there are.
template <typename Visit>
void for_each_weight(const PackedLayer& layer, Visit visit) {
  for (const auto* weight : {&layer.in, &layer.out, &layer.gate_up, &layer.down}) {
    if (*weight != nullptr) visit(**weight);
  }
  if (layer.experts != nullptr) visit(*layer.experts);
}

void pack_core(Vectors& vectors, PackedLayer& layer, const Attention& core) {
  layer.attention = {core.num_heads, core.scale, core.window, core.soft_cap};
  layer.attention.has_gate = core.has_gate;
  if (!core.sinks.empty()) vectors.add(&layer.attention.sinks, core.sinks);
  layer.rope.norm_eps = layer.heads_norm.eps = core.q_norm.eps;
  layer.heads_norm.q_width = core.num_heads * core.head_dim;
  layer.heads_norm.k_width = core.num_kv_heads * core.head_dim;
  const bool all = core.norms_all_heads;
  const auto head_norm = [&](const float** out, const Norm& host_norm) {
    if (!host_norm.is_absent()) vectors.add(out, host_norm.weight);
  };
  head_norm(all ? &layer.heads_norm.q_weight : &layer.rope.q_norm, core.q_norm);
  head_norm(all ? &layer.heads_norm.k_weight : &layer.rope.k_norm, core.k_norm);
}

void pack_core(Vectors& vectors, PackedLayer& layer, const GatedDelta& core) {
  GatedDeltaParams& params = layer.delta.emplace();
  vectors.add(&params.conv_weight, core.conv_weight);
  vectors.add(&params.decay, core.decay);
  vectors.add(&params.dt_bias, core.dt_bias);
  vectors.add(&params.out_norm, core.out_norm.weight);
  params.eps = core.out_norm.eps;
  params.beta_scale = core.beta_scale;
  params.key_heads_take_turns = core.key_heads_take_turns;
}

}  // namespace

std::string to_string(const PathChoice& choice) {
  std::string layers;
  if (choice.num_layers == 1) layers = fmt::format("layer {}, ", choice.first_layer);
  if (choice.num_layers > 1) {
    layers = fmt::format("layers {} to {}, ", choice.first_layer,
                         choice.first_layer + choice.num_layers - 1);
  }
  const std::string rows =
      choice.max_rows > 0 ? fmt::format(", up to {}", counted(choice.max_rows, "row")) : "";
  return fmt::format("{}{}{}: {}", layers, choice.part, rows, choice.path);
}

bool is_one_sum_and_norm(bool has_after_norm, float residual_scale, bool has_next_norm) {
  return !has_after_norm && residual_scale == 1 && has_next_norm;
}

std::unique_ptr<StackProgram> Backend::compile(const StackSpec& spec, const CompileLimits& limits) {
  return std::make_unique<LayerProgram>(*this, spec, limits);
}

std::unique_ptr<ExpertWeights> Backend::make_experts(const Experts&, DType, int) {
  throw_error(ErrorCode::kUnsupported,
              "{}: mixtures of experts are not supported on this device; use device cpu",
              description());
}

void Backend::experts(Tensor, Tensor, ExpertWeights&) { NANOVLLM_CHECK(!"a mixture of experts"); }

StateBytes Backend::state_bytes(const StateSpec&) const {
  NANOVLLM_CHECK(!"a recurrent layer");
  return {};
}

void Backend::gated_delta(Tensor, Tensor, const GatedDeltaParams&, const StateCache&,
                          const ForwardBatch&) {
  NANOVLLM_CHECK(!"a recurrent layer");
}

std::unique_ptr<LinearWeight> pack_matrix(Backend& backend, const Matrix& matrix, DType dtype) {
  return read_sources({&matrix}, [&] {
    return backend.make_linear(matrix.pieces, matrix.bias.empty() ? nullptr : matrix.bias.data(),
                               dtype);
  });
}

std::unique_ptr<ExpertWeights> pack_experts(Backend& backend, const Experts& experts,
                                            const CompileLimits& limits) {
  std::vector<const Matrix*> matrices = {&experts.router, &experts.shared_gate};
  const auto add = [&](const Dense& dense) {
    matrices.insert(matrices.end(), {&dense.gate_up, &dense.down});
  };
  std::ranges::for_each(experts.experts, add);
  if (experts.shared) add(*experts.shared);
  return read_sources(
      matrices, [&] { return backend.make_experts(experts, limits.dtype, limits.max_num_tokens); });
}

LayerProgram::LayerProgram(Backend& backend, const StackSpec& spec, const CompileLimits& limits)
    : backend_(backend), layers_(spec.layers.size()) {
  pack(spec, limits);
  lay_out(spec, limits);
}

void LayerProgram::pack(const StackSpec& spec, const CompileLimits& limits) {
  Vectors vectors;
  std::vector<Job> jobs;
  const auto norm = [&](NormParams& out, const Norm& host) {
    out.eps = host.eps;
    if (!host.is_absent()) vectors.add(&out.weight, host.weight);
  };
  const auto matrix = [&](std::unique_ptr<LinearWeight>& out, const Matrix& host) {
    jobs.push_back({host.in_features() * host.out_features(),
                    [&] { out = pack_matrix(backend_, host, limits.dtype); }});
  };
  std::vector<const float*> tables(spec.rotary_tables.size());
  for (size_t i = 0; i < tables.size(); ++i) vectors.add(&tables[i], spec.rotary_tables[i].cos_sin);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerSpec& host = spec.layers[i];
    PackedLayer& layer = layers_[i];
    norm(layer.before_core, host.before_core);
    norm(layer.after_core, host.after_core);
    norm(layer.before_ffn, host.before_ffn);
    norm(layer.after_ffn, host.after_ffn);
    matrix(layer.in, host.in);
    matrix(layer.out, host.out);
    if (const auto* ffn = std::get_if<Dense>(&host.ffn)) {
      matrix(layer.gate_up, ffn->gate_up);
      matrix(layer.down, ffn->down);
      layer.activation = ffn->activation;
    } else {
      const auto& experts = std::get<Experts>(host.ffn);
      jobs.push_back({size_of_experts(experts),
                      [&] { layer.experts = pack_experts(backend_, experts, limits); }});
    }
    std::visit([&](const auto& core) { pack_core(vectors, layer, core); }, host.core);
    layer.residual_scale = host.residual_scale;
  }
  norm(final_norm_, spec.final_norm);
  run_in_parallel(std::move(jobs), limits.num_threads,
                  [&] { memory_.push_back(vectors.upload(backend_)); });
  for (size_t i = 0; i < layers_.size(); ++i) {
    PackedLayer& layer = layers_[i];
    if (const auto* core = std::get_if<Attention>(&spec.layers[i].core)) {
      const RotaryTable& table = spec.rotary_tables[core->rotary_table];
      layer.rope.rotary_dim = table.rotary_dim;
      const int64_t positions = std::ssize(table.cos_sin) / std::max(1, table.rotary_dim);
      layer.rope.cos_sin = Tensor(const_cast<float*>(tables[core->rotary_table]), DType::kFloat32,
                                  {positions, table.rotary_dim});
    }
    for_each_weight(layer, [&](const auto& weight) { weight_bytes_ += weight.bytes; });
  }
}

// Attention and MLP share memory: one is done with it before the other begins.
void LayerProgram::lay_out(const StackSpec& spec, const CompileLimits& limits) {
  int64_t in = 0, core = 0, width = 0;
  for (const PackedLayer& layer : layers_) {
    in = std::max(in, layer.in->out_features);
    core = std::max(core, layer.out->in_features);
    if (layer.down != nullptr) width = std::max(width, layer.down->in_features);
  }
  const int64_t rows = limits.max_num_tokens;
  size_t end = 0;
  std::vector<std::pair<Tensor*, size_t>> places;
  const auto add = [&](Tensor& tensor, DType dtype, int64_t cols) {
    tensor = Tensor(nullptr, dtype, {rows, cols});
    places.emplace_back(&tensor, end);
    end += aligned(tensor.bytes());
  };
  add(kept_residual_, DType::kFloat32, spec.hidden_size);
  add(largest_.hidden, limits.dtype, spec.hidden_size);
  add(largest_.branch, limits.dtype, spec.hidden_size);
  add(largest_.means, DType::kFloat32, 2);
  const size_t shared = end;
  add(largest_.core_in, limits.dtype, in);
  add(largest_.core_out, limits.dtype, core);
  const size_t end_of_core = std::exchange(end, shared);
  add(largest_.gate_up, limits.dtype, 2 * width);
  add(largest_.mlp, limits.dtype, width);
  memory_.push_back(backend_.allocate(std::max(end, end_of_core)));
  for (const auto& [tensor, offset] : places) {
    tensor->data = static_cast<char*>(memory_.back()->data()) + offset;
  }
}

Activations LayerProgram::activations(Tensor residual) const {
  Activations x = largest_;
  x.residual = residual;
  for (Tensor* tensor :
       {&x.hidden, &x.branch, &x.core_in, &x.means, &x.core_out, &x.gate_up, &x.mlp}) {
    *tensor = tensor->first_rows(residual.rows());
  }
  return x;
}

// Rows as wide as a layer's, in memory for the widest.
void LayerProgram::fit(Activations& x, const PackedLayer& layer) {
  x.core_in.shape[1] = layer.in->out_features;
  x.core_out.shape[1] = layer.out->in_features;
  if (layer.gate_up == nullptr) return;
  x.gate_up.shape[1] = layer.gate_up->out_features;
  x.mlp.shape[1] = layer.down->in_features;
}

Tensor LayerProgram::run(const ForwardBatch& batch, const LayerCaches& caches, Tensor residual) {
  const bool is_last_stage = final_norm_.weight != nullptr;
  // Of nothing but decodes, as many rows as tokens are all rows, in order.
  const bool keeps_all = !is_last_stage || (batch.num_logits == batch.num_tokens &&
                                            batch.num_decodes == batch.num_tokens);
  Activations x = activations(residual);
  const PackedLayer& first = layers_.front();
  fit(x, first);
  backend_.rms_norm(x.hidden, x.residual, first.before_core.weight, first.before_core.eps);
  backend_.linear(x.core_in, x.hidden, *first.in);
  for (int i = 0; i < std::ssize(layers_); ++i) {
    const PackedLayer& layer = layers_[i];
    fit(x, layer);
    const bool is_last = i + 1 == std::ssize(layers_);
    const bool ends_here = is_last && is_last_stage && batch.num_logits == 0;
    core(i, x, caches, batch, !ends_here);
    if (ends_here) return x.hidden.first_rows(0);
    if (is_last && !keeps_all) gather_wanted_rows(x, batch);
    tail(i, x);
  }
  return is_last_stage ? x.hidden : x.residual;
}

void LayerProgram::core(int i, const Activations& x, const LayerCaches& caches,
                        const ForwardBatch& batch, bool needs_out) {
  const PackedLayer& layer = layers_[i];
  const auto index = static_cast<size_t>(i);
  if (layer.delta) {
    NANOVLLM_CHECK(index < caches.states.size());
    return backend_.gated_delta(x.core_out, x.core_in, *layer.delta, caches.states[index], batch);
  }
  NANOVLLM_CHECK(index < caches.kv.size());
  if (layer.heads_norm.q_weight != nullptr) {
    backend_.norm_all_heads(x.core_in, x.means, layer.heads_norm);
  }
  const KvCache& cache = caches.kv[index];
  const ForwardBatch of_group = batch.of_group(cache.group);
  if (needs_out) {
    backend_.store_and_attend(x.core_out, x.core_in, layer.rope, cache, layer.attention, of_group);
  } else {
    backend_.qk_norm_rope_store(x.core_in, layer.attention.num_heads, layer.rope, cache, of_group);
  }
}

// Of the residual and core_out, only the rows whose logits are wanted.
void LayerProgram::gather_wanted_rows(Activations& x, const ForwardBatch& batch) const {
  const Activations from = x;
  x = activations(kept_residual_.first_rows(batch.num_logits));
  fit(x, layers_.back());
  // core_in has been read, and its rows are wider: the kept rows fit in its memory.
  x.core_out.data = from.core_in.data;
  backend_.gather_rows(x.residual, from.residual, batch.logits_rows);
  backend_.gather_rows(x.core_out, from.core_out, batch.logits_rows);
}

void LayerProgram::tail(int i, Activations& x) {
  const PackedLayer& layer = layers_[i];
  backend_.linear(x.branch, x.core_out, *layer.out);
  add_and_norm(x, layer.after_core, layer.residual_scale, layer.before_ffn);
  mlp(layer, x);
  add_and_norm(x, layer.after_ffn, layer.residual_scale, next_norm(i));
  const PackedLayer* next = next_of(i);
  if (next == nullptr) return;
  fit(x, *next);
  backend_.linear(x.core_in, x.hidden, *next->in);
}

// hidden -> branch
void LayerProgram::mlp(const PackedLayer& layer, Activations& x) {
  if (layer.experts != nullptr) return backend_.experts(x.branch, x.hidden, *layer.experts);
  backend_.linear(x.gate_up, x.hidden, *layer.gate_up);
  backend_.act_and_mul(x.mlp, x.gate_up, layer.activation);
  backend_.linear(x.branch, x.mlp, *layer.down);
}

// residual += scale * after(branch of all ranks); hidden = next(residual).
void LayerProgram::add_and_norm(Activations& x, const NormParams& after, float scale,
                                const NormParams& next) {
  if (is_one_sum_and_norm(after.weight != nullptr, scale, next.weight != nullptr)) {
    backend_.all_reduce_add_rms_norm(x.hidden, x.residual, x.branch, next.weight, next.eps);
    return;
  }
  backend_.all_reduce(x.branch);
  if (after.weight != nullptr) {
    backend_.rms_norm(x.hidden, x.branch, after.weight, after.eps);
    std::swap(x.hidden, x.branch);
  }
  backend_.add_rms_norm(x.hidden, x.residual, x.branch, scale, next.weight, next.eps);
}

// A stage that is not the last ends with the residual: what is normed of it is nobody's.
const NormParams& LayerProgram::next_norm(int i) const {
  if (const PackedLayer* next = next_of(i)) return next->before_core;
  return final_norm_.weight != nullptr ? final_norm_ : layers_[i].before_ffn;
}

void add_layout(std::vector<LayoutUse>& uses, const LayoutUse& use) {
  const auto same = std::ranges::find(uses, use.layout, &LayoutUse::layout);
  if (same == uses.end()) {
    uses.push_back(use);
  } else {
    same->num_weights += use.num_weights;
    same->bytes += use.bytes;
    same->num_decoded += use.num_decoded;
  }
}

std::vector<LayoutUse> LayerProgram::weight_layouts() const {
  std::vector<LayoutUse> uses;
  for (const PackedLayer& layer : layers_) {
    for_each_weight(layer, [&](const auto& weight) { add_layouts_of(uses, weight); });
  }
  return uses;
}

std::vector<PathChoice> LayerProgram::weight_formats() const {
  std::vector<PathChoice> choices;
  for (const auto& layer : layers_) {
    std::set<std::string> formats;
    for_each_weight(layer, [&](const auto& weight) { formats.insert(weight.format); });
    const std::string path = fmt::format("{}", fmt::join(formats, " and "));
    if (choices.empty() || choices.back().path != path) {
      const int first = static_cast<int>(&layer - layers_.data());
      choices.push_back({.first_layer = first, .part = "weights", .path = path});
    }
    ++choices.back().num_layers;
  }
  return choices;
}

std::vector<PathChoice> LayerProgram::plan() const {
  std::vector<PathChoice> choices = weight_formats();
  choices.push_back(
      {.num_layers = static_cast<int>(layers_.size()), .part = "tail", .path = "op by op"});
  return choices;
}

}  // namespace nanovllm
