#include "backend/cuda/backend/cuda_backend.h"

#include <cstring>
#include <utility>

#include "backend/cuda/backend/device_speed.h"
#include "backend/cuda/backend/staging.h"
#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/device/device_context.h"
#include "backend/cuda/device/memory.h"
#include "backend/cuda/layer/layer_tail.h"
#include "backend/cuda/layer/row_kernels.h"
#include "backend/cuda/linear/code_product.h"
#include "backend/cuda/linear/linear_weight.h"
#include "backend/cuda/recurrent/gated_delta.h"
#include "backend/cuda/sampling/sampling.h"
#include "base/check.h"

namespace nanovllm {
namespace {

// Smaller ones are not worth a chunk of pinned memory: the driver has some of its own for them.
constexpr size_t kLargeUpload = size_t{1} << 18;
constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what cuBLASLt's Hopper kernels want

}  // namespace

int CudaBackend::device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

CudaBackend::CudaBackend(const CudaOptions& options)
    : device_(options.device),
      deterministic_(options.deterministic),
      attention_in_pieces_(options.attention_in_pieces) {
  if (device_ >= device_count()) {
    throw_error(ErrorCode::kUnsupported,
                "no CUDA device {}: this machine has {}; use the device cpu", device_,
                device_count());
  }
  NANOVLLM_CUDA_CHECK(cudaSetDevice(device_));
  cuda::DeviceContext& context = cuda::DeviceContext::of(device_);
  traits_ = context.traits();
  NANOVLLM_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  uploader_ = std::make_unique<cuda::Uploader>(device_, stream_, options.progress);
  workspace_ = allocate(kWorkspaceBytes);
  const int multiprocessors = traits_.num_multiprocessors();
  const auto words = [&](size_t bytes) {
    auto buffer = allocate(bytes);
    NANOVLLM_CUDA_CHECK(cudaMemsetAsync(buffer->data(), 0xff, bytes, stream_));
    return buffer;
  };
  decode_words_ = words(cuda::decode_attention_bytes(multiprocessors));
  if (traits_.has_wgmma && !deterministic_) {
    prefill_words_ = words(cuda::prefill_attention_bytes(multiprocessors));
  }
  decode_plans_ = std::make_unique<cuda::DecodePlans>(multiprocessors);
  if (traits_.has_wgmma && (attention_in_pieces_ || !deterministic_)) {
    piece_words_ = words(cuda::piece_attention_bytes());
    piece_queues_ = std::make_unique<cuda::PieceQueues>();
  }
  split_norm_ = allocate(cuda::split_norm_bytes());
  products_ = std::make_unique<cuda::CublasProducts>(kWorkspaceBytes);
  auto [tail_kernel, holder] = cuda::LayerTailKernel::make(context, options.engine);
  tail_kernel_ = std::move(tail_kernel);
  tail_kernel_holder_ = std::move(holder);
  sampler_ = std::make_unique<cuda::Sampler>(*this, stream_, traits_.block_bytes());
}

CudaBackend::~CudaBackend() {
  rank_.reset();
  cudaStreamSynchronize(stream_);
  uploader_.reset();
  tail_kernel_.reset();
  sampler_.reset();
  cudaStreamDestroy(stream_);
}

BackendTraits CudaBackend::traits() const {
  return {.computes_with_codes = true, .is_asynchronous = true};
}

// Each thread has a current device, at first number 0.
void CudaBackend::enter_thread() { NANOVLLM_CUDA_CHECK(cudaSetDevice(device_)); }

DeviceSpeed CudaBackend::speed(const KvCacheSpec& spec) const {
  const auto attribute = [this](cudaDeviceAttr which) {
    int value = 0;
    NANOVLLM_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device_));
    return value;
  };
  const double clock_hz = 1e3 * attribute(cudaDevAttrClockRate);  // the highest
  const double memory_clock_hz = 1e3 * attribute(cudaDevAttrMemoryClockRate);
  const double ticks = clock_hz * traits_.num_multiprocessors();
  const int major = traits_.properties.major, minor = traits_.properties.minor;
  const auto path = cuda::long_prompt_path(
      {spec.dtype, spec.num_kv_heads, spec.num_kv_heads, spec.head_dim, spec.block_size},
      attention_traits());
  return {.flops = ticks * cuda::flops_per_tick(major, minor, spec.dtype),
          .attention_flops = ticks * cuda::attention_flops_per_tick(major, minor, path),
          .bytes =
              cuda::peak_memory_bytes(memory_clock_hz, attribute(cudaDevAttrGlobalMemoryBusWidth))};
}

std::string CudaBackend::description() const {
  return fmt::format("cuda ({}, {} SMs, {:.0f} GiB)", traits_.properties.name,
                     traits_.num_multiprocessors(),
                     static_cast<double>(traits_.properties.totalGlobalMem) / 0x1p30);
}

MemoryInfo CudaBackend::memory() const {
  size_t free = 0, total = 0;
  NANOVLLM_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

std::unique_ptr<Buffer> CudaBackend::allocate(size_t bytes) {
  NANOVLLM_CUDA_CHECK(cudaSetDevice(device_));
  auto buffer = std::make_unique<cuda::DeviceBuffer>(bytes);
  if (bytes > 0) {
    // Zero at once and not in the order of the stream: other devices may write to it.
    NANOVLLM_CUDA_CHECK(cudaMemsetAsync(buffer->data(), 0, bytes, stream_));
    synchronize();
  }
  return buffer;
}

void CudaBackend::upload(void* device, const void* host, size_t bytes) {
  decode_plans_->forget();
  if (bytes < kLargeUpload) {
    NANOVLLM_CUDA_CHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_));
    return;
  }
  uploader_->copy(device, bytes, [host](char* chunk, size_t begin, size_t count) {
    std::memcpy(chunk, static_cast<const char*>(host) + begin, count);
  });
}

void CudaBackend::finish_loading() { uploader_->release(); }

void CudaBackend::download(void* host, const void* device, size_t bytes) {
  NANOVLLM_CUDA_CHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_));
  synchronize();
}

void CudaBackend::synchronize() { NANOVLLM_CUDA_CHECK(cudaStreamSynchronize(stream_)); }

std::unique_ptr<Buffer> CudaBackend::allocate_staging(size_t bytes) {
  NANOVLLM_CUDA_CHECK(cudaSetDevice(device_));
  return std::make_unique<cuda::PinnedBuffer>(bytes);
}

void CudaBackend::stage_batch(int32_t* device, const int32_t* host, int64_t count,
                              int64_t num_token_ids, const int32_t* previous_ids) {
  decode_plans_->forget();
  cuda::launch_stage_batch(stream_, device, host, count, num_token_ids, previous_ids);
}

size_t CudaBackend::kv_block_bytes(const KvCacheSpec& spec) const {
  return size_t{2} * spec.num_kv_heads * spec.block_size * spec.head_dim * size_of(spec.dtype);
}

void CudaBackend::embedding(Tensor out, const int32_t* ids, const EmbeddingTable& table,
                            int32_t first_id) {
  const auto num_tokens = static_cast<int>(out.rows());
  const auto* const packed = static_cast<const CudaLinearWeight*>(table.packed.get());
  if (packed != nullptr && !packed->parts.empty()) {
    const auto& [shape, codes] = packed->parts.front();
    return cuda::launch_embedding_of_codes(stream_, out.f32(), ids, num_tokens, shape, codes,
                                           first_id, table.scale);
  }
  cuda::launch_embedding(stream_, out.f32(), ids, packed ? packed->data : table.rows.data,
                         table.rows.dtype, num_tokens, static_cast<int>(out.row_size()),
                         static_cast<int>(table.rows.rows()), first_id, table.scale);
}

void CudaBackend::rms_norm(Tensor out, Tensor x, const float* weight, float eps) {
  const bool is_act = x.dtype == out.dtype;
  cuda::launch_rms_norm(stream_, out.data, out.dtype, nullptr, is_act ? x.data : nullptr, 1,
                        is_act ? nullptr : x.f32(), weight, static_cast<int>(x.rows()),
                        static_cast<int>(x.row_size()), eps);
}

void CudaBackend::add_rms_norm(Tensor out, Tensor residual, Tensor x, float scale,
                               const float* weight, float eps) {
  NANOVLLM_CHECK(x.dtype == out.dtype);
  cuda::launch_rms_norm(stream_, out.data, out.dtype, residual.f32(), x.data, scale, nullptr,
                        weight, static_cast<int>(x.rows()), static_cast<int>(x.row_size()), eps);
}

void CudaBackend::norm_all_heads(Tensor qkv, Tensor means, const HeadsNormParams& norm) {
  const auto launch = [&](cuda::HeadsNormPart part) {
    cuda::launch_norm_all_heads(stream_, qkv.data, qkv.dtype, means.f32(), norm,
                                static_cast<int>(qkv.rows()), static_cast<int>(qkv.row_size()),
                                world_size(), part);
  };
  if (world_size() == 1) return launch(cuda::HeadsNormPart::kAll);
  launch(cuda::HeadsNormPart::kMeans);
  all_reduce(means);
  launch(cuda::HeadsNormPart::kScale);
}

void CudaBackend::qk_norm_rope_store(Tensor qkv, int num_heads, const RopeParams& rope,
                                     const KvCache& cache, const ForwardBatch& batch) {
  cuda::launch_qk_norm_rope_store(stream_, qkv, num_heads, rope, cache, batch);
}

cuda::AttentionWorkspace CudaBackend::attention_workspace() const {
  const auto words = [](const std::unique_ptr<Buffer>& buffer) {
    return buffer ? static_cast<uint32_t*>(buffer->data()) : nullptr;
  };
  return {words(decode_words_), words(prefill_words_), decode_plans_.get(), words(piece_words_),
          piece_queues_.get()};
}

cuda::AttentionTraits CudaBackend::attention_traits() const {
  return cuda::attention_traits(traits_, deterministic_, attention_in_pieces_);
}

void CudaBackend::paged_attention(Tensor out, Tensor qkv, const KvCache& cache,
                                  const AttentionParams& params, const ForwardBatch& batch) {
  const cuda::AttentionPlan plan = cuda::plan_attention(
      cuda::attention_shape(qkv.dtype, cache.spec, params), batch, attention_traits());
  cuda::launch_paged_attention(stream_, out.data, qkv.data, qkv.dtype, cache, params, batch,
                               attention_workspace(), plan);
}

void CudaBackend::store_and_attend(Tensor out, Tensor qkv, const RopeParams& rope,
                                   const KvCache& cache, const AttentionParams& params,
                                   const ForwardBatch& batch) {
  const auto choice = cuda::plan_store_and_attend(
      cuda::attention_shape(qkv.dtype, cache.spec, params), rope, batch, attention_traits());
  if (!choice) return Backend::store_and_attend(out, qkv, rope, cache, params, batch);
  cuda::launch_store_and_decode_attention(stream_, out.data, qkv.data, rope, cache, params, batch,
                                          attention_workspace(), *choice);
}

StateBytes CudaBackend::state_bytes(const StateSpec& spec) const {
  const cuda::DeltaLayout layout(spec);
  return {layout.slot, layout.log};
}

void CudaBackend::gated_delta(Tensor out, Tensor in, const GatedDeltaParams& params,
                              const StateCache& cache, const ForwardBatch& batch) {
  const StateSpec& spec = cache.spec;
  NANOVLLM_CHECK(in.dtype == spec.dtype && out.dtype == spec.dtype);
  NANOVLLM_CHECK(in.row_size() ==
                 spec.num_channels() + int64_t{spec.num_value_heads} * (spec.value_dim + 2));
  const cuda::DeltaRowLayout row(spec, cuda::DeltaLayout(spec));
  const auto bytes = static_cast<size_t>(row.bytes * batch.num_tokens);
  if (delta_rows_ == nullptr || delta_rows_->bytes() < bytes) {
    synchronize();  // steps under way use the smaller one
    delta_rows_ = allocate(bytes);
  }
  const int num_prompts = batch.num_seqs - batch.num_decodes;
  cuda::launch_gated_delta(stream_, out, in, params, cache, batch, delta_rows_->data(),
                           cuda::plan_gated_delta(spec, num_prompts, batch.max_query_len, traits_));
}

void CudaBackend::act_and_mul(Tensor out, Tensor gate_up, Activation activation) {
  cuda::launch_act_and_mul(stream_, out.data, gate_up.data, out.dtype, static_cast<int>(out.rows()),
                           static_cast<int>(out.row_size()), activation);
}

void CudaBackend::soft_cap(Tensor logits, float cap) {
  cuda::launch_soft_cap(stream_, logits.f32(), logits.num_elements(), cap);
}

void CudaBackend::gather_rows(Tensor out, Tensor x, const int32_t* rows) {
  cuda::launch_gather_rows(stream_, out.data, x.data, rows, static_cast<int>(out.rows()),
                           x.row_size() * static_cast<int64_t>(size_of(x.dtype)));
}

std::unique_ptr<SamplingTicket> CudaBackend::sample(std::span<const SamplingRow> rows,
                                                    Tensor logits, int32_t* sampled_ids,
                                                    const int32_t* previous_ids) {
  return sampler_->sample(rows, logits, sampled_ids, previous_ids);
}

}  // namespace nanovllm
