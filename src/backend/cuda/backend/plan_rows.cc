#include "backend/cuda/backend/plan_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/cuda/attention/attention_plan.h"
#include "backend/cuda/experts/expert_plan.h"
#include "backend/cuda/linear/code_layout.h"
#include "backend/cuda/linear/linear_plan.h"
#include "backend/cuda/peers/peer_plan.h"
#include "backend/cuda/recurrent/gated_delta_plan.h"
#include "ops/layer_program.h"

namespace nanovllm::cuda {
namespace {

PathOfRows path_of_product(SkinnyProduct product, DType dtype, const DeviceTraits& device,
                           bool deterministic) {
  product.fixed_order = deterministic;
  return [product, dtype, &device](int rows) mutable {
    product.rows = rows;
    return std::string(to_string(plan_product(product, dtype, device).path));
  };
}

constexpr int kBlockSize = 16;  // the least: it bounds how long contexts may be, and no more

// Sequences that decode, and behind them a chunk of a prompt, whose context came before; or none.
ForwardBatch batch_of(int num_decodes, int chunk, int context) {
  const int longest = std::max(1, chunk + context);
  return {.num_tokens = num_decodes + chunk,
          .num_seqs = num_decodes + (chunk > 0 ? 1 : 0),
          .num_decodes = num_decodes,
          .max_query_len = std::max(1, chunk),
          .max_seq_len = longest,
          .block_table_stride = (longest + kBlockSize - 1) / kBlockSize};
}

// The choices of one layer, in the order of a step.
class LayerChoices {
 public:
  LayerChoices(const StackSpec& spec, size_t i, const CompileLimits& limits,
               const std::vector<std::vector<TailPath>>& tails, const TailTraits& traits)
      : spec_(spec),
        layer_(spec.layers[i]),
        next_norm_(next_norm(spec, i)),
        limits_(limits),
        before_(i > 0 ? &tails[i - 1] : nullptr),
        tail_(&tails[i]),
        traits_(traits) {}

  std::vector<PathChoice> all() {
    add("tail", nullptr, [&](int rows) { return to_string(path_of(*tail_, rows)); });
    const bool is_attention = std::holds_alternative<Attention>(layer_.core);
    const std::string name = is_attention ? "attention" : "the recurrent rule";
    product(name + "'s input product", layer_.in, before_);
    std::visit([&](const auto& of_layer) { core(of_layer); }, layer_.core);
    product(name + "'s output product", layer_.out, tail_);
    sum("sum behind " + name, layer_.after_core, layer_.before_ffn);
    if (const auto* dense = std::get_if<Dense>(&layer_.ffn)) {
      product("MLP's gate and up product", dense->gate_up, tail_);
      product("MLP's output product", dense->down, tail_);
    } else {
      experts(std::get<Experts>(layer_.ffn));
    }
    sum("sum behind the MLP", layer_.after_ffn, next_norm_);
    return std::move(choices_);
  }

 private:
  // As LayerProgram::next_norm() has it.
  static const Norm& next_norm(const StackSpec& spec, size_t i) {
    if (i + 1 < spec.layers.size()) return spec.layers[i + 1].before_core;
    return spec.final_norm.is_absent() ? spec.layers[i].before_ffn : spec.final_norm;
  }

  // `tail`: whose part it is, or null.
  void add(const std::string& part, const std::vector<TailPath>* tail, const PathOfRows& alone) {
    const std::vector<PathChoice> choices =
        choices_by_rows(part, limits_.max_num_tokens, [&](int rows) {
          const bool is_fused = tail != nullptr && path_of(*tail, rows) != TailPath::kOpByOp;
          return is_fused ? "in the tail" : alone(rows);
        });
    choices_.insert(choices_.end(), choices.begin(), choices.end());
  }

  void product(const std::string& part, const Matrix& matrix, const std::vector<TailPath>* tail) {
    add(part, tail,
        path_of_product(shape_of(matrix, limits_.dtype, nullptr), limits_.dtype, traits_.device,
                        traits_.deterministic));
  }

  // Over the ranks.
  void sum(const std::string& part, const Norm& after, const Norm& next) {
    if (traits_.world_size == 1) return;
    const bool takes_norm =
        is_one_sum_and_norm(!after.is_absent(), layer_.residual_scale, !next.is_absent());
    const int64_t row_bytes =
        int64_t{spec_.hidden_size} * static_cast<int64_t>(size_of(limits_.dtype));
    add(part, tail_, [&](int rows) {
      return to_string(takes_norm ? plan_sum_and_norm(limits_.dtype, rows, spec_.hidden_size,
                                                      traits_.most_sum_bytes, traits_.deterministic)
                                  : plan_sum(rows * row_bytes, traits_.most_sum_bytes));
    });
  }

  void core(const GatedDelta& core) {
    const StateSpec spec = {.num_key_heads = core.num_key_heads,
                            .num_value_heads = core.num_value_heads,
                            .key_dim = core.key_dim,
                            .value_dim = core.value_dim,
                            .conv_width = core.conv_width,
                            .dtype = limits_.dtype};
    const auto of_rows = [&](int rows) {
      return to_string(plan_gated_delta(spec, 1, rows, traits_.device));
    };
    add("the recurrent rule of decodes", nullptr, [&](int) { return of_rows(1); });
    add("the recurrent rule of a prompt", nullptr, of_rows);
  }

  void core(const Attention& core) {
    const AttentionShape shape = {limits_.dtype, core.num_heads, core.num_kv_heads,
                                  core.head_dim, kBlockSize,     core.has_gate};
    const AttentionTraits traits = attention_traits(traits_.device, traits_.deterministic);
    RopeParams rope;
    rope.rotary_dim = spec_.rotary_tables[static_cast<size_t>(core.rotary_table)].rotary_dim;
    if (!core.norms_all_heads) {
      if (!core.q_norm.is_absent()) rope.q_norm = core.q_norm.weight.data();
      if (!core.k_norm.is_absent()) rope.k_norm = core.k_norm.weight.data();
    }
    const auto of_decodes = [&](const ForwardBatch& batch) {
      const auto stored = plan_store_and_attend(shape, rope, batch, traits);
      if (stored) return to_string(stored->path);
      const AttentionPlan plan = plan_attention(shape, batch, traits);
      if (plan.pieces) return to_string(plan.pieces->path);
      return to_string(plan.decodes ? plan.decodes->path : plan.rest.path);
    };
    const auto of_prompt = [&](const ForwardBatch& batch) {
      const AttentionPlan plan = plan_attention(shape, batch, traits);
      return to_string(plan.pieces ? plan.pieces->path : plan.rest.path);
    };
    // A row is a sequence of any length that fits.
    add("attention of decodes", nullptr,
        [&](int rows) { return of_decodes(batch_of(rows, 0, 0)); });
    constexpr int kChunk = 16, kLongContext = 8192;  // tokens
    add("attention of decodes beside prompts", nullptr,
        [&](int rows) { return of_decodes(batch_of(rows, kChunk, 0)); });
    add("attention of a new prompt", nullptr,
        [&](int rows) { return of_prompt(batch_of(0, rows, 0)); });
    add(fmt::format("attention of a prompt behind {} tokens", kLongContext), nullptr,
        [&](int rows) { return of_prompt(batch_of(0, rows, kLongContext)); });
  }

  void experts(const Experts& experts) {
    const Dense& one = experts.experts.front();
    const ExpertShape shape = {.dtype = limits_.dtype,
                               .activation = one.activation,
                               .hidden = static_cast<int>(one.gate_up.in_features()),
                               .width = static_cast<int>(one.down.in_features()),
                               .num_experts = static_cast<int>(experts.router.out_features()),
                               .num_active = experts.routing.num_active,
                               .layout = code_layout_of(experts, limits_.dtype)};
    SkinnyProduct router = shape_of(experts.router, limits_.dtype, nullptr);
    router.out_features += static_cast<int>(experts.shared_gate.out_features());
    router.out_dtype = DType::kFloat32;
    const PathOfRows of_router =
        path_of_product(router, limits_.dtype, traits_.device, traits_.deterministic);
    add("router", nullptr, [&](int rows) {
      return is_router_a_product(rows, traits_.deterministic) ? of_router(rows)
                                                              : to_string(ProductPath::kFloat);
    });
    add("experts", nullptr, [&](int rows) {
      return to_string(plan_experts(shape, rows, traits_.device, traits_.deterministic));
    });
    if (!experts.shared) return;
    product("shared expert's gate and up product", experts.shared->gate_up, nullptr);
    product("shared expert's output product", experts.shared->down, nullptr);
  }

  const StackSpec& spec_;
  const LayerSpec& layer_;
  const Norm& next_norm_;
  const CompileLimits& limits_;
  const std::vector<TailPath>*const before_, *const tail_;
  const TailTraits& traits_;
  std::vector<PathChoice> choices_;
};

// The last row of the range that begins at `row`. Among few rows paths may come back.
int last_row_of(int row, int max_rows, const PathOfRows& path_of) {
  const std::string path = path_of(row);
  const int one_by_one = std::min(max_rows, kMaxTailPathRows);
  int with = row;
  while (with < one_by_one && path_of(with + 1) == path) ++with;
  if (with < one_by_one) return with;
  if (path_of(max_rows) == path) return max_rows;
  int without = max_rows;
  while (without - with > 1) {
    const int middle = with + (without - with) / 2;
    (path_of(middle) == path ? with : without) = middle;
  }
  return with;
}

}  // namespace

std::vector<PathChoice> choices_by_rows(const std::string& part, int max_rows,
                                        const PathOfRows& path_of) {
  std::vector<PathChoice> choices;
  for (int row = 1; row <= max_rows;) {
    const int last = last_row_of(row, max_rows, path_of);
    choices.push_back({.part = part, .max_rows = last < max_rows ? last : 0, .path = path_of(row)});
    row = last + 1;
  }
  return choices;
}

std::vector<PathChoice> product_choices(SkinnyProduct product, DType dtype,
                                        const DeviceTraits& device, bool deterministic) {
  // More rows are computed as these are.
  return choices_by_rows({}, std::max(kMaxSkinnyRows, kMaxCodeRows) + 1,
                         path_of_product(product, dtype, device, deterministic));
}

std::vector<PathChoice> stack_choices(const StackSpec& spec, const CompileLimits& limits,
                                      const std::vector<std::vector<TailPath>>& tails,
                                      const TailTraits& traits,
                                      const std::string& tail_kernel_holder) {
  std::vector<PathChoice> choices;
  const auto num_layers = static_cast<int>(spec.layers.size());
  if (!tail_kernel_holder.empty()) {
    choices.push_back({.num_layers = num_layers,
                       .part = "tails in one kernel",
                       .path = fmt::format("none, as {} has this GPU's", tail_kernel_holder)});
  }
  std::vector<std::vector<PathChoice>> of_layers;
  std::vector<std::string> parts;  // in the order of a step
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    of_layers.push_back(LayerChoices(spec, i, limits, tails, traits).all());
    for (const PathChoice& choice : of_layers.back()) {
      if (std::ranges::find(parts, choice.part) == parts.end()) parts.push_back(choice.part);
    }
  }
  for (const std::string& part : parts) {
    std::vector<PathChoice> run;
    int first = 0;
    for (int i = 0; i <= num_layers; ++i) {
      std::vector<PathChoice> own;
      if (i < num_layers) own = of_layers[static_cast<size_t>(i)];
      std::erase_if(own, [&](const PathChoice& choice) { return choice.part != part; });
      if (own == run) continue;
      for (PathChoice& choice : run) {
        choice.first_layer = first;
        choice.num_layers = i - first;
        choices.push_back(choice);
      }
      first = i;
      run = std::move(own);
    }
  }
  return choices;
}

}  // namespace nanovllm::cuda
