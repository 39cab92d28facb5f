// One decoder-only language model, whatever its family.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/model_config.h"
#include "io/rounded_matrix.h"
#include "io/weight_store.h"
#include "ops/backend.h"
#include "ops/stack_work.h"

namespace nanovllm {

// What a model is built from. All references must live longer than the model.
struct ModelContext {
  const ModelConfig& config;
  const WeightStore& weights;
  // This rank's.
  Backend& backend;
  // Of weights, activations and KV cache.
  DType dtype;
  // Rows (tokens) of the largest step.
  int max_num_tokens;
  // Rows of one call of logits(), at most.
  int max_num_logits;
  // Positions of the rotary table.
  int max_model_len;
  // Threads that convert and upload weights, at most.
  int num_loading_threads;
  // true: a rank has some experts whole, not a slice of each.
  bool expert_parallel = false;
  // Products compute with the codes of quantised weights where the backend can.
  bool keeps_codes = true;
  // How weights of plain numbers are rounded.
  std::optional<RoundedFormat> rounding = std::nullopt;
};

class Model {
 public:
  virtual ~Model() = default;
  // Of this rank's part of every layer that has keys and values.
  virtual KvCacheSpec kv_cache_spec(int block_size) const = 0;
  // This rank's recurrent layers, grouped by the geometry of their states.
  virtual std::vector<StateGroup> state_groups() const = 0;
  // Of the whole model.
  virtual int64_t num_parameters() const = 0;
  // Those that are used for one token: of a mixture of experts, only the chosen experts'.
  virtual int64_t num_active_parameters() const = 0;
  // In memory and where files are mapped, of this rank.
  virtual int64_t weight_bytes() const = 0;
  // Of these, where files are mapped.
  virtual int64_t mapped_weight_bytes() const = 0;
  // Of matrices, without the table of embeddings.
  virtual std::vector<LayoutUse> weight_layouts() const = 0;
  // Of this rank's layers, without embedding and head.
  virtual StackWork work() const = 0;
  // Computes a step, stores its KV and states, and keeps the last hidden states of
  // batch.logits_rows until the next call; num_logits may be anything from 0 to num_tokens.
  virtual void forward(const ForwardBatch& batch, const LayerCaches& caches) = 0;
  // What the layers are, for people: one line for each kind.
  virtual std::vector<std::string> describe_layers() const = 0;
  // How the layers are computed.
  virtual std::vector<PathChoice> plan() const = 0;
  // The head product for rows [begin, end) of the last forward's logits_rows, at most
  // max_num_logits in one call. Returns float32 [end - begin, vocab_size] in memory of the model
  // that the next call overwrites. It is not computed for all rows together, because
  // log-probabilities of a long prompt want one row per token: gigabytes.
  virtual Tensor logits(int begin, int end) = 0;
};

// Builds the model that config.architecture names. Throws Error(kUnsupported), with a list of the
// known architectures, if it is none of them; also what loading its weights throws.
std::unique_ptr<Model> make_model(const ModelContext& context);

// How many tokens each layer of the whole model sees, its own included; 0 = all, kNoKeys = it is
// recurrent. Empty where make_model will refuse the model.
std::vector<int> layer_windows(const ModelConfig& config);

// An architecture that make_model knows.
struct SupportedModel {
  // Its name in config.json.
  const char* architecture;
  // For people.
  const char* family;
  // general.architecture of GGUF files that are opened as it.
  const char* gguf;
  // How its models mark reasoning and calls of tools, in vLLM's names; empty = not at all, or in no
  // way that vLLM has a name for. Where several do it in several ways, that of most of them.
  const char* reasoning_parser;
  const char* tool_parser;
};
std::vector<SupportedModel> supported_models();
// Null where make_model does not know it.
const SupportedModel* find_supported_model(std::string_view architecture);

}  // namespace nanovllm
