#include "backend/cuda/backend/plan_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/cuda/attention/attention_plan.h"
#include "backend/cuda/experts/expert_plan.h"
#include "backend/cuda/linear/linear_plan.h"
#include "backend/cuda/peers/peer_plan.h"

namespace nanovllm::cuda {
namespace {

constexpr int kMostRows = 1 << 15;  // more are computed as these are

// The choices of one layer.
class LayerChoices {
 public:
  LayerChoices(const StackSpec& spec, const LayerSpec& layer, DType act, const TailTraits& traits)
      : spec_(spec), layer_(layer), act_(act), traits_(traits) {}

  std::vector<PathChoice> all() {
    attention();
    product("in", layer_.in);
    product("out", layer_.out);
    if (const auto* dense = std::get_if<Dense>(&layer_.ffn)) {
      product("gate and up", dense->gate_up);
      product("down", dense->down);
    } else {
      experts(std::get<Experts>(layer_.ffn));
    }
    if (traits_.world_size > 1) {
      add(choices_by_rows("sums of ranks", [&](int rows) {
        return to_string(plan_sum_and_norm(act_, rows, spec_.hidden_size, traits_.most_sum_bytes,
                                           traits_.deterministic));
      }));
    }
    return std::move(choices_);
  }

 private:
  void add(std::vector<PathChoice> choices) {
    choices_.insert(choices_.end(), choices.begin(), choices.end());
  }

  void product(const std::string& part, const Matrix& matrix) {
    add(product_choices(part, shape_of(matrix, nullptr), act_, traits_.device,
                        traits_.deterministic));
  }

  void attention() {
    const auto& core = std::get<Attention>(layer_.core);
    constexpr int kBlockSize = 16;  // the least: it bounds how long contexts may be, and no more
    const AttentionShape shape = {act_, core.num_heads, core.num_kv_heads, core.head_dim,
                                  kBlockSize};
    const AttentionTraits traits = attention_traits(traits_.device, traits_.deterministic);
    RopeParams rope;
    rope.rotary_dim = spec_.rotary_tables[static_cast<size_t>(core.rotary_table)].rotary_dim;
    if (!core.norms_all_heads) {
      if (!core.q_norm.is_absent()) rope.q_norm = core.q_norm.weight.data();
      if (!core.k_norm.is_absent()) rope.k_norm = core.k_norm.weight.data();
    }
    // A row is a sequence of any length that fits.
    add(choices_by_rows("attention of decodes", [&](int rows) {
      const ForwardBatch batch = {.num_tokens = rows,
                                  .num_seqs = rows,
                                  .num_decodes = rows,
                                  .max_query_len = 1,
                                  .max_seq_len = 1,
                                  .block_table_stride = 1};
      const auto stored = plan_store_and_attend(shape, rope, batch, traits);
      if (stored) return to_string(stored->path);
      const AttentionPlan plan = plan_attention(shape, batch, traits);
      return to_string(plan.decodes ? plan.decodes->path : plan.rest.path);
    }));
    add(choices_by_rows("attention of one prompt", [&](int rows) {
      const ForwardBatch batch = {.num_tokens = rows,
                                  .num_seqs = 1,
                                  .max_query_len = rows,
                                  .max_seq_len = rows,
                                  .block_table_stride = (rows + kBlockSize - 1) / kBlockSize};
      return to_string(plan_attention(shape, batch, traits).rest.path);
    }));
  }

  void experts(const Experts& experts) {
    const Dense& one = experts.experts.front();
    const ExpertShape shape = {.dtype = act_,
                               .activation = one.activation,
                               .hidden = static_cast<int>(one.gate_up.in_features()),
                               .width = static_cast<int>(one.down.in_features()),
                               .num_experts = static_cast<int>(experts.router.out_features()),
                               .num_active = experts.routing.num_active};
    SkinnyProduct router = shape_of(experts.router, nullptr);
    router.out_features += static_cast<int>(experts.shared_gate.out_features());
    router.out_dtype = DType::kFloat32;
    router.fixed_order = traits_.deterministic;
    add(choices_by_rows("router", [&](int rows) {
      router.rows = rows;
      return to_string(is_router_a_product(rows, traits_.deterministic)
                           ? plan_product(router, act_, traits_.device.properties).path
                           : ProductPath::kFloat);
    }));
    add(choices_by_rows("experts", [&](int rows) {
      return to_string(plan_experts(shape, rows, traits_.device, traits_.deterministic));
    }));
    if (!experts.shared) return;
    product("shared gate and up", experts.shared->gate_up);
    product("shared down", experts.shared->down);
  }

  const StackSpec& spec_;
  const LayerSpec& layer_;
  const DType act_;
  const TailTraits& traits_;
  std::vector<PathChoice> choices_;
};

}  // namespace

std::vector<PathChoice> choices_by_rows(const std::string& part,
                                        const std::function<std::string(int rows)>& path_of) {
  std::vector<PathChoice> choices;
  const auto add = [&](int max_rows, std::string path) {
    choices.push_back({.part = part, .max_rows = max_rows, .path = std::move(path)});
  };
  const std::string last = path_of(kMostRows);
  for (int row = 1;;) {
    const std::string path = path_of(row);
    if (path == last) break;
    int with = row, without = kMostRows;
    for (int next = row * 2; next < kMostRows; next *= 2) {
      if (path_of(next) != path) {
        without = next;
        break;
      }
      with = next;
    }
    while (without - with > 1) {
      const int middle = with + (without - with) / 2;
      (path_of(middle) == path ? with : without) = middle;
    }
    add(with, path);
    row = without;
  }
  add(0, last);
  return choices;
}

std::vector<PathChoice> product_choices(const std::string& part, SkinnyProduct product, DType dtype,
                                        const DeviceTraits& device, bool deterministic) {
  product.fixed_order = deterministic;
  return choices_by_rows(part, [&](int rows) {
    product.rows = rows;
    return to_string(plan_product(product, dtype, device.properties).path);
  });
}

std::vector<PathChoice> stack_choices(const StackSpec& spec, DType act,
                                      const std::vector<std::vector<TailPath>>& tails,
                                      const TailTraits& traits) {
  std::vector<PathChoice> choices = summary(tails);
  const auto num_layers = static_cast<int>(spec.layers.size());
  if (!traits.tail_kernel_holder.empty()) {
    choices.push_back({.num_layers = num_layers,
                       .part = "kernels of whole tails",
                       .path = "held by " + traits.tail_kernel_holder});
  }
  std::vector<PathChoice> run;
  const auto finish = [&](int first, int end) {
    for (PathChoice& choice : run) {
      choice.first_layer = first;
      choice.num_layers = end - first;
    }
    choices.insert(choices.end(), run.begin(), run.end());
  };
  int first = 0;
  for (int i = 0; i < num_layers; ++i) {
    std::vector<PathChoice> own =
        LayerChoices(spec, spec.layers[static_cast<size_t>(i)], act, traits).all();
    if (i > 0 && own == run) continue;
    finish(first, i);
    first = i;
    run = std::move(own);
  }
  finish(first, num_layers);
  return choices;
}

}  // namespace nanovllm::cuda
