// The CUDA backend: one class, one device, ops in the order of one stream; the kernels stand in the
// rooms below it.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <string>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_decode_plan.h"
#include "backend/cuda/attention/attention_pieces_plan.h"
#include "backend/cuda/backend/cuda_communicator.h"
#include "backend/cuda/backend/uploader.h"
#include "backend/cuda/device/device_traits.h"
#include "backend/cuda/layer/layer_plan.h"
#include "backend/cuda/linear/product.h"
#include "ops/backend.h"
#include "ops/layer_program.h"

namespace nanovllm {
namespace cuda {
struct CodeProduct;
class LayerTailKernel;
class Sampler;
}  // namespace cuda
struct CudaLinearWeight;

struct CudaOptions {
  int device = 0;
  bool deterministic = false;    // see BackendOptions
  Progress* progress = nullptr;  // likewise
  // All attention of few new tokens a sequence in the order of sums that attention_pieces.h has, on
  // Hopper, not only where that is faster. Prompts are not yet added up in it.
  bool attention_in_pieces = false;
  std::string engine = "an engine of this process";  // whose backend it is, for people
};

// Ops are enqueued in the order of one stream and return at once; download() and collecting a
// ticket wait.
class CudaBackend final : public Backend {
 public:
  // Throws Error(kUnsupported) when there is no such device or it is older than the build's
  // kernels.
  explicit CudaBackend(const CudaOptions& options = {});
  ~CudaBackend() override;
  static int device_count();  // 0 where there is no driver

  cudaStream_t stream() const { return stream_; }

  std::string description() const override;
  std::string device_type() const override { return "cuda"; }
  BackendTraits traits() const override;
  void enter_thread() override;
  DeviceSpeed speed(const KvCacheSpec& spec) const override;

  MemoryInfo memory() const override;
  std::unique_ptr<Buffer> allocate(size_t bytes) override;
  void upload(void* device, const void* host, size_t bytes) override;
  void finish_loading() override;
  void download(void* host, const void* device, size_t bytes) override;
  void synchronize() override;
  std::unique_ptr<Buffer> allocate_staging(size_t bytes) override;
  void stage_batch(int32_t* device, const int32_t* host, int64_t count, int64_t num_token_ids,
                   const int32_t* previous_ids) override;
  std::unique_ptr<Graph> capture(const std::function<void()>& ops) override;
  void launch(const Graph& graph) override;

  std::unique_ptr<LinearWeight> make_linear(std::span<const HostMatrix> pieces, const float* bias,
                                            DType dtype) override;
  std::unique_ptr<LinearWeight> make_linear_of_table(Tensor table) override;
  void linear(Tensor out, Tensor x, const LinearWeight& weight) override;
  std::vector<PathChoice> linear_paths(const LinearWeight& weight, DType out) const override;
  std::unique_ptr<ExpertWeights> make_experts(const Experts& experts, DType dtype,
                                              int max_num_tokens) override;
  void experts(Tensor out, Tensor x, ExpertWeights& weights) override;
  void check(const StackSpec& spec) const override;
  std::unique_ptr<StackProgram> compile(const StackSpec& spec,
                                        const CompileLimits& limits) override;
  // What plans of layers depend on.
  cuda::TailTraits tail_traits() const;
  // Who has the kernels of whole tails of this device, where another engine does; or "".
  const std::string& tail_kernel_holder() const { return tail_kernel_holder_; }
  // Whether all ranks bring this number; each calls it.
  bool ranks_agree(int64_t value) const;
  // The products of a layer's tail in its backend's memory; next null = the last layer, whose
  // norm is next_norm.
  cuda::TailProducts tail_products(const PackedLayer& layer, const NormParams& next_norm,
                                   const PackedLayer* next) const;
  // From core_out to the next layer's core_in, or to hidden, on a path that was planned.
  void run_tail(cuda::TailPath path, cuda::TailProducts products, const Activations& x);

  size_t kv_block_bytes(const KvCacheSpec& spec) const override;
  void qk_norm_rope_store(Tensor qkv, int num_heads, const RopeParams& rope, const KvCache& cache,
                          const ForwardBatch& batch) override;
  void paged_attention(Tensor out, Tensor qkv, const KvCache& cache, const AttentionParams& params,
                       const ForwardBatch& batch) override;
  void store_and_attend(Tensor out, Tensor qkv, const RopeParams& rope, const KvCache& cache,
                        const AttentionParams& params, const ForwardBatch& batch) override;

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

  int rank() const override;
  int world_size() const override;
  void join(CudaCommunicatorGroup& group, int rank);
  void all_reduce(Tensor x) override;
  void all_gather(Tensor out, Tensor x) override;
  void all_reduce_add_rms_norm(Tensor out, Tensor residual, Tensor x, const float* weight,
                               float eps) override;
  // launch() of this rank alone: a collective op among the graph's waits on the device.
  void launch_alone(const Graph& graph);

  std::unique_ptr<SamplingTicket> sample(std::span<const SamplingRow> rows, Tensor logits,
                                         int32_t* sampled_ids,
                                         const int32_t* previous_ids) override;

 private:
  std::unique_ptr<LinearWeight> pack_linear(std::span<const HostMatrix> pieces, const float* bias,
                                            DType dtype, int gated_rows);
  // linear() of weights in codes: with the codes, and for many rows.
  void multiply_codes(Tensor out, Tensor x, const CudaLinearWeight& weight);
  void multiply_decoded(Tensor out, Tensor x, const CudaLinearWeight& weight);
  bool multiply_some_rows(cuda::CodeProduct product);
  void reserve_decoded(const CudaLinearWeight& weight);
  // experts() of as many rows as its scratch takes.
  void some_experts(Tensor out, Tensor x, ExpertWeights& weights);
  cuda::AttentionWorkspace attention_workspace() const;
  cuda::AttentionTraits attention_traits() const;
  // What was prepared for a batch's attention is for another batch.
  void forget_plans();

  const int device_;
  const bool deterministic_, attention_in_pieces_;
  cuda::DeviceTraits traits_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Buffer> workspace_;                     // of cuBLASLt
  std::unique_ptr<Buffer> decode_words_, prefill_words_;  // see cuda::AttentionWorkspace
  std::unique_ptr<cuda::DecodePlans> decode_plans_;
  std::unique_ptr<Buffer> piece_words_;  // with the queues, or none
  std::unique_ptr<cuda::PieceQueues> piece_queues_;
  std::unique_ptr<cuda::Uploader> uploader_;
  std::unique_ptr<Buffer> split_norm_;  // see cuda::SplitNorm
  std::unique_ptr<cuda::CublasProducts> products_;
  std::unique_ptr<cuda::LayerTailKernel> tail_kernel_;  // or none
  std::string tail_kernel_holder_;
  std::unique_ptr<CudaCommunicatorGroup::Rank> rank_;  // of a group, or none
  std::unique_ptr<cuda::Sampler> sampler_;
  std::mutex decoded_mutex_;
  std::unique_ptr<Buffer> decoded_;  // of a weight in codes, or none
  // See cuda::DeltaRowLayout; or none. It grows, which no graph survives: the largest step comes
  // before the first one.
  std::unique_ptr<Buffer> delta_rows_;
  std::mutex expert_mutex_;
  std::shared_ptr<Buffer> expert_scratch_;  // of the layers with experts, the largest so far
};

}  // namespace nanovllm
