// Drives a model directly, without engine or runner, as tests and goldens need it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/model.h"

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

// Of the magnitudes.
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
  const std::string tests = std::string(NANOVLLM_SOURCE_DIR) + "/tests/";
  return name.starts_with("gguf_") ? tests + "data/" + name + ".gguf" : tests + "goldens/" + name;
}

// The next tokens of one sequence, to be computed in one step.
struct Chunk {
  int sequence;
  std::vector<int32_t> ids;
};

// A model with a KV cache whose blocks lie in an arbitrary order.
class ModelRig {
 public:
  static constexpr int kMaxTokens = 512;     // of a step
  static constexpr int kMaxSequences = 144;  // ever
  static constexpr int kMaxLength = 320;     // of a sequence

  ModelRig(const std::string& model_dir, DType dtype, std::unique_ptr<Backend> backend,
           int block_size, bool expert_parallel = false)
      : config_(ModelConfig::load(model_dir)),
        weights_(model_dir, config_.quantization),
        backend_(std::move(backend)),
        block_size_(block_size),
        blocks_per_sequence_((kMaxLength + block_size - 1) / block_size) {
    model_ = make_model({.config = config_,
                         .weights = weights_,
                         .backend = *backend_,
                         .dtype = dtype,
                         .max_num_tokens = kMaxTokens,
                         .max_num_logits = kMaxLogits,
                         .max_model_len = kMaxLength,
                         .num_loading_threads = 2,
                         .expert_parallel = expert_parallel});
    const int64_t num_blocks = int64_t{kMaxSequences} * blocks_per_sequence_;
    caches_.resize(model_->num_layers());
    for (const auto& [spec, layers] : model_->kv_cache_groups(block_size)) {
      for (const int layer : layers) {
        buffers_.push_back(backend_->allocate(num_blocks * backend_->kv_block_bytes(spec)));
        caches_[layer] = {spec, buffers_.back()->data(), num_blocks};
      }
    }
  }

  const ModelConfig& config() const { return config_; }
  Model& model() { return *model_; }
  // Whether steps run as graphs, where the device has any.
  void use_graphs(bool uses_graphs) {
    uses_graphs_ = uses_graphs;
    graph_.reset();
  }

  // Computes one step; sequences of one new token come first. Returns the logits of the new tokens
  // of each chunk, or, with only_last, of the last one of each: [chunk][token][vocab].
  std::vector<Rows> step(const std::vector<Chunk>& chunks, bool only_last = false) {
    Arrays arrays;
    std::vector<size_t> order;
    for (const bool decodes : {true, false}) {
      for (size_t i = 0; i < chunks.size(); ++i) {
        if ((chunks[i].ids.size() == 1) == decodes) order.push_back(i);
      }
    }
    for (const size_t i : order) append(chunks[i], only_last, &arrays);
    forward(arrays);

    std::vector<Rows> result(chunks.size());
    int row = 0;
    for (const size_t i : order) {
      const size_t count = only_last ? 1 : chunks[i].ids.size();
      for (size_t k = 0; k < count; ++k) result[i].push_back(logits_row(row++, arrays));
    }
    return result;
  }

  // The logits that predict each token of `continuation` after `ids`, which are computed at once.
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
    Arrays arrays;
    append(chunk, true, &arrays);
    arrays.logits_rows.clear();
    forward(arrays);
  }

 private:
  static constexpr int kMaxLogits = 160;

  struct Arrays {
    std::vector<int32_t> token_ids, positions, slots, starts{0}, lengths, table, logits_rows;
    int num_decodes = 0, max_query_len = 0, max_seq_len = 0;
  };

  // Scatters blocks over the cache: 7 and the number of blocks have no common factor that matters.
  int32_t block_of(int sequence, int index) const {
    const int num_blocks = kMaxSequences * blocks_per_sequence_;
    int step = 7;
    while (num_blocks % step == 0) step += 2;
    return static_cast<int32_t>((int64_t{sequence} * blocks_per_sequence_ + index) * step %
                                num_blocks);
  }

  void append(const Chunk& chunk, bool only_last, Arrays* arrays) {
    int& length = lengths_[chunk.sequence];
    const int count = static_cast<int>(chunk.ids.size());
    for (int k = 0; k < count; ++k) {
      const int position = length + k;
      if (!only_last || k + 1 == count) {
        arrays->logits_rows.push_back(static_cast<int32_t>(arrays->token_ids.size()));
      }
      arrays->token_ids.push_back(chunk.ids[k]);
      arrays->positions.push_back(position);
      arrays->slots.push_back(block_of(chunk.sequence, position / block_size_) * block_size_ +
                              position % block_size_);
    }
    length += count;
    arrays->starts.push_back(static_cast<int32_t>(arrays->token_ids.size()));
    arrays->lengths.push_back(length);
    for (int b = 0; b < blocks_per_sequence_; ++b) {
      arrays->table.push_back(block_of(chunk.sequence, b));
    }
    arrays->num_decodes += count == 1;
    arrays->max_query_len = std::max(arrays->max_query_len, count);
    arrays->max_seq_len = std::max(arrays->max_seq_len, length);
  }

  void forward(const Arrays& arrays) {
    ForwardBatch batch;
    batch.num_tokens = static_cast<int>(arrays.token_ids.size());
    batch.num_seqs = static_cast<int>(arrays.lengths.size());
    batch.num_decodes = arrays.num_decodes;
    batch.num_logits = static_cast<int>(arrays.logits_rows.size());
    batch.max_query_len = arrays.max_query_len;
    batch.max_seq_len = arrays.max_seq_len;
    batch.block_table_stride = blocks_per_sequence_;
    inputs_.clear();
    batch.token_ids = upload(arrays.token_ids);
    batch.positions = upload(arrays.positions);
    batch.slot_mapping = upload(arrays.slots);
    batch.query_start_loc = upload(arrays.starts);
    batch.seq_lens = upload(arrays.lengths);
    batch.block_table = upload(arrays.table);
    batch.logits_rows = upload(arrays.logits_rows);
    if (uses_graphs_) graph_ = backend_->capture([&] { model_->forward(batch, caches_); });
    if (graph_ != nullptr) {
      backend_->launch(*graph_);
    } else {
      model_->forward(batch, caches_);
    }
  }

  const int32_t* upload(const std::vector<int32_t>& values) {
    const size_t bytes = std::max<size_t>(1, values.size()) * sizeof(int32_t);
    inputs_.push_back(backend_->allocate(bytes));
    backend_->upload(inputs_.back()->data(), values.data(), values.size() * sizeof(int32_t));
    return static_cast<const int32_t*>(inputs_.back()->data());
  }

  // Row `row` of the step's logits, fetched kMaxLogits rows at a time.
  std::vector<float> logits_row(int row, const Arrays& arrays) {
    if (row % kMaxLogits == 0) {
      const int end = std::min<int>(row + kMaxLogits, arrays.logits_rows.size());
      const Tensor logits = model_->logits(row, end);
      fetched_.resize(logits.num_elements());
      backend_->download(fetched_.data(), logits.data, logits.bytes());
      backend_->synchronize();
    }
    const float* begin = fetched_.data() + int64_t{row % kMaxLogits} * config_.vocab_size;
    return {begin, begin + config_.vocab_size};
  }

  ModelConfig config_;
  WeightStore weights_;
  std::unique_ptr<Backend> backend_;
  int block_size_;
  int blocks_per_sequence_;
  std::unique_ptr<Model> model_;
  std::vector<std::unique_ptr<Buffer>> buffers_, inputs_;
  std::vector<KvCache> caches_;
  std::vector<int> lengths_ = std::vector<int>(kMaxSequences, 0);
  std::vector<float> fetched_;
  bool uses_graphs_ = false;
  std::unique_ptr<Graph> graph_;  // of the last step
};

}  // namespace nanovllm::testing
