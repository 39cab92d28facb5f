// The CUDA backend: one class, one device, ops in the order of one stream; the kernels are in the
// .cu files beside it.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>

#include "backend/cuda/attention_decode_plan.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/linear_skinny.h"
#include "backend/cuda/linear_wgmma.h"
#include "backend/cuda/product.h"
#include "backend/cuda/uploader.h"
#include "ops/backend.h"

namespace nanovllm {
namespace cuda {
class LayerTailKernel;
class Sampler;
struct PeerQueue;
}  // namespace cuda

struct CudaOptions {
  int device = 0;
  bool deterministic = false;  // see BackendOptions
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

  cudaStream_t stream() const { return lanes_[0].stream; }

  std::string description() const override;
  bool is_cpu() const override { return false; }

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
  int min_lane_tokens(int64_t layer_bytes) const override;
  void begin_lanes() override;
  void use_lane(int lane) override;
  void end_lanes() override;

  std::unique_ptr<LinearWeight> make_linear(std::span<const HostMatrix> pieces, const float* bias,
                                            DType dtype) override;
  std::unique_ptr<LinearWeight> make_linear_of_table(Tensor table) override;
  void linear(Tensor out, Tensor x, const LinearWeight& weight) override;
  bool layer_tail(Tensor out, Tensor residual, Tensor attention, Tensor mlp,
                  const LayerTail& tail) override;
  // The tail of a layer that the ranks of a group share; all of them have the kernel, in as many
  // blocks. False on all of them, or on none.
  bool layer_tail_of_ranks(const cuda::PeerQueue& queue, Tensor out, Tensor residual,
                           Tensor attention, Tensor mlp, const LayerTail& tail);
  int tail_kernel_blocks() const;  // 0 without one

  size_t kv_block_bytes(const KvCacheSpec& spec) const override;
  void qk_norm_rope_store(Tensor qkv, int num_heads, const RopeParams& rope, const KvCache& cache,
                          const ForwardBatch& batch) override;
  void paged_attention(Tensor out, Tensor qkv, const KvCache& cache, const AttentionParams& params,
                       const ForwardBatch& batch) override;
  void store_and_attend(Tensor out, Tensor qkv, const RopeParams& rope, const KvCache& cache,
                        const AttentionParams& params, const ForwardBatch& batch) override;

  void embedding(Tensor out, const int32_t* ids, const EmbeddingTable& table,
                 int32_t first_id) override;
  void rms_norm(Tensor out, Tensor x, const float* weight, float eps, float offset) override;
  void add_rms_norm(Tensor out, Tensor residual, Tensor x, const float* weight, float eps,
                    float offset) override;
  void act_and_mul(Tensor out, Tensor gate_up, Activation activation) override;
  void gather_rows(Tensor out, Tensor x, const int32_t* rows) override;

  std::unique_ptr<SamplingTicket> sample(std::span<const SamplingRow> rows, Tensor logits,
                                         int32_t* sampled_ids,
                                         const int32_t* previous_ids) override;

 private:
  // out = x W^T, or += it; no bias.
  void multiply(Tensor out, Tensor x, const LinearWeight& weight, bool accumulate);
  // False if the product is not for that kernel.
  bool launch_if_skinny(Tensor out, Tensor x, const LinearWeight& weight);
  bool may_fuse_tail(Tensor attention) const;
  void norm_after_tail(Tensor out, Tensor residual, const LayerTail& tail);
  std::array<cuda::SkinnyProduct, 4> tail_products(Tensor out, Tensor residual, Tensor attention,
                                                   Tensor mlp, const LayerTail& tail) const;
  // layer_tail() in a chain of linear_skinny.cu's products, but for a norm alone. False if one is
  // not for that kernel.
  bool launch_chain(std::span<const cuda::SkinnyProduct, 4> products);
  // layer_tail() for more rows than linear_skinny.cu takes.
  bool wgmma_tail(Tensor out, Tensor residual, Tensor attention, Tensor mlp, const LayerTail& tail);

  cuda::AttentionWorkspace attention_workspace() const;
  // What was prepared for a batch's attention is for another batch.
  void forget_plans();
  int multiprocessors_for_attention() const;
  int multiprocessors_for_products() const;  // 0 = all

  // What kernels that may run at once must not share.
  struct Lane {
    cudaStream_t stream = nullptr;
    std::unique_ptr<Buffer> workspace;                    // of cuBLASLt
    std::unique_ptr<Buffer> decode_words, prefill_words;  // see cuda::AttentionWorkspace
    std::unique_ptr<cuda::DecodePlans> decode_plans;
  };
  bool has_lanes() const { return !deterministic_ && properties_.major == 9; }
  void make_lane(Lane& lane);

  const int device_;
  const bool deterministic_;
  cudaDeviceProp properties_ = {};
  std::array<Lane, 2> lanes_;  // the second one's memory where has_lanes()
  Lane* lane_ = lanes_.data();
  bool in_lanes_ = false;
  cudaEvent_t lanes_event_ = nullptr;
  std::unique_ptr<cuda::Uploader> uploader_;
  std::unique_ptr<Buffer> split_norm_;  // see cuda::SplitNorm
  std::unique_ptr<cuda::CublasProducts> products_;
  std::unique_ptr<cuda::LayerTailKernel> tail_kernel_;  // or none
  std::unique_ptr<cuda::Sampler> sampler_;
};

}  // namespace nanovllm
