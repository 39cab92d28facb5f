// Mixtures of experts: their weights, all experts of a layer one behind the other, and the op.
#include <algorithm>

#include "backend/cuda/backend/cuda_backend.h"
#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/experts/expert_plan.h"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/linear/code_product.h"
#include "backend/cuda/linear/linear_float.h"
#include "backend/cuda/linear/linear_weight.h"
#include "base/check.h"

namespace nanovllm {
namespace {

using cuda::ExpertProduct;
using cuda::ExpertStep;

// More rows are computed in turns, so that scratch stays small.
constexpr int kMaxStepRows = 8192;

struct Packed final : ExpertWeights {
  cuda::RouterParams params;
  int hidden = 0, width = 0, shared_width = 0;
  Activation activation = Activation::kSilu, shared_activation = Activation::kSilu;
  std::unique_ptr<LinearWeight> router;  // the last row may be the shared expert's gate
  std::unique_ptr<Buffer> correction;
  std::unique_ptr<LinearWeight> gate_up, down;  // [experts, features, K]
  std::unique_ptr<LinearWeight> shared_gate_up, shared_down;
  WeightLayout weights_layout = WeightLayout::kPlain;  // of gate_up and down
  std::shared_ptr<Buffer> scratch;                     // of all layers alike

  cuda::ExpertShape shape(DType dtype) const {
    return {dtype,         activation, hidden, width, params.num_experts, params.num_active,
            weights_layout};
  }
};

// One step's views of the scratch.
struct StepMemory {
  ExpertStep step;
  Tensor shared_gate_up, shared_mlp, shared_out;
  size_t bytes = 0;
};

// Of steps of so many rows, in memory from `base` on.
StepMemory lay_out(const Packed& w, int rows, DType dtype, char* base) {
  StepMemory s;
  const auto take = [&]<typename T>(T*& p, int64_t count, size_t element_bytes = 4) {
    p = static_cast<T*>(static_cast<void*>(base + s.bytes));
    s.bytes += (static_cast<size_t>(count) * element_bytes + 255) / 256 * 256;
  };
  const auto take_tensor = [&](Tensor& tensor, int width) {
    tensor = Tensor(nullptr, dtype, {rows, width});
    take(tensor.data, tensor.num_elements(), size_of(dtype));
  };
  const int64_t pairs = int64_t{rows} * w.params.num_active;
  s.step.num_rows = rows;
  take(s.step.logits, int64_t{rows} * w.params.num_logits);
  for (int32_t** p : {&s.step.ids, &s.step.places, &s.step.tokens}) take(*p, pairs);
  take(s.step.scores, pairs);
  take(s.step.tiles, pairs / cuda::kPlainTileRows + w.params.count, sizeof(cuda::RowTile));
  take(s.step.num_tiles, 1);
  take(s.step.gathered, pairs * w.hidden, size_of(dtype));
  take(s.step.mlp, pairs * w.width, size_of(dtype));
  if (w.shared_down == nullptr) return s;
  take_tensor(s.shared_gate_up, 2 * w.shared_width);
  take_tensor(s.shared_mlp, w.shared_width);
  take_tensor(s.shared_out, w.hidden);
  return s;
}

// A product with weights in codes.
cuda::CodeProduct in_codes(const ExpertProduct& p, const CudaLinearWeight& weight, int step_rows,
                           int tile_rows) {
  cuda::CodeProduct product;
  product.shape = weight.parts.front().shape;
  product.codes = weight.parts.front().codes;
  product.rows = std::min(tile_rows, step_rows);
  product.features = p.out_features;
  product.bias = p.bias;
  product.x = p.x;
  product.out = p.out;
  product.out_stride = p.is_gated ? p.out_features / 2 : p.out_features;
  product.tiles = p.tiles;
  product.num_tiles = p.num_tiles;
  product.max_tiles = p.max_tiles;
  product.tokens = p.tokens;
  product.is_gated = p.is_gated;
  product.activation = p.activation;
  return product;
}

// The matrices one below the other.
Matrix stacked(const std::vector<const Matrix*>& matrices) {
  Matrix all;
  const bool has_bias = std::ranges::any_of(matrices, [](auto* m) { return !m->bias.empty(); });
  for (const Matrix* m : matrices) {
    all.pieces.insert(all.pieces.end(), m->pieces.begin(), m->pieces.end());
    all.bias.insert(all.bias.end(), m->bias.begin(), m->bias.end());
    if (has_bias) all.bias.resize(static_cast<size_t>(all.out_features()));
  }
  return all;
}

const CudaLinearWeight& cuda_weight(const std::unique_ptr<LinearWeight>& weight) {
  return static_cast<const CudaLinearWeight&>(*weight);
}

ExpertProduct product_of(const Packed& w, const std::unique_ptr<LinearWeight>& weight,
                         const ExpertStep& step, int tile_rows) {
  const int pairs = step.num_rows * w.params.num_active;
  return {.num_experts = w.params.count,
          .out_features = static_cast<int>(weight->out_features) / w.params.count,
          .in_features = static_cast<int>(weight->in_features),
          .weight = cuda_weight(weight).data,
          .bias = cuda_weight(weight).bias_data(),
          .tiles = step.tiles,
          .num_tiles = step.num_tiles,
          .max_pairs = pairs,
          .max_tiles = std::min(pairs, pairs / tile_rows + w.params.count)};
}

}  // namespace

std::unique_ptr<ExpertWeights> CudaBackend::make_experts(const Experts& experts, DType dtype,
                                                         int max_num_tokens) {
  const auto num_experts = static_cast<int>(experts.router.out_features());
  if (num_experts > cuda::kMaxExperts) {
    throw_error(ErrorCode::kUnsupported, "{}: {} experts a layer; at most {} are supported here",
                description(), num_experts, cuda::kMaxExperts);
  }
  auto packed = std::make_unique<Packed>();
  packed->weights_layout = cuda::code_layout_of(experts, dtype);
  const auto pack = [&](const Matrix& matrix, int gated_rows = 0) {
    auto weight = pack_linear(matrix.pieces, matrix.bias.empty() ? nullptr : matrix.bias.data(),
                              dtype, gated_rows);
    packed->bytes += weight->bytes;
    add_layouts_of(packed->parts_by_layout, *weight);
    return weight;
  };
  const auto pack_experts = [&](const std::vector<const Matrix*>& matrices, bool is_gated) {
    Matrix all = stacked(matrices);
    if (packed->weights_layout == WeightLayout::kPlain) {
      add_layout(packed->parts_by_layout,
                 {.layout = WeightLayout::kPlain, .num_decoded = num_with_codes(all.pieces)});
      for (HostMatrix& piece : all.pieces) piece.codes = nullptr;
    }
    return pack(all, is_gated ? static_cast<int>(matrices.front()->out_features()) : 0);
  };
  const Routing& routing = experts.routing;
  packed->router = pack(stacked({&experts.router, &experts.shared_gate}));
  packed->params = {.score = routing.score,
                    .num_experts = num_experts,
                    .num_logits = static_cast<int>(packed->router->out_features),
                    .num_groups = routing.num_groups,
                    .num_active_groups = routing.num_active_groups,
                    .num_active = routing.num_active,
                    .renormalise = routing.renormalise,
                    .scale = routing.scale,
                    .first = experts.first,
                    .count = static_cast<int>(experts.experts.size())};
  NANOVLLM_CHECK(routing.num_active <= kMaxActiveExperts);
  if (!routing.correction.empty()) {
    const size_t bytes = routing.correction.size() * sizeof(float);
    packed->correction = allocate(bytes);
    upload(packed->correction->data(), routing.correction.data(), bytes);
    packed->params.correction = static_cast<const float*>(packed->correction->data());
  }
  const Dense& one = experts.experts.front();
  packed->hidden = static_cast<int>(one.gate_up.in_features());
  packed->width = static_cast<int>(one.down.in_features());
  packed->activation = one.activation;
  std::vector<const Matrix*> gate_up, down;
  for (const Dense& expert : experts.experts) {
    gate_up.push_back(&expert.gate_up);
    down.push_back(&expert.down);
  }
  packed->gate_up = pack_experts(gate_up, true);
  packed->down = pack_experts(down, false);
  if (experts.shared) {
    packed->shared_width = static_cast<int>(experts.shared->down.in_features());
    packed->shared_activation = experts.shared->activation;
    packed->shared_gate_up = pack(experts.shared->gate_up);
    packed->shared_down = pack(experts.shared->down);
  }
  packed->layout = std::ranges::max_element(packed->parts_by_layout, {}, &LayoutUse::bytes)->layout;
  packed->format =
      packed->layout == WeightLayout::kPlain ? to_string(dtype) : to_string(packed->layout);
  const int rows = std::min(max_num_tokens, kMaxStepRows);
  const size_t bytes = lay_out(*packed, rows, dtype, nullptr).bytes;
  const std::lock_guard lock(expert_mutex_);
  if (expert_scratch_ == nullptr || expert_scratch_->bytes() < bytes) {
    expert_scratch_ = allocate(bytes);
  }
  packed->scratch = expert_scratch_;
  return packed;
}

void CudaBackend::experts(Tensor out, Tensor x, ExpertWeights& weights) {
  for (int64_t row = 0; row < x.rows(); row += kMaxStepRows) {
    const int64_t end = std::min(x.rows(), row + kMaxStepRows);
    some_experts(out.slice_rows(row, end), x.slice_rows(row, end), weights);
  }
}

void CudaBackend::some_experts(Tensor out, Tensor x, ExpertWeights& weights) {
  auto& w = static_cast<Packed&>(weights);
  const cuda::RouterParams& params = w.params;
  const int rows = static_cast<int>(x.rows());
  StepMemory s = lay_out(w, rows, x.dtype, static_cast<char*>(w.scratch->data()));
  NANOVLLM_CHECK(s.bytes <= w.scratch->bytes());
  const ExpertStep& step = s.step;
  if (cuda::is_router_a_product(rows, deterministic_)) {
    linear(Tensor(step.logits, DType::kFloat32, {rows, params.num_logits}), x, *w.router);
  } else {
    cuda::launch_linear_float(stream_, step.logits, x.data, x.dtype, cuda_weight(w.router).data,
                              cuda_weight(w.router).bias_data(), rows, params.num_logits, w.hidden);
  }
  if (w.shared_down != nullptr) {
    linear(s.shared_gate_up, x, *w.shared_gate_up);
    act_and_mul(s.shared_mlp, s.shared_gate_up, w.shared_activation);
    linear(s.shared_out, s.shared_mlp, *w.shared_down);
  }
  const cuda::ExpertPath path = cuda::plan_experts(w.shape(x.dtype), rows, traits_, deterministic_);
  const int tile_rows = cuda::tile_rows_of(path);
  ExpertProduct gate_up = product_of(w, w.gate_up, step, tile_rows);
  gate_up.is_gated = true;
  gate_up.activation = w.activation;
  gate_up.x = x.data;
  gate_up.out = step.mlp;
  ExpertProduct down = product_of(w, w.down, step, tile_rows);
  down.x = step.mlp;
  down.out = out.data;
  const int multiprocessors = traits_.num_multiprocessors();
  if (path == cuda::ExpertPath::kTwoKernels) {
    return cuda::launch_few(stream_, params, step, gate_up, down, s.shared_out.data, x.dtype,
                            multiprocessors);
  }
  const bool is_coded = w.weights_layout != WeightLayout::kPlain;
  const bool has_wgmma = !is_coded && path != cuda::ExpertPath::kPlainTiles;
  const int row_bytes = has_wgmma ? w.hidden * static_cast<int>(size_of(x.dtype)) : 0;
  cuda::launch_route_and_sort(stream_, params, step, tile_rows, x.data, row_bytes);
  if (has_wgmma) gate_up.x = step.gathered;
  if (!has_wgmma) gate_up.tokens = step.tokens;
  down.out = step.gathered;
  down.tiles_are_older = true;
  for (const ExpertProduct& product : {gate_up, down}) {
    if (is_coded) {
      const auto& weight = cuda_weight(product.is_gated ? w.gate_up : w.down);
      const cuda::CodeProduct coded = in_codes(product, weight, rows, tile_rows);
      if (!multiply_some_rows(coded)) cuda::launch_code_product(stream_, coded, traits_);
    } else if (has_wgmma) {
      cuda::launch_expert_wgmma(stream_, product, tile_rows, multiprocessors);
    } else {
      cuda::launch_expert_product(stream_, product, x.dtype, multiprocessors);
    }
  }
  cuda::launch_combine(stream_, out.data, x.dtype, params, step, s.shared_out.data, w.hidden);
}

}  // namespace nanovllm
