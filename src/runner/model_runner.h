// The runner of one rank: loads its part of a model and runs steps on it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/progress.h"
#include "io/model_config.h"
#include "io/weight_store.h"
#include "models/model.h"
#include "nanovllm/config.h"
#include "nanovllm/engine_info.h"
#include "ops/communicator.h"
#include "runner/decode_graphs.h"
#include "runner/kv_cache_plan.h"
#include "runner/runner.h"
#include "runner/step_batch.h"

namespace nanovllm {

// One rank's share of a model and of its KV cache. It is made in two calls, so that ranks can agree
// on a number of blocks: the constructor loads the weights, then allocate_kv_cache() must be
// called. On an asynchronous backend (BackendTraits) submit() and draw() enqueue a step while
// another one runs, and the tokens that the running one draws go to the next step on the device;
// decode steps run as graphs there, unless enforce_eager is set.
class ModelRunner final : public Runner {
 public:
  // `groups`: of all the model's layers that have keys and values. `progress`, or null, advances
  // with each step. Throws Error: kNotFound, kCorruptData, kUnsupported, kOutOfMemory.
  ModelRunner(const ModelConfig& model, const EngineConfig& config, std::vector<CacheGroup> groups,
              std::unique_ptr<Backend> backend, Progress* progress = nullptr);
  ~ModelRunner() override;

  // How many blocks the config asks for or this rank has memory for, beside as many of a draft
  // model, each of draft_block_bytes, as num_draft_blocks() says. Throws what
  // nanovllm::plan_kv_cache() throws.
  KvCachePlan plan_kv_cache(int64_t draft_block_bytes = 0) const;
  // Of the KV cache.
  int64_t block_bytes() const { return kv_block_bytes(*backend_, kv_spec_, cache_groups_); }
  // To be called once, before the first step. The slots and logs are for the states of recurrent
  // layers.
  void allocate_kv_cache(int num_blocks, int num_state_slots = 0, int num_state_logs = 0);
  // How long a request may be, now that the KV cache is there.
  ContextLimit context() const;
  const ModelConfig& model_config() const { return model_config_; }
  // Fills in all of `info` except load_seconds.
  void describe(EngineInfo& info) const;

  int num_kvcache_blocks() const override { return num_kvcache_blocks_; }
  StatePoolSize state_pool() const override { return state_pool_; }
  std::span<const int> kv_windows() const override { return kv_windows_; }
  int max_in_flight() const override { return traits_.is_asynchronous ? 2 : 1; }
  StepCost step_cost() const override;
  void submit(const StepInput& input) override;
  void draw(std::span<const SamplingRow> rows) override;
  StepOutput collect() override;
  void abandon() noexcept override;

 private:
  // What a step has from submit() to collect(). There are two: one step runs while the next is
  // prepared.
  struct Slot {
    std::unique_ptr<Buffer> staging;  // on the host
    std::unique_ptr<StepBatch> batch;
    std::unique_ptr<Buffer> sampled_ids;  // [max_num_tokens] int32 on the device
    std::vector<std::unique_ptr<SamplingTicket>> tickets;
    std::vector<int> ticket_rows;  // [tickets] rows of logits that each one draws from
  };

  void load_model();
  bool keeps_codes() const {
    return config_.weight_layout == "auto" && traits_.computes_with_codes;
  }
  // Throws Error(kInvalidArgument) where the checkpoint is quantised already.
  std::optional<RoundedFormat> rounding() const;
  void tell_of_quantised_weights(bool are_rounded) const;
  void allocate_slots();
  void warm_up();
  StepInput largest_step(std::vector<int32_t>& zeros) const;
  Slot& slot_of(uint64_t step) { return slots_[step % 2]; }
  Slot& slot_before(uint64_t step) { return slots_[(step + 1) % 2]; }
  LayerCaches caches() const { return {.kv = kv_caches_, .states = state_caches_}; }
  void run_forward(const StepInput& input, Slot& slot, const Slot& previous);
  void sample(Slot& slot, const Slot& previous, int begin, const Tensor& logits);

  const ModelConfig model_config_;
  const EngineConfig config_;
  const DType dtype_;
  const ContextLimit most_context_;  // before anybody knows the KV cache
  const std::vector<CacheGroup> cache_groups_;
  const std::vector<int> kv_windows_;  // of the groups
  const int max_model_len_;            // what memory is allocated for
  const int max_num_tokens_;
  const size_t staging_size_;  // elements
  Progress* const progress_;
  std::unique_ptr<Backend> backend_;
  const BackendTraits traits_;
  const int64_t free_at_start_;  // bytes
  int max_num_logits_ = 0;
  std::unique_ptr<WeightStore> weights_;  // mapped for as long as the model reads from it
  std::unique_ptr<Model> model_;
  KvCacheSpec kv_spec_;
  std::unique_ptr<Buffer> kv_cache_memory_;
  std::vector<KvCache> kv_caches_;  // by layer
  int num_kvcache_blocks_ = 0;
  std::vector<StateGroup> state_groups_;
  std::unique_ptr<Buffer> state_memory_;
  std::vector<StateCache> state_caches_;  // by layer
  StatePoolSize state_pool_;

  std::unique_ptr<Buffer> staging_;  // on the device: the integers of the step that runs
  std::array<Slot, 2> slots_;
  Tensor logits_;  // of the step that is not drawn yet: its first max_num_logits_ rows
  // 64 bits, because at one step per millisecond 31 bits are used up in 25 days.
  uint64_t num_submitted_ = 0;
  uint64_t num_drawn_ = 0;
  uint64_t num_collected_ = 0;
  std::optional<DecodeGraphs> graphs_;
};

// What people are told whose a device's parts are: "the engine of /models/Qwen3-0.6B", of all
// ranks.
std::string engine_name(const ModelConfig& model);

// Loads one rank's share of the weights of `model` on the device that `config` names, sizes the KV
// cache and fills in all of `info`: max_model_len is context_in()'s, and num_kvcache_blocks what
// the runner holds. Throws Error: kNotFound, kCorruptData, kUnsupported, or kOutOfMemory with the
// bytes needed and free. With a group, the threads of all ranks call this at the same time, and all
// runners get the same number of blocks; the group must live longer than they do. `info` is about
// this rank alone. `progress`, or null, advances while the weights are loaded and as steps are
// computed; it must live longer than the runner. load_draft: as make_runner() has it.
std::unique_ptr<Runner> make_model_runner(const ModelConfig& model, const EngineConfig& config,
                                          EngineInfo& info, CommunicatorGroup* group = nullptr,
                                          int rank = 0, Progress* progress = nullptr,
                                          const std::function<int64_t()>& load_draft = nullptr);

}  // namespace nanovllm
