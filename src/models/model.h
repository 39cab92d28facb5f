// One decoder-only language model, whatever its family.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/model_config.h"
#include "io/weight_store.h"
#include "ops/backend.h"

namespace nanovllm {

// What a model is built from. All references outlive the model.
struct ModelContext {
  const ModelConfig& config;
  const WeightStore& weights;
  Backend& backend;              // this rank's
  DType dtype;                   // of weights, activations and KV cache
  int max_num_tokens;            // rows of the largest step
  int max_num_logits;            // rows of the largest head product: of one call of logits()
  int max_model_len;             // positions of the rotary table
  int num_loading_threads;       // that convert and upload weights, at most
  bool expert_parallel = false;  // a rank has whole experts, not a slice of each
};

class Model {
 public:
  virtual ~Model() = default;
  // Of this rank, each layer in one of them.
  virtual std::vector<KvCacheGroup> kv_cache_groups(int block_size) const = 0;
  virtual int num_layers() const = 0;
  virtual int64_t num_parameters() const = 0;
  virtual int64_t num_active_parameters() const = 0;  // those that a token meets
  virtual int64_t weight_bytes() const = 0;
  // Computes a step, stores its KV, and keeps the last hidden states of batch.logits_rows until the
  // next call; num_logits may be anything from 0 to num_tokens.
  virtual void forward(const ForwardBatch& batch, std::span<const KvCache> kv_caches) = 0;
  // What the layers are, for people: a line for each kind.
  virtual std::vector<std::string> describe_layers() const = 0;
  // How the layers are computed.
  virtual std::vector<PathChoice> plan() const = 0;
  // The head product for rows [begin, end) of the last forward's logits_rows, at most
  // max_num_logits at once: prompt log-probabilities want a row a token, which would make the
  // logits of a long prompt gigabytes. Returns float32 [end - begin, vocab_size] in memory of the
  // model's own that the next call overwrites.
  virtual Tensor logits(int begin, int end) = 0;
};

// Builds the model config.architecture names. Throws Error(kUnsupported) listing the known
// architectures.
std::unique_ptr<Model> make_model(const ModelContext& context);

// An architecture that make_model knows.
struct SupportedModel {
  const char* architecture;  // of config.json
  const char* family;        // for people
  const char* gguf;          // general.architecture of files that open as it
};
std::vector<SupportedModel> supported_models();

}  // namespace nanovllm
