#include "backend/cuda/layer/layer_plan.h"

#include <xxhash.h>

#include <algorithm>
#include <span>

#include "backend/cuda/layer/layer_tail.h"
#include "backend/cuda/linear/code_layout.h"
#include "backend/cuda/linear/linear_skinny_plan.h"
#include "backend/cuda/linear/linear_wgmma_plan.h"

namespace nanovllm::cuda {
namespace {

// The products that have a weight.
template <typename Products>
auto chain_of(const Products& products) {
  return std::span(products).first(products.back().weight != nullptr ? 4 : 3);
}

// Any address, for what is asked about only: a plan reads no memory.
const void* somewhere() {
  static const char byte = 0;
  return &byte;
}

}  // namespace

const char* to_string(TailPath path) {
  switch (path) {
    case TailPath::kOpByOp:
      return "op by op";
    case TailPath::kOneKernel:
      return "one kernel";
    case TailPath::kLargeKernel:
      return "one kernel for large layers";
    case TailPath::kSkinnyChain:
      return "chain of streaming products";
    case TailPath::kWgmmaChain:
      return "chain of wgmma products";
  }
  return "";
}

TailPath plan_tail(TailProducts products, int rows, const TailTraits& traits) {
  // In a fixed order a row must be normalised as it is with any number of rows: apart.
  if (traits.deterministic) return TailPath::kOpByOp;
  for (SkinnyProduct& product : products) product.rows = rows;
  const int multiprocessors = traits.device.num_multiprocessors();
  const int64_t sum_bytes = int64_t{rows} * products[0].out_features * 2;
  const bool takes_large = traits.has_tail_kernel && sum_bytes <= traits.most_sum_bytes &&
                           LayerTailKernel::takes_large(products, multiprocessors);
  if (traits.world_size > 1) return takes_large ? TailPath::kLargeKernel : TailPath::kOpByOp;
  if (traits.has_tail_kernel && LayerTailKernel::takes(products, multiprocessors)) {
    return TailPath::kOneKernel;
  }
  if (takes_large) return TailPath::kLargeKernel;
  const auto is_skinny = [&](const auto& p) {
    return skinny::plan_of(p, traits.device.properties).tiles > 0;
  };
  if (std::ranges::all_of(chain_of(products), is_skinny)) return TailPath::kSkinnyChain;
  const auto chain = wgmma_chain(products, {.weighted = const_cast<void*>(somewhere())});
  const auto is_wgmma = [&](const auto& p) { return plan_wgmma(p, multiprocessors).features > 0; };
  return traits.device.has_wgmma && std::ranges::all_of(chain_of(chain), is_wgmma)
             ? TailPath::kWgmmaChain
             : TailPath::kOpByOp;
}

std::array<WgmmaProduct, 4> wgmma_chain(const TailProducts& products, const SplitNorm& norm) {
  std::array<WgmmaProduct, 4> chain;
  const bool has_next = products.back().weight != nullptr;
  for (size_t i = 0; i < chain.size(); ++i) {
    const SkinnyProduct& p = products[i];
    chain[i] = {static_cast<const FusedProduct&>(p), {}, {}};
    if (p.norm.weight == nullptr) continue;
    SplitNorm between = norm;
    between.norm = p.norm;
    chain[i].norm = between;
    if (i < 3 || has_next) chain[i - 1].next_norm = between;
  }
  return chain;
}

SkinnyProduct shape_of(const Matrix& matrix, DType act, const Norm* norm) {
  SkinnyProduct product;
  product.layout = code_layout_of(matrix.pieces, act);
  product.out_features = static_cast<int>(matrix.out_features());
  product.in_features = static_cast<int>(matrix.in_features());
  product.weight = somewhere();
  if (norm != nullptr) product.norm = {norm->weight.data(), norm->eps};
  return product;
}

TailProducts tail_shapes(const StackSpec& spec, size_t i, DType act) {
  const LayerSpec& layer = spec.layers[i];
  const auto& ffn = std::get<Dense>(layer.ffn);
  TailProducts products = {shape_of(layer.out, act, nullptr),
                           shape_of(ffn.gate_up, act, &layer.before_ffn),
                           shape_of(ffn.down, act, nullptr), SkinnyProduct{}};
  if (i + 1 < spec.layers.size()) {
    products[3] = shape_of(spec.layers[i + 1].in, act, &spec.layers[i + 1].before_core);
  } else {
    products[3].norm = {spec.final_norm.weight.data(), spec.final_norm.eps};
  }
  products[0].epilogue = products[2].epilogue = Epilogue::kAdd;
  products[1].epilogue = Epilogue::kActAndMul;
  products[1].activation = ffn.activation;
  return products;
}

bool honours(LayerSpec layer) {
  layer.before_core = layer.before_ffn = {};
  layer.in = layer.out = {};
  layer.core = Attention{};
  const auto* dense = std::get_if<Dense>(&layer.ffn);
  if (dense != nullptr && dense->activation != Activation::kClampedSwiglu) layer.ffn = Dense{};
  return layer == LayerSpec{};
}

std::vector<TailPath> plan_layer(const StackSpec& spec, size_t i, DType act,
                                 const TailTraits& traits) {
  std::vector<TailPath> paths(kMaxTailPathRows, TailPath::kOpByOp);
  const Norm& last = i + 1 < spec.layers.size() ? spec.layers[i + 1].before_core : spec.final_norm;
  const bool has_norms = !spec.layers[i].before_ffn.is_absent() && !last.is_absent();
  if (act != DType::kBFloat16 || !honours(spec.layers[i]) || !has_norms) return paths;
  const TailProducts products = tail_shapes(spec, i, act);
  for (int rows = 1; rows <= kMaxTailPathRows; ++rows) {
    paths[static_cast<size_t>(rows - 1)] = plan_tail(products, rows, traits);
  }
  return paths;
}

TailPath path_of(const std::vector<TailPath>& paths, int64_t rows) {
  if (rows < 1 || rows > std::ssize(paths)) return TailPath::kOpByOp;
  return paths[static_cast<size_t>(rows - 1)];
}

int64_t fingerprint(const std::vector<std::vector<TailPath>>& layers) {
  uint64_t hash = 0;
  for (const std::vector<TailPath>& paths : layers) {
    hash = XXH3_64bits_withSeed(paths.data(), paths.size() * sizeof(TailPath), hash);
  }
  return static_cast<int64_t>(hash >> 1);
}

}  // namespace nanovllm::cuda
