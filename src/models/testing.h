// Drives a model directly, without an engine, as tests and goldens need it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "models/load_config.h"
#include "models/model.h"
#include "runner/kv_cache_plan.h"
#include "runner/step_batch.h"

namespace nanovllm::testing {

using Rows = std::vector<std::vector<float>>;  // [position][vocab] logits

inline std::vector<double> log_softmax(const std::vector<float>& logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  std::vector<double> result;
  result.reserve(logits.size());
  for (const float logit : logits) result.push_back(logit - largest - std::log(sum));
  return result;
}

inline int32_t most_likely(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

inline double root_mean_square(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

// 99th percentile of the absolute values.
inline double percentile_99(std::vector<double> values) {
  for (double& value : values) value = std::abs(value);
  std::sort(values.begin(), values.end());
  return values[values.size() * 99 / 100];
}

// Row i predicts token i. A token is compared where its golden margin, its logit minus the
// second's, exceeds `margin`.
inline void expect_greedy(const Rows& rows, const std::vector<int32_t>& tokens,
                          const std::vector<float>& margins, float margin) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (margins[i] <= margin) continue;
    EXPECT_EQ(most_likely(rows[i]), tokens[i]) << "token " << i << ", margin " << margins[i];
  }
}

// A folder; of gguf_NAME, a GGUF file.
inline std::string golden_dir(const std::string& name) {
  const std::string tests = test::source_path("tests/");
  return name.starts_with("gguf_") ? tests + "data/" + name + ".gguf" : tests + "goldens/" + name;
}

// The next tokens of one sequence, to be computed in one step.
struct Chunk {
  int sequence;
  std::vector<int32_t> ids;
};

// As in ModelContext.
struct RigOptions {
  bool expert_parallel = false;
  bool keeps_codes = true;
  std::optional<RoundedFormat> rounding = std::nullopt;
};

// A model that computes steps laid out by the runner's StepBatch, and shows their logits. The
// blocks of its KV cache are in an arbitrary order.
class ModelRig {
 public:
  static constexpr int kMaxTokens = 512;     // of a step
  static constexpr int kMaxSequences = 144;  // ever
  static constexpr int kMaxLength = 336;     // of a sequence

  ModelRig(const std::string& model_dir, DType dtype, std::unique_ptr<Backend> backend,
           int block_size, const RigOptions& options = {})
      : config_(load_model_config(model_dir)),
        weights_(model_dir, config_.quantization, config_.gguf),
        backend_(std::move(backend)),
        sequences_(kMaxSequences) {
    model_ = make_model({.config = config_,
                         .weights = weights_,
                         .backend = *backend_,
                         .dtype = dtype,
                         .max_num_tokens = kMaxTokens,
                         .max_num_logits = kMaxLogits,
                         .max_model_len = kMaxLength,
                         .num_loading_threads = 2,
                         .expert_parallel = options.expert_parallel,
                         .keeps_codes = options.keeps_codes,
                         .rounding = options.rounding});
    const auto groups = group_layers(layer_windows(config_), kMaxLength);
    const auto num_groups = static_cast<int>(groups.size());
    const int blocks_per_sequence = (kMaxLength + block_size - 1) / block_size * num_groups;
    std::vector<int32_t> blocks(static_cast<size_t>(kMaxSequences) * blocks_per_sequence);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), std::minstd_rand(7));
    for (size_t i = 0; i < blocks.size(); ++i) {
      sequences_[i / blocks_per_sequence].block_table.push_back(blocks[i]);
    }
    const KvCacheSpec spec = model_->kv_cache_spec(block_size);
    kv_memory_ = backend_->allocate(kv_block_bytes(*backend_, spec, groups) * blocks.size());
    caches_ = split_kv_memory(*backend_, spec, groups, kv_memory_->data(),
                              static_cast<int>(blocks.size()));
    const auto states = model_->state_groups();
    constexpr int kMaxSlots = kSlotsOfSequence * kMaxSequences;
    state_memory_ = backend_->allocate(state_bytes(*backend_, states, kMaxSlots, kMaxSequences));
    state_caches_ =
        split_state_memory(*backend_, states, state_memory_->data(), kMaxSlots, kMaxSequences);
    for (int s = 0; s < kMaxSequences; ++s) {
      sequences_[s].states = {.slot = 2 * s, .next = 2 * s + 1, .log = s};
    }
    const size_t size =
        StepBatch::staging_size(kMaxTokens, kMaxSequences, kMaxLength, block_size, num_groups);
    host_staging_ = backend_->allocate_staging(size * sizeof(int32_t));
    staging_ = backend_->allocate(size * sizeof(int32_t));
    batch_.emplace(block_size, DecodeBuckets(),
                   std::span(static_cast<int32_t*>(host_staging_->data()), size), num_groups);
  }

  const ModelConfig& config() const { return config_; }
  Model& model() { return *model_; }
  // From now on steps run as graphs, or not, if the device has any.
  void use_graphs(bool uses_graphs) {
    uses_graphs_ = uses_graphs;
    graph_.reset();
  }

  // Computes one step; sequences of one new token come first. Returns the logits of the new tokens
  // of each chunk, or, with only_last, of the last one of each: [chunk][token][vocab].
  std::vector<Rows> step(const std::vector<Chunk>& chunks, bool only_last = false) {
    std::vector<size_t> order(chunks.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_partition(order.begin(), order.end(),
                          [&](size_t i) { return chunks[i].ids.size() == 1; });
    StepInput input;
    for (const size_t i : order) {
      SequenceInput& sequence = input.sequences.emplace_back(extended(chunks[i]));
      sequence.sample = true;
      if (only_last) continue;
      // The rows before the last, which is what the next token is drawn from.
      sequence.prompt_logprobs_begin = sequence.num_computed_tokens + 1;
      sequence.prompt_logprobs_end = sequence.num_computed_tokens + sequence.num_new_tokens;
    }
    const Rows rows = compute(input);
    std::vector<Rows> result(chunks.size());
    size_t next = order.size();
    for (size_t i = 0; i < order.size(); ++i) {
      const size_t count = only_last ? 0 : chunks[order[i]].ids.size() - 1;
      for (const size_t end = next + count; next < end; ++next) {
        result[order[i]].push_back(rows[next]);
      }
      result[order[i]].push_back(rows[i]);
    }
    return result;
  }

  // The logits that predict each token of `continuation` after `ids`, which are computed in one
  // step.
  Rows continuation(int sequence, const std::vector<int32_t>& ids,
                    const std::vector<int32_t>& continuation) {
    Rows rows = {step({{sequence, ids}}, /*only_last=*/true)[0][0]};
    for (size_t i = 0; i + 1 < continuation.size(); ++i) {
      rows.push_back(step({{sequence, {continuation[i]}}})[0][0]);
    }
    return rows;
  }

  // Computes a step without wanting any logits.
  void prefill(const Chunk& chunk) {
    StepInput input;
    input.sequences = {extended(chunk)};
    compute(input);
  }

 private:
  static constexpr int kMaxLogits = 160;

  struct SequenceState {
    std::vector<int32_t> ids, block_table;
    StateSlots states;
  };

  SequenceInput extended(const Chunk& chunk) {
    SequenceState& sequence = sequences_[chunk.sequence];
    const auto num_computed = static_cast<int>(sequence.ids.size());
    sequence.ids.insert(sequence.ids.end(), chunk.ids.begin(), chunk.ids.end());
    const StateSlots states = sequence.states;
    // Where the new tokens open a chunk, the state of the one before goes to the other slot.
    const int len = (static_cast<int>(sequence.ids.size()) - 1) / kStateChunk * kStateChunk;
    if (len != std::exchange(sequence.states.len, len)) {
      std::swap(sequence.states.slot, sequence.states.next);
    }
    return {.token_ids = sequence.ids,
            .num_computed_tokens = num_computed,
            .num_new_tokens = static_cast<int>(chunk.ids.size()),
            .block_table = sequence.block_table,
            .states = states};
  }

  // The logits, in the order of StepBatch::sampling_rows().
  Rows compute(const StepInput& input) {
    batch_->build(input);
    const std::span<const int32_t> staging = batch_->staging();
    auto* const on_device = static_cast<int32_t*>(staging_->data());
    const ForwardBatch batch = batch_->forward_batch(on_device);
    backend_->stage_batch(on_device, staging.data(), std::ssize(staging), batch.num_tokens,
                          nullptr);
    if (uses_graphs_)
      graph_ = backend_->capture([&] { model_->forward(batch, {caches_, state_caches_}); });
    if (graph_ != nullptr) {
      backend_->launch(*graph_);
    } else {
      model_->forward(batch, {caches_, state_caches_});
    }
    Rows rows;
    std::vector<float> values;
    for (int begin = 0; begin < batch.num_logits; begin += kMaxLogits) {
      const Tensor logits = model_->logits(begin, std::min(begin + kMaxLogits, batch.num_logits));
      values.resize(logits.num_elements());
      backend_->download(values.data(), logits.data, logits.bytes());
      for (auto row = values.begin(); row != values.end(); row += config_.vocab_size) {
        rows.emplace_back(row, row + config_.vocab_size);
      }
    }
    backend_->synchronize();
    return rows;
  }

  ModelConfig config_;
  WeightStore weights_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Buffer> kv_memory_, state_memory_, host_staging_, staging_;
  std::vector<KvCache> caches_;
  std::vector<StateCache> state_caches_;
  std::optional<StepBatch> batch_;
  std::vector<SequenceState> sequences_;  // [kMaxSequences]
  bool uses_graphs_ = false;
  std::unique_ptr<Graph> graph_;  // of the last step
};

}  // namespace nanovllm::testing
