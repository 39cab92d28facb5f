// The CPU backend: one class, one file per family of ops (linear.cc, attention.cc, ...).
#pragma once

#include <optional>
#include <vector>

#include "backend/cpu/attention/attention.h"
#include "backend/cpu/cpu_features.h"
#include "backend/cpu/linear/linear_product.h"
#include "backend/cpu/linear/weight_streams.h"
#include "backend/cpu/peers/cpu_communicator.h"
#include "backend/cpu/recurrent/gated_delta.h"
#include "backend/cpu/sampling/row_sampler.h"
#include "backend/cpu/thread_pool.h"
#include "ops/backend.h"

namespace nanovllm {

struct CpuOptions {
  // 0 = as many as affinity and cgroup limits allow
  int num_threads = 0;
  // Kernels use nothing above this; none = default_isa().
  std::optional<Isa> max_isa = std::nullopt;
  // Changes speed only.
  WeightStreams streams = weight_streams();
  // See BackendOptions.
  Progress* progress = nullptr;
};

// Everything is synchronous: an op has finished when its call returns. Ops on one backend are
// called by one thread at a time; allocate() and make_linear() by any.
class CpuBackend : public Backend {
 public:
  // Throws Error(kInvalidArgument) for a bad number of threads or a bad NANOVLLM_CPU_ISA.
  explicit CpuBackend(const CpuOptions& options = {});

  Isa isa() const { return isa_; }
  ThreadPool& pool() { return pool_; }

  std::string description() const override;
  std::string device_type() const override { return "cpu"; }
  BackendTraits traits() const override;

  MemoryInfo memory() const override;
  std::unique_ptr<Buffer> allocate(size_t bytes) override;
  void upload(void* device, const void* host, size_t bytes) override;
  void download(void* host, const void* device, size_t bytes) override;
  void synchronize() override {}
  std::unique_ptr<Buffer> allocate_staging(size_t bytes) override;
  void stage_batch(int32_t* device, const int32_t* host, int64_t count, int64_t num_token_ids,
                   const int32_t* previous_ids) override;

  std::unique_ptr<LinearWeight> make_linear(std::span<const HostMatrix> pieces, const float* bias,
                                            DType dtype) override;
  void linear(Tensor out, Tensor x, const LinearWeight& weight) override;
  // Of independent products, as if one after the other.
  void multiply(std::span<const LinearProduct> products);
  std::unique_ptr<ExpertWeights> make_experts(const Experts& experts, DType dtype,
                                              int max_num_tokens) override;
  void experts(Tensor out, Tensor x, ExpertWeights& weights) override;

  size_t kv_block_bytes(const KvCacheSpec& spec) const override;
  void qk_norm_rope_store(Tensor qkv, int num_heads, const RopeParams& rope, const KvCache& cache,
                          const ForwardBatch& batch) override;
  void paged_attention(Tensor out, Tensor qkv, const KvCache& cache, const AttentionParams& params,
                       const ForwardBatch& batch) override;
  StateBytes state_bytes(const StateSpec& spec) const override;
  void gated_delta(Tensor out, Tensor in, const GatedDeltaParams& params, const StateCache& cache,
                   const ForwardBatch& batch) override;

  void embedding(Tensor out, const int32_t* ids, const EmbeddingTable& table,
                 int32_t first_id) override;
  void rms_norm(Tensor out, Tensor x, const float* weight, float eps) override;
  void add_rms_norm(Tensor out, Tensor residual, Tensor x, float scale, const float* weight,
                    float eps) override;
  void norm_all_heads(Tensor qkv, Tensor means, const HeadsNormParams& norm) override;
  void act_and_mul(Tensor out, Tensor gate_up, Activation activation) override;
  void soft_cap(Tensor logits, float cap) override;
  void gather_rows(Tensor out, Tensor x, const int32_t* rows) override;

  int rank() const override { return rank_ ? rank_->rank() : 0; }
  int world_size() const override { return rank_ ? rank_->world_size() : 1; }
  void join(CpuCommunicatorGroup& group, int rank);
  void all_reduce(Tensor x) override;
  void all_gather(Tensor out, Tensor x) override;

  std::unique_ptr<SamplingTicket> sample(std::span<const SamplingRow> rows, Tensor logits,
                                         int32_t* sampled_ids,
                                         const int32_t* previous_ids) override;

 private:
  void pack_rows_of(std::vector<PlannedProduct>& products);
  // experts() of at most kMaxRowsAtOnce rows.
  void mix(Tensor out, Tensor x, const ExpertWeights& weights);

  Isa isa_;
  WeightStreams weight_streams_;
  ThreadPool pool_;
  std::vector<RowSampler> row_samplers_;  // one a thread
  PagedAttention attention_{pool_, isa_};
  GatedDeltaRule gated_delta_{pool_, isa_};
  std::optional<CpuCommunicatorGroup::Rank> rank_;  // of a group, or none
  std::vector<PlannedProduct> planned_;             // of multiply()
  HostScratch packed_rows_, decoded_panels_;        // likewise
  HostScratch expert_rows_;                         // of experts()
};

}  // namespace nanovllm
