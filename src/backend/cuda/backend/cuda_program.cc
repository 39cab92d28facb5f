// A stack of layers whose tails run in fused kernels where there are some for them.
#include <algorithm>

#include "backend/cuda/backend/check_shapes.h"
#include "backend/cuda/backend/cuda_backend.h"
#include "backend/cuda/backend/plan_rows.h"
#include "backend/cuda/layer/layer_plan.h"
#include "backend/cuda/layer/layer_tail.h"
#include "backend/cuda/linear/linear_skinny_plan.h"
#include "backend/cuda/linear/linear_weight.h"
#include "base/assert.h"
#include "ops/layer_program.h"

namespace nanovllm {
namespace {

class CudaProgram final : public LayerProgram {
 public:
  CudaProgram(CudaBackend& backend, const StackSpec& spec, const CompileLimits& limits)
      : LayerProgram(backend, spec, limits), cuda_(backend) {
    const cuda::TailTraits traits = backend.tail_traits();
    for (int i = 0; i < std::ssize(layers_); ++i) {
      products_.push_back(backend.tail_products(layers_[i], next_norm(i), next_of(i)));
      paths_.push_back(cuda::plan_layer(spec, static_cast<size_t>(i), limits.dtype, traits));
    }
    if (!backend.ranks_agree(cuda::fingerprint(paths_))) {
      for (std::vector<cuda::TailPath>& paths : paths_) {
        std::ranges::fill(paths, cuda::TailPath::kOpByOp);
      }
    }
    choices_ = cuda::stack_choices(spec, limits, paths_, traits, backend.tail_kernel_holder());
  }

  std::vector<PathChoice> plan() const override {
    std::vector<PathChoice> choices = weight_formats();
    choices.insert(choices.end(), choices_.begin(), choices_.end());
    return choices;
  }

 protected:
  void tail(int i, Activations& x) override {
    const cuda::TailPath path = cuda::path_of(paths_[i], x.core_out.rows());
    if (path == cuda::TailPath::kOpByOp) return LayerProgram::tail(i, x);
    cuda_.run_tail(path, products_[i], x);
  }

 private:
  CudaBackend& cuda_;
  std::vector<cuda::TailProducts> products_;        // [num_layers]
  std::vector<std::vector<cuda::TailPath>> paths_;  // [num_layers][rows - 1]
  std::vector<PathChoice> choices_;                 // of everything, for people
};

}  // namespace

void CudaBackend::check(const StackSpec& spec) const { cuda::check_shapes(spec, description()); }

std::unique_ptr<StackProgram> CudaBackend::compile(const StackSpec& spec,
                                                   const CompileLimits& limits) {
  return std::make_unique<CudaProgram>(*this, spec, limits);
}

cuda::TailTraits CudaBackend::tail_traits() const {
  cuda::TailTraits traits = {.device = traits_,
                             .deterministic = deterministic_,
                             .has_tail_kernel = tail_kernel_ != nullptr,
                             .world_size = world_size()};
  if (traits.world_size > 1) {
    traits.has_tail_kernel = rank_->all_have_tail_kernels();
    traits.most_sum_bytes = rank_->most_line_bytes();
  }
  return traits;
}

cuda::TailProducts CudaBackend::tail_products(const PackedLayer& layer, const NormParams& next_norm,
                                              const PackedLayer* next) const {
  if (layer.experts != nullptr) return {};  // such a layer's tail runs op by op
  cuda::TailProducts products = {
      skinny_product(*layer.out), skinny_product(*layer.gate_up), skinny_product(*layer.down), {}};
  if (next != nullptr) products[3] = skinny_product(*next->in);
  products[0].epilogue = products[2].epilogue = cuda::Epilogue::kAdd;
  products[1].epilogue = cuda::Epilogue::kActAndMul;
  products[1].activation = layer.activation;
  products[1].norm = layer.before_ffn;
  products[3].norm = next_norm;
  return products;
}

void CudaBackend::run_tail(cuda::TailPath path, cuda::TailProducts products, const Activations& x) {
  const bool is_last = products[3].weight == nullptr;
  for (cuda::SkinnyProduct& product : products) product.rows = static_cast<int>(x.residual.rows());
  products[0].x = x.core_out.data;
  products[1].out = x.mlp.data;
  products[2].x = x.mlp.data;
  products[0].out = products[2].out = x.residual.data;
  products[1].x = products[3].x = x.residual.data;
  products[3].out = is_last ? x.hidden.data : x.core_in.data;
  switch (path) {
    case cuda::TailPath::kOpByOp:
      NANOVLLM_CHECK(!"a fused path");
    case cuda::TailPath::kOneKernel:
      return tail_kernel_->launch(stream_, products);
    case cuda::TailPath::kLargeKernel:
      tail_kernel_->launch_large(rank_ ? rank_->queue() : cuda::PeerQueue{.stream = stream_},
                                 products);
      break;
    case cuda::TailPath::kSkinnyChain:
      for (const cuda::SkinnyProduct& product : std::span(products).first(is_last ? 3 : 4)) {
        cuda::launch_skinny(stream_, product, cuda::skinny::plan_of(product, traits_.properties));
      }
      break;
    case cuda::TailPath::kWgmmaChain: {
      auto* const squares =
          static_cast<float*>(split_norm_->data()) + cuda::kMaxWgmmaRows * cuda::kMaxSplitNorm / 2;
      const auto chain = cuda::wgmma_chain(
          products, {.weighted = split_norm_->data(),
                     .squares = squares,
                     .parts = cuda::square_parts(static_cast<int>(x.residual.row_size()))});
      for (const cuda::WgmmaProduct& product : std::span(chain).first(is_last ? 3 : 4)) {
        cuda::launch_wgmma(stream_, product, traits_.num_multiprocessors());
      }
      break;
    }
  }
  // The last layer's norm, which is no part of these.
  if (is_last) rms_norm(x.hidden, x.residual, products[3].norm.weight, products[3].norm.eps);
}

}  // namespace nanovllm
