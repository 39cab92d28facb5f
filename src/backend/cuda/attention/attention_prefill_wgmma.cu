// Paged prefill attention on Hopper's warpgroup products, in the manner of FlashAttention-3
// (https://arxiv.org/abs/2407.08608): the same sums as attention_prefill.cu, in other tiles.
//
// Blocks stay for the whole launch and take pieces of kRows rows from a counter. One warp has the
// copy engine bring tiles of keys and values, which lie in the cache as the products want them (see
// kv_layout.cuh); three warps bring the queries of the piece after. Two warpgroups compute 64 rows
// each: a tile's scores are multiplied while the weights of the tile before meet their values, and
// one group's softmax runs beside the other's products.
//
// Few rows behind long contexts are too few pieces: then several blocks share the keys of one, and
// merge what they have, see attention_prefill_merge.cuh.
#include <algorithm>
#include <optional>

#include "backend/cuda/attention/attention_prefill_consumer.cuh"
#include "backend/cuda/attention/attention_prefill_producer.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/tensor_map.h"
#include "base/assert.h"

namespace nanovllm::cuda {
namespace {

using namespace hopper_prefill;

template <int kRegisters>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_prefill_kernel(const __grid_constant__ CUtensorMap map,
                         const __grid_constant__ PrefillArguments arguments) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shared = PrefillShared<kDim>;
  extern __shared__ uint8_t dynamic[];
  auto& shared = *reinterpret_cast<Shared*>(dynamic + (-shared_address(dynamic) & 1023));
  auto* sums = reinterpret_cast<int*>(&shared + 1);
  // The lengths are older than the predecessor, which released this kernel after it had waited.
  const int num_pieces = count_prefill_pieces<kThreads, kRows>(sums, arguments.p);
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  wait_for_predecessor();
  release_successor();
  if (threadIdx.x < kConsumers) {
    take_registers<232>();
    PrefillConsumer<kDim>(arguments, shared).run();
    return;
  }
  give_registers<40>();
  const PrefillProducer<kDim> producer(arguments, map, shared);
  if (threadIdx.x < kConsumers + kLoaders) {
    producer.bring_queries();
  } else {
    producer.bring_keys(sums, num_pieces * arguments.p.kv.num_kv_heads * arguments.parts.max_count);
  }
#endif
}

constexpr size_t kStaticBytes = 1024;  // of shared memory, at most: what sums of lengths take

// The workspace: counters of work, counters of parts, and the parts.
constexpr int kWorkCounters = 2, kCounters = 1024;

// Into how many parts to cut the keys of each of up to `max_jobs` pieces, at most, so that all
// blocks get one.
template <int kDim>
int count_parts(int64_t max_jobs, int max_seq_len, int num_multiprocessors) {
  const int max_parts = max_seq_len / (kMinPartTiles * PrefillShared<kDim>::kKeys);
  const int64_t blocks = std::min(num_multiprocessors, kCounters - kWorkCounters);
  const int64_t parts = blocks / max_jobs;
  return static_cast<int>(std::clamp<int64_t>(parts, 1, std::max(max_parts, 1)));
}

template <int kDim>
std::optional<PrefillChoice> plan_for_dim(const AttentionShape& shape, const PrefillRows& batch,
                                          const AttentionTraits& traits) {
  PrefillChoice choice = {.path = AttentionPath::kWgmma};
  choice.shared_bytes = alignof(PrefillShared<kDim>) + sizeof(PrefillShared<kDim>) +
                        sizeof(int) * (batch.num_seqs + 1);
  if (choice.shared_bytes + kStaticBytes > static_cast<size_t>(traits.block_bytes)) return {};
  const int64_t rows = int64_t{batch.num_tokens} * shape.group();
  // Every sequence may end in a piece of one row.
  const int64_t max_jobs =
      (rows + int64_t{batch.num_seqs} * (kRows - 1)) / kRows * shape.num_kv_heads;
  choice.parts = count_parts<kDim>(max_jobs, batch.max_seq_len, traits.num_multiprocessors);
  const bool is_large =
      rows / batch.num_seqs > kGroupRows && max_jobs >= traits.num_multiprocessors / 4;
  if (choice.parts == 1 && !is_large) return {};
  choice.num_blocks =
      static_cast<int>(std::min<int64_t>(max_jobs * choice.parts, traits.num_multiprocessors));
  return choice;
}

template <int kDim>
void launch_for_dim(const Bf16Attention& call, int64_t num_cache_blocks,
                    const PrefillChoice& choice) {
  const AttentionProblem& p = call.p;
  int box_rows = 16;
  while (box_rows < PrefillShared<kDim>::kKeys && p.kv.block_size % (box_rows * 2) == 0) {
    box_rows *= 2;
  }
  const CUtensorMap map = make_line_map(
      call.cache, num_cache_blocks * 2 * p.kv.num_kv_heads * p.kv.block_size, kDim, box_rows);
  uint32_t* words = call.workspace.prefill_words;
  NANOVLLM_CHECK(words != nullptr);
  auto* sums = reinterpret_cast<float*>(words + kCounters);
  launch(call.stream, wgmma_prefill_kernel<kDim>, choice.num_blocks, kThreads, choice.shared_bytes,
         map,
         PrefillArguments{
             call.out, call.qkv, p, {choice.parts, sums, words + kWorkCounters}, words, box_rows});
}

}  // namespace

size_t prefill_attention_bytes(int num_multiprocessors) {
  return sizeof(uint32_t) *
         (kCounters + size_t{kMaxPartWords} * kPartThreads * num_multiprocessors);
}

std::optional<PrefillChoice> plan_wgmma_prefill(const AttentionShape& shape,
                                                const PrefillRows& rows,
                                                const AttentionTraits& traits) {
  std::optional<PrefillChoice> choice;
  const auto choose = [&]<int kDim>() { choice = plan_for_dim<kDim>(shape, rows, traits); };
  return try_constant<64, 128, 256>(shape.head_dim, choose) ? choice : std::nullopt;
}

void launch_wgmma_prefill_attention(const Bf16Attention& call, int64_t num_cache_blocks,
                                    const PrefillChoice& choice) {
  with_constant<64, 128, 256>(call.p.kv.head_dim, [&]<int kDim>() {
    launch_for_dim<kDim>(call, num_cache_blocks, choice);
  });
}

}  // namespace nanovllm::cuda
