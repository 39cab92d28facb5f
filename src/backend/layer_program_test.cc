// Stacks of layers as their backends compute them, against the scalar reference, with each field of
// a layer's spec on and off.
#include "ops/layer_program.h"

#include <numeric>

#include "backend/ops_test_support.h"

namespace nanovllm::test {
namespace {

constexpr int kHidden = 96, kHeads = 4, kKvHeads = 2, kDim = 24, kWidth = 80;
constexpr int kExperts = 8, kExpertWidth = 40;
constexpr int kTokens = 21, kBlockSize = 16, kBlocks = 2;

// Weights of a spec, which points to them.
class Weights {
 public:
  explicit Weights(uint32_t seed) : random_(seed) {}
  Matrix matrix(std::initializer_list<int64_t> rows, int64_t cols, bool bias = false) {
    Matrix matrix;
    for (const int64_t n : rows) {
      const float range = 1.7f / std::sqrt(static_cast<float>(cols));
      const HostTensor& m = kept_.emplace_back(
          HostTensor(random_.floats(n * cols, -range, range), DType::kBFloat16, {n, cols}));
      matrix.pieces.push_back(
          {.data = m.bytes.data(), .rows = n, .cols = cols, .row_stride = cols});
      if (!bias) continue;
      const std::vector<float> values = random_.floats(n, -1, 1);
      matrix.bias.insert(matrix.bias.end(), values.begin(), values.end());
    }
    return matrix;
  }
  Dense expert(int64_t width, bool bias = false) {
    return {matrix({width, width}, kHidden, bias), Activation::kSilu,
            matrix({kHidden}, width, bias)};
  }
  Experts experts() {
    Experts experts = {
        .router = matrix({kExperts}, kHidden), .routing = {.num_active = 2}, .experts = {}};
    for (int i = 0; i < kExperts; ++i) experts.experts.push_back(expert(kExpertWidth));
    return experts;
  }
  Norm norm(int size) { return {random_.floats(size, 0.5f, 1.5f), 1e-5f}; }

  StackSpec stack(int num_layers) {
    StackSpec spec = {.hidden_size = kHidden,
                      .layers = {},
                      .final_norm = norm(kHidden),
                      .rotary_tables = {rotary_table(1e4, kDim), rotary_table(100, kDim / 2),
                                        rotary_table(1, 0)}};
    for (int i = 0; i < num_layers; ++i) {
      LayerSpec layer;
      layer.before_core = norm(kHidden);
      layer.in = matrix({kHeads * kDim, kKvHeads * kDim, kKvHeads * kDim}, kHidden);
      layer.core = Attention{.num_heads = kHeads,
                             .num_kv_heads = kKvHeads,
                             .head_dim = kDim,
                             .q_norm = {},
                             .k_norm = {},
                             .scale = 0.2f};
      layer.out = matrix({kHidden}, kHeads * kDim);
      layer.before_ffn = norm(kHidden);
      layer.ffn =
          Dense{matrix({kWidth, kWidth}, kHidden), Activation::kSilu, matrix({kHidden}, kWidth)};
      spec.layers.push_back(std::move(layer));
    }
    return spec;
  }

 private:
 public:
  // Instead of attention.
  void make_recurrent(LayerSpec& layer) {
    GatedDelta core = {.num_key_heads = 2,
                       .num_value_heads = kHeads,
                       .key_dim = 16,
                       .value_dim = kDim,
                       .conv_width = 4,
                       .decay = {-1, -0.1f, -0.3f, -2},
                       .dt_bias = random_.floats(kHeads, -2, 1),
                       .out_norm = norm(kDim)};
    core.conv_weight = random_.floats(core.num_channels() * core.conv_width, -1, 1);
    layer.in = matrix({core.num_channels() + kHeads * (kDim + 2)}, kHidden);
    layer.core = std::move(core);
  }

 private:
  static RotaryTable rotary_table(double theta, int dim) {
    RotaryTable table = {.cos_sin = {}, .rotary_dim = dim};
    for (int p = 0; p < kTokens; ++p) {
      for (const bool is_sine : {false, true}) {
        for (int i = 0; i < dim / 2; ++i) {
          const double angle = p * std::pow(theta, -2.0 * i / dim);
          table.cos_sin.push_back(static_cast<float>(is_sine ? std::sin(angle) : std::cos(angle)));
        }
      }
    }
    return table;
  }

  Random random_;
  std::vector<HostTensor> kept_;
};

// One sequence, all of it in one step, in host memory.
struct HostBatch {
  HostBatch() {
    std::iota(numbers.begin(), numbers.end(), 0);
    batch = {.num_tokens = kTokens,
             .num_seqs = 1,
             .num_logits = static_cast<int>(rows.size()),
             .max_query_len = kTokens,
             .max_seq_len = kTokens,
             .block_table_stride = kBlocks,
             .positions = numbers.data(),
             .slot_mapping = numbers.data(),
             .query_start_loc = starts.data(),
             .seq_lens = starts.data() + 1,
             .block_table = numbers.data(),
             .logits_rows = rows.data()};
  }
  std::vector<int32_t> numbers = std::vector<int32_t>(kTokens);
  std::vector<int32_t> starts = {0, kTokens};
  std::vector<int32_t> rows = {20, 3, 7};
  ForwardBatch batch;
};

HostTensor floats(const std::vector<float>& values, int64_t cols) {
  return {values, DType::kFloat32, {std::ssize(values) / cols, cols}};
}

std::vector<float> linear(const std::vector<float>& x, const Matrix& matrix) {
  std::vector<float> weight;
  for (const HostMatrix& piece : matrix.pieces) {
    const auto* values = static_cast<const BFloat16*>(piece.data);
    for (int64_t i = 0; i < piece.rows * piece.cols; ++i) weight.push_back(to_float(values[i]));
  }
  return reference::linear(floats(x, matrix.in_features()).view,
                           floats(weight, matrix.in_features()).view, matrix.bias);
}

std::vector<float> normed(const std::vector<float>& x, const Norm& norm) {
  return norm.is_absent() ? x : reference::rms_norm(floats(x, kHidden).view, norm.weight, norm.eps);
}

void add(std::vector<float>& residual, const std::vector<float>& branch, float scale) {
  for (size_t i = 0; i < residual.size(); ++i) residual[i] += scale * branch[i];
}

std::vector<float> feed_forward(const std::vector<float>& x,
                                const std::variant<Dense, Experts>& ffn) {
  if (const auto* experts = std::get_if<Experts>(&ffn)) {
    return reference::experts(floats(x, kHidden).view, *experts);
  }
  const auto& dense = std::get<Dense>(ffn);
  const std::vector<float> gate_up = linear(x, dense.gate_up);
  return linear(reference::act_and_mul(floats(gate_up, 2 * kWidth).view, dense.activation),
                dense.down);
}

std::vector<float> run_core(const GatedDelta& core, const LayerSpec& layer,
                            const std::vector<float>& in, const StackSpec&, const ForwardBatch&) {
  return reference::gated_delta(floats(in, layer.in.out_features()).view, core);
}

std::vector<float> run_core(const Attention& core, const LayerSpec& layer, std::vector<float> qkv,
                            const StackSpec& spec, const ForwardBatch& batch) {
  const RotaryTable& table = spec.rotary_tables[core.rotary_table];
  reference::PlainKvCache cache(core.num_kv_heads, kDim, kBlockSize, kBlocks);
  const auto head_norm = [](const Norm& norm, bool is_wanted) {
    return norm.is_absent() || !is_wanted ? nullptr : norm.weight.data();
  };
  const bool all = core.norms_all_heads;
  const int64_t width = layer.in.out_features(), heads = kHeads * kDim;
  std::vector<float> gates;
  if (core.has_gate) {
    for (int t = 0; t < kTokens; ++t) {
      const auto end = qkv.begin() + (t + 1) * width;
      gates.insert(gates.end(), end - heads, end);
    }
    std::vector<float> without;
    for (int t = 0; t < kTokens; ++t) {
      const auto begin = qkv.begin() + t * width;
      without.insert(without.end(), begin, begin + width - heads);
    }
    qkv = std::move(without);
  }
  const int64_t qkv_width = std::ssize(qkv) / kTokens;
  qkv = reference::norm_all_heads(floats(qkv, qkv_width).view,
                                  {.q_weight = head_norm(core.q_norm, all),
                                   .k_weight = head_norm(core.k_norm, all),
                                   .q_width = kHeads * kDim,
                                   .k_width = kKvHeads * kDim,
                                   .eps = core.q_norm.eps});
  const RopeParams rope = {.q_norm = head_norm(core.q_norm, !all),
                           .k_norm = head_norm(core.k_norm, !all),
                           .norm_eps = core.q_norm.eps,
                           .cos_sin = Tensor(const_cast<float*>(table.cos_sin.data()),
                                             DType::kFloat32, {kTokens, table.rotary_dim}),
                           .rotary_dim = table.rotary_dim};
  const std::vector<float> q =
      reference::qk_norm_rope_store(floats(qkv, qkv_width).view, kHeads, rope, cache, batch);
  for (int t = 0; t < kTokens; ++t) {
    std::copy_n(q.begin() + t * heads, heads, qkv.begin() + t * qkv_width);
  }
  std::vector<float> attended =
      reference::paged_attention(floats(qkv, qkv_width).view, cache,
                                 {kHeads, core.scale, core.window, core.soft_cap,
                                  core.sinks.empty() ? nullptr : core.sinks.data()},
                                 batch);
  for (size_t i = 0; i < gates.size(); ++i) attended[i] /= 1 + std::exp(-gates[i]);
  return attended;
}

// The normed rows of the logits, as the comment of LayerSpec has it.
std::vector<float> expected(const StackSpec& spec, std::vector<float> r) {
  const HostBatch host;
  for (const LayerSpec& layer : spec.layers) {
    const std::vector<float> in = linear(normed(r, layer.before_core), layer.in);
    const std::vector<float> mixed = std::visit(
        [&](const auto& core) { return run_core(core, layer, in, spec, host.batch); }, layer.core);
    add(r, normed(linear(mixed, layer.out), layer.after_core), layer.residual_scale);
    add(r, normed(feed_forward(normed(r, layer.before_ffn), layer.ffn), layer.after_ffn),
        layer.residual_scale);
  }
  std::vector<float> rows;
  for (const int32_t row : host.rows) {
    rows.insert(rows.end(), r.begin() + row * kHidden, r.begin() + (row + 1) * kHidden);
  }
  return normed(rows, spec.final_norm);
}

// A backend's programs, each on KV caches of its own.
class Runs {
 public:
  Runs(Backend& backend, DType act) : backend_(backend), act_(act) {}

  // What a program returns for the batch above, or for another number of rows of logits.
  HostTensor run(StackProgram& program, int num_layers, const Tensor& residual,
                 int num_logits = 3) {
    const KvCacheSpec spec = {kKvHeads, kDim, kBlockSize, act_};
    std::vector<std::unique_ptr<Buffer>> memory;
    std::vector<KvCache> caches;
    for (int i = 0; i < num_layers; ++i) {
      memory.push_back(backend_.allocate(kBlocks * backend_.kv_block_bytes(spec)));
      caches.push_back({spec, memory.back()->data(), kBlocks});
    }
    HostBatch host;
    ForwardBatch batch = host.batch;
    batch.num_logits = num_logits;
    for (const int32_t** ids : {&batch.positions, &batch.slot_mapping, &batch.block_table}) {
      memory.push_back(upload(backend_, host.numbers));
      *ids = static_cast<int32_t*>(memory.back()->data());
    }
    memory.push_back(upload(backend_, host.starts));
    batch.query_start_loc = static_cast<int32_t*>(memory.back()->data());
    batch.seq_lens = batch.query_start_loc + 1;
    memory.push_back(upload(backend_, host.rows));
    batch.logits_rows = static_cast<int32_t*>(memory.back()->data());
    memory.push_back(upload(backend_, std::vector<int32_t>{0, 1}));
    batch.state_slot = batch.state_len = batch.log_slot =
        static_cast<int32_t*>(memory.back()->data());
    batch.next_slot = batch.state_slot + 1;
    return download(backend_, program.run(batch, {caches, states(num_layers, memory)}, residual));
  }

 private:
  // Two slots and a log a layer.
  std::vector<StateCache> states(int num_layers, std::vector<std::unique_ptr<Buffer>>& memory) {
    const StateSpec spec = {2, kHeads, 16, kDim, 4, act_};
    std::vector<StateCache> caches;
    for (int i = 0; i < num_layers; ++i) {
      const StateBytes bytes = backend_.state_bytes(spec);
      memory.push_back(backend_.allocate(static_cast<size_t>(2 * bytes.slot + bytes.log)));
      auto* const slots = static_cast<char*>(memory.back()->data());
      caches.push_back({spec, slots, slots + 2 * bytes.slot});
    }
    return caches;
  }

  Backend& backend_;
  const DType act_;
};

std::vector<float> some_residual() { return Random(7).floats(kTokens * kHidden, -2, 2); }

CompileLimits limits(DType act) { return {.dtype = act, .max_num_tokens = 32, .num_threads = 2}; }

// bfloat16 rounds at every op: errors are compared as a whole.
void expect_alike(const HostTensor& actual, const std::vector<float>& wanted, DType act,
                  const std::string& what) {
  ASSERT_EQ(actual.view.num_elements(), std::ssize(wanted));
  double errors = 0, sum = 0;
  for (int64_t i = 0; i < std::ssize(wanted); ++i) {
    errors += std::pow(actual.at(i) - wanted[i], 2);
    sum += std::pow(wanted[i], 2);
  }
  EXPECT_LE(std::sqrt(errors / sum), act == DType::kFloat32 ? 2e-5 : 0.03) << what;
}

// Of stacks of two layers; each but the first, "nothing", gives something else than that one.
void expect_what_reference_says(Backend& backend, DType act,
                                const std::vector<std::pair<std::string, StackSpec>>& specs) {
  const std::vector<float> residual = some_residual();
  std::vector<float> plain;
  for (const auto& [field, spec] : specs) {
    const auto program = backend.compile(spec, limits(act));
    const DeviceTensor r = upload(backend, floats(residual, kHidden).view);
    const std::vector<float> wanted = expected(spec, residual);
    expect_alike(Runs(backend, act).run(*program, 2, r.view), wanted, act, field);
    if (plain.empty()) plain = wanted;
    EXPECT_EQ(wanted == plain, field == "nothing") << field;
  }
}

using LayerPrograms = OpsTest;
INSTANTIATE_TEST_SUITE_P(Backends, LayerPrograms, every_backend_and_dtype(), name_of);

TEST_P(LayerPrograms, EachFieldOfASpecIsWhatTheReferenceSays) {
  const auto backend = make();
  Weights weights(1);
  const StackSpec plain = weights.stack(2);
  const auto core = [](StackSpec& spec) -> Attention& {
    return std::get<Attention>(spec.layers[0].core);
  };
  const auto ffn = [](StackSpec& spec) -> Dense& { return std::get<Dense>(spec.layers[0].ffn); };
  const std::pair<const char*, std::function<void(StackSpec&)>> flips[] = {
      {"nothing", [](StackSpec&) {}},
      {"after_core", [&](StackSpec& s) { s.layers[0].after_core = weights.norm(kHidden); }},
      {"after_ffn", [&](StackSpec& s) { s.layers[1].after_ffn = weights.norm(kHidden); }},
      {"bias of in",
       [&](StackSpec& s) {
         s.layers[0].in =
             weights.matrix({kHeads * kDim, kKvHeads * kDim, kKvHeads * kDim}, kHidden, true);
       }},
      {"bias of out",
       [&](StackSpec& s) { s.layers[0].out = weights.matrix({kHidden}, kHeads * kDim, true); }},
      {"bias of gate_up",
       [&](StackSpec& s) {
         ffn(s).gate_up = weights.matrix({kWidth, kWidth}, kHidden, true);
       }},
      {"bias of down",
       [&](StackSpec& s) { ffn(s).down = weights.matrix({kHidden}, kWidth, true); }},
      {"q_norm and k_norm",
       [&](StackSpec& s) {
         core(s).q_norm = weights.norm(kDim);
         core(s).k_norm = weights.norm(kDim);
       }},
      {"q_norm and k_norm of all heads",
       [&](StackSpec& s) {
         core(s).q_norm = weights.norm(kHeads * kDim);
         core(s).k_norm = weights.norm(kKvHeads * kDim);
         core(s).norms_all_heads = true;
       }},
      {"no before_core", [](StackSpec& s) { s.layers[0].before_core = {}; }},
      {"no before_ffn", [](StackSpec& s) { s.layers[0].before_ffn = {}; }},
      {"no norm before a later layer", [](StackSpec& s) { s.layers[1].before_core = {}; }},
      {"residual_scale", [](StackSpec& s) { s.layers[0].residual_scale = 0.3f; }},
      {"no rotation", [&](StackSpec& s) { core(s).rotary_table = 2; }},
      {"rotary_table", [&](StackSpec& s) { core(s).rotary_table = 1; }},
      {"scale", [&](StackSpec& s) { core(s).scale = 0.5f; }},
      {"window", [&](StackSpec& s) { core(s).window = 5; }},
      {"soft_cap", [&](StackSpec& s) { core(s).soft_cap = 0.7f; }},
      {"sinks",
       [&](StackSpec& s) {
         core(s).sinks = {0.5f, -1, 2, 0};
       }},
      {"GELU", [&](StackSpec& s) { ffn(s).activation = Activation::kGelu; }},
      {"GELU by tanh", [&](StackSpec& s) { ffn(s).activation = Activation::kGeluTanh; }},
  };
  StackSpec all = plain;
  std::vector<std::pair<std::string, StackSpec>> specs;
  for (const auto& [field, flip] : flips) {
    specs.emplace_back(field, plain);
    flip(specs.back().second);
    flip(all);
  }
  specs.emplace_back("everything", all);
  expect_what_reference_says(*backend, act(), specs);
}

TEST_P(LayerPrograms, AGateOfAttentionAndRecurrentLayersAreWhatTheReferenceSays) {
  const auto backend = make();
  Weights weights(11);
  const StackSpec plain = weights.stack(2);
  StackSpec gated = plain, recurrent = plain;
  gated.layers[1].in =
      weights.matrix({kHeads * kDim, kKvHeads * kDim, kKvHeads * kDim, kHeads * kDim}, kHidden);
  std::get<Attention>(gated.layers[1].core).has_gate = true;
  weights.make_recurrent(recurrent.layers[0]);
  StackSpec last = plain;
  weights.make_recurrent(last.layers[1]);
  expect_what_reference_says(*backend, act(),
                             {{"nothing", plain},
                              {"gate", gated},
                              {"a recurrent layer", recurrent},
                              {"a recurrent layer at the end", last}});
}

// In float32, where rounding makes no row choose another expert.
TEST_P(LayerPrograms, EachFieldOfAMixtureIsWhatTheReferenceSays) {
  if (act() != DType::kFloat32) GTEST_SKIP() << "where rows are rounded they go to other experts";
  const auto backend = make();
  Weights weights(5);
  StackSpec plain = weights.stack(2);
  for (LayerSpec& layer : plain.layers) layer.ffn = weights.experts();
  const auto routing = [](Experts& e) -> Routing& { return e.routing; };
  const std::pair<const char*, std::function<void(Experts&)>> flips[] = {
      {"nothing", [](Experts&) {}},
      {"sigmoid", [&](Experts& e) { routing(e).score = Routing::Score::kSigmoid; }},
      {"correction",
       [&](Experts& e) { routing(e).correction = {0.3f, 0, -0.2f, 0.1f, 0, 0, 0.4f, 0}; }},
      {"groups",
       [&](Experts& e) {
         routing(e).num_groups = 2;
         routing(e).num_active_groups = 1;
       }},
      {"more active", [&](Experts& e) { routing(e).num_active = 3; }},
      {"renormalised", [&](Experts& e) { routing(e).renormalise = true; }},
      {"scale", [&](Experts& e) { routing(e).scale = 2.5f; }},
      {"bias of the router",
       [&](Experts& e) { e.router = weights.matrix({kExperts}, kHidden, true); }},
      {"biases of experts",
       [&](Experts& e) {
         for (Dense& dense : e.experts) dense = weights.expert(kExpertWidth, true);
       }},
      {"clamped SwiGLU",
       [&](Experts& e) {
         for (Dense& dense : e.experts) dense.activation = Activation::kClampedSwiglu;
       }},
      {"shared expert", [&](Experts& e) { e.shared = weights.expert(kWidth); }},
      {"gate of the shared expert",
       [&](Experts& e) {
         if (!e.shared) e.shared = weights.expert(kWidth);
         e.shared_gate = weights.matrix({1}, kHidden);
       }},
      {"another rank's experts",
       [&](Experts& e) {
         e.first = 2;
         e.experts.erase(e.experts.begin(), e.experts.begin() + 2);
         e.experts.pop_back();
       }},
  };
  StackSpec all = plain;
  std::vector<std::pair<std::string, StackSpec>> specs;
  for (const auto& [field, flip] : flips) {
    specs.emplace_back(field, plain);
    flip(std::get<Experts>(specs.back().second.layers[1].ffn));
    flip(std::get<Experts>(all.layers[0].ffn));
  }
  specs.emplace_back("everything", all);
  expect_what_reference_says(*backend, act(), specs);
}

// As pipeline stages are: the first gives the residual of all tokens, the second goes on with it.
TEST_P(LayerPrograms, TwoStagesAreTheWhole) {
  const auto backend = make();
  Weights weights(2);
  const StackSpec whole = weights.stack(3);
  StackSpec first = whole, second = whole;
  first.layers.pop_back();
  first.final_norm = {};
  second.layers.erase(second.layers.begin(), second.layers.begin() + 2);
  Runs runs(*backend, act());
  const std::vector<float> residual = some_residual();
  const DeviceTensor a = upload(*backend, floats(residual, kHidden).view);
  const HostTensor wanted = runs.run(*backend->compile(whole, limits(act())), 3, a.view);
  const DeviceTensor b = upload(*backend, floats(residual, kHidden).view);
  const auto first_stage = backend->compile(first, limits(act()));
  EXPECT_EQ(runs.run(*first_stage, 2, b.view).view.rows(), kTokens);
  const HostTensor found = runs.run(*backend->compile(second, limits(act())), 1, b.view);
  expect_same_bits(found.bytes, wanted.bytes);
}

TEST_P(LayerPrograms, NoLogitsAreNoRows) {
  const auto backend = make();
  Weights weights(3);
  const auto program = backend->compile(weights.stack(2), limits(act()));
  const DeviceTensor r = upload(*backend, floats(some_residual(), kHidden).view);
  EXPECT_EQ(Runs(*backend, act()).run(*program, 2, r.view, 0).view.rows(), 0);
}

}  // namespace
}  // namespace nanovllm::test
