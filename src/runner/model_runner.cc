#include "runner/model_runner.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "backend/registry.h"
#include "base/check.h"
#include "io/weight_store.h"
#include "models/model.h"
#include "runner/kv_cache_plan.h"
#include "runner/step_batch.h"

namespace nanovllm {
namespace {

// Rows of logits computed and sampled at a time. On the CPU so few that the memory they take stays
// small (a row of 150,000 tokens is 600 KB) and yet so many that the head's weights are not what
// costs.
constexpr int kCpuLogitsRows = 128;

DType resolve_dtype(const std::string& name, DType of_checkpoint) {
  if (name == "float32") return DType::kFloat32;
  if (name == "bfloat16") return DType::kBFloat16;
  NANOVLLM_CHECK(name == "auto");
  return of_checkpoint == DType::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
}

class ModelRunner final : public Runner {
 public:
  ModelRunner(const ModelConfig& model, const EngineConfig& config, EngineInfo& info,
              CommunicatorGroup* group, int rank);

  int num_kvcache_blocks() const override { return num_kvcache_blocks_; }
  StepOutput run(const StepInput& input) override;

 private:
  void allocate_kv_cache(const EngineConfig& config, int64_t free_at_start,
                         CommunicatorGroup* group);
  const int32_t* staging_on_device();

  const ModelConfig model_config_;
  const DType dtype_;
  const int max_model_len_;
  const int max_num_tokens_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Communicator> communicator_;
  int max_num_logits_ = 0;
  std::unique_ptr<WeightStore> weights_;  // mapped for as long as the model reads from it
  std::unique_ptr<Model> model_;
  std::unique_ptr<Buffer> kv_cache_memory_;
  std::vector<KvCache> kv_caches_;  // [num_layers]
  int num_kvcache_blocks_ = 0;

  StepBatch batch_;
  std::unique_ptr<Buffer> staging_;  // the batch on the device
  std::vector<SamplingResult> results_;
};

ModelRunner::ModelRunner(const ModelConfig& model, const EngineConfig& config, EngineInfo& info,
                         CommunicatorGroup* group, int rank)
    : model_config_(model),
      dtype_(resolve_dtype(config.dtype, model.dtype)),
      max_model_len_(std::min(config.max_model_len, model.max_position_embeddings)),
      max_num_tokens_(static_cast<int>(
          std::min<int64_t>(config.max_num_batched_tokens,
                            static_cast<int64_t>(config.max_num_seqs) * max_model_len_))),
      batch_(config.kvcache_block_size) {
  const auto start = std::chrono::steady_clock::now();
  backend_ = make_backend({.device = config.device,
                           .num_threads = config.num_threads,
                           .num_ranks = group != nullptr ? group->world_size() : 1,
                           .device_index = rank,
                           .deterministic = config.deterministic});
  communicator_ =
      group != nullptr ? group->join(rank, *backend_) : std::make_unique<Communicator>();
  const int64_t free_at_start = backend_->memory().free_bytes;
  max_num_logits_ = backend_->is_cpu() ? kCpuLogitsRows : config.max_num_seqs;
  max_num_logits_ = std::min(max_num_logits_, max_num_tokens_);
  weights_ = std::make_unique<WeightStore>(model_config_.model_dir);
  model_ = make_model({.config = model_config_,
                       .weights = *weights_,
                       .backend = *backend_,
                       .communicator = *communicator_,
                       .dtype = dtype_,
                       .max_num_tokens = max_num_tokens_,
                       .max_num_logits = max_num_logits_,
                       .max_model_len = max_model_len_});
  allocate_kv_cache(config, free_at_start, group);

  info.architecture = model_config_.architecture;
  info.device = backend_->description();
  info.dtype = to_string(dtype_);
  info.num_parameters = model_->num_parameters();
  info.weight_bytes = model_->weight_bytes();
  info.kv_cache_bytes = static_cast<int64_t>(kv_cache_memory_->bytes());
  info.kv_bytes_per_token = info.kv_cache_bytes / num_kvcache_blocks_ / config.kvcache_block_size;
  info.num_kvcache_blocks = num_kvcache_blocks_;
  info.kvcache_block_size = config.kvcache_block_size;
  info.max_model_len = max_model_len_;
  info.vocab_size = model_config_.vocab_size;
  info.load_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void ModelRunner::allocate_kv_cache(const EngineConfig& config, int64_t free_at_start,
                                    CommunicatorGroup* group) {
  KvCacheSpec spec = model_->kv_cache_spec();
  spec.block_size = config.kvcache_block_size;
  const auto layer_block_bytes = static_cast<int64_t>(backend_->kv_block_bytes(spec));
  num_kvcache_blocks_ =
      plan_kv_cache(config,
                    {.block_bytes = layer_block_bytes * model_->num_layers(),
                     .block_size = spec.block_size,
                     .max_model_len = max_model_len_},
                    {.is_cpu = backend_->is_cpu(),
                     .num_ranks = backend_->is_cpu() ? communicator_->world_size() : 1,
                     .free_at_start = free_at_start,
                     .free_now = backend_->memory().free_bytes});
  if (group != nullptr) {
    num_kvcache_blocks_ =
        static_cast<int>(group->smallest(communicator_->rank(), num_kvcache_blocks_));
  }
  const int64_t layer_bytes = layer_block_bytes * num_kvcache_blocks_;
  kv_cache_memory_ = backend_->allocate(static_cast<size_t>(layer_bytes * model_->num_layers()));
  for (int layer = 0; layer < model_->num_layers(); ++layer) {
    kv_caches_.push_back({.spec = spec,
                          .data = static_cast<char*>(kv_cache_memory_->data()) +
                                  static_cast<int64_t>(layer) * layer_bytes,
                          .num_blocks = num_kvcache_blocks_});
  }
}

const int32_t* ModelRunner::staging_on_device() {
  const std::span<const int32_t> host = batch_.staging();
  if (backend_->is_cpu()) return host.data();
  if (!staging_ || staging_->bytes() < host.size_bytes()) {
    staging_ = backend_->allocate(2 * host.size_bytes());
  }
  backend_->upload(staging_->data(), host.data(), host.size_bytes());
  return static_cast<const int32_t*>(staging_->data());
}

StepOutput ModelRunner::run(const StepInput& input) {
  if (input.sequences.empty()) return {};
  batch_.build(input);
  const ForwardBatch batch = batch_.forward_batch(staging_on_device());
  NANOVLLM_CHECK(batch.num_tokens <= max_num_tokens_ && batch.max_seq_len <= max_model_len_);
  model_->forward(batch, kv_caches_);
  results_.assign(batch.num_logits, {});
  for (int begin = 0; begin < batch.num_logits; begin += max_num_logits_) {
    const int count = std::min(max_num_logits_, batch.num_logits - begin);
    const auto ticket = backend_->sample(batch_.sampling_rows().subspan(begin, count),
                                         model_->logits(begin, begin + count), nullptr, nullptr);
    ticket->collect(std::span(results_).subspan(begin, count));
  }
  return batch_.collect(results_);
}

}  // namespace

std::unique_ptr<Runner> make_model_runner(const ModelConfig& model, const EngineConfig& config,
                                          EngineInfo& info, CommunicatorGroup* group, int rank) {
  return std::make_unique<ModelRunner>(model, config, info, group, rank);
}

}  // namespace nanovllm
