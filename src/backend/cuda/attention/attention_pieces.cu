// Paged attention for one to eight query tokens a sequence, in the one order of sums that
// attention_pieces.h has: a row's bits depend on neither batch mates nor the tokens beside it.
// Bound by memory: it reads each key and value once for all tokens of a sequence and all query
// heads of a KV head.
//
// Blocks stay for the whole launch, and each of their warps takes pieces from a queue, see
// attention_pieces_plan.h, so that nobody waits for others. How it brings keys and values:
// attention_pieces_stream.cuh; what it computes: attention_pieces_warp.cuh; how a sequence's pieces
// are put together: attention_pieces_merge.cuh.
#include <algorithm>
#include <optional>

#include "backend/cuda/attention/attention_decode_plan.h"
#include "backend/cuda/attention/attention_pieces_warp.cuh"
#include "backend/cuda/device/launch.cuh"
#include "base/assert.h"

namespace nanovllm::cuda {
namespace {

using namespace key_pieces;

constexpr size_t kPieceWords = size_t{1} << 23;
constexpr size_t kReservedBytes = 1024;  // of a block's shared memory, by the system

// For more a warp has no registers.
constexpr int most_row_tiles(int head_dim) { return head_dim <= 128 ? 2 : 1; }

template <int kDim, int kRowTiles>
__global__ void __launch_bounds__(kMostWarps * 32, 1)
    pieces_kernel(const __grid_constant__ PieceArguments arguments) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Shared = PieceShared<kDim, kRowTiles>;
  extern __shared__ char dynamic[];
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  char* const rings = dynamic + (-shared_address(dynamic) & (Shared::kAlignment - 1));
  const int ring_bytes = arguments.stages * Shared::kSliceBytes;
  auto* const shared = reinterpret_cast<Shared*>(rings + warps * ring_bytes);
  char* const queries = reinterpret_cast<char*>(shared + warps);
  if (threadIdx.x % 32 == 0) {
    shared[warp].init_barriers();
    publish_barriers();
  }
  __syncwarp();
  PieceWarp<kDim, kRowTiles>(arguments, shared[warp], rings + warp * ring_bytes,
                             queries + warp * Shared::query_bytes(arguments.slot_rows))
      .run();
#endif
}

// Calls f.operator()<kDim, kRowTiles>(); false where there is no such kernel.
template <typename F>
[[nodiscard]] bool with_pieces_kernel(int head_dim, int row_tiles, F&& f) {
  bool has_kernel = false;
  const auto find_tiles = [&]<int kDim>() {
    has_kernel = try_constant<1, most_row_tiles(kDim)>(
        row_tiles, [&]<int kRowTiles>() { f.template operator()<kDim, kRowTiles>(); });
  };
  return try_constant<64, 80, 96, 112, 128, 256>(head_dim, find_tiles) && has_kernel;
}

int most_pieces(const AttentionShape& shape, int block_table_stride) {
  return KeyPieces::index_of(std::max(block_table_stride * shape.block_size, 1) - 1) + 1;
}

// As many stages as there is room for; 0: too few.
template <typename Shared>
int count_stages(int warps, int rows, const AttentionTraits& traits) {
  int stages = Shared::kMostStages;
  while (stages > 0 && Shared::bytes(warps, stages, rows) + kReservedBytes >
                           static_cast<size_t>(traits.block_bytes)) {
    --stages;
  }
  return stages < Shared::kLeastStages ? 0 : stages;
}

// Divides a block's shared memory: no more warps than have work, since fewer have longer rings, and
// none that would have too short a one. False where one has.
template <typename Shared>
bool divide_block(int64_t items, int row_tiles, const AttentionTraits& traits,
                  PiecesChoice& choice) {
  constexpr int kWantedStages = 4;
  choice.num_warps = 1;
  while (choice.num_warps * row_tiles < kMostWarps &&
         items > int64_t{choice.num_warps} * traits.num_multiprocessors) {
    choice.num_warps *= 2;
  }
  for (;; choice.num_warps /= 2) {
    choice.stages = count_stages<Shared>(choice.num_warps, choice.slot_rows, traits);
    if (choice.stages >= kWantedStages || choice.num_warps == 1) break;
  }
  choice.shared_bytes = Shared::bytes(choice.num_warps, choice.stages, choice.slot_rows);
  return choice.stages > 0;
}

}  // namespace

size_t piece_attention_bytes() { return sizeof(uint32_t) * kPieceWords; }

std::optional<PiecesChoice> plan_pieces(const AttentionShape& shape, const PieceRows& rows,
                                        const AttentionTraits& traits) {
  PiecesChoice choice = {.num_seqs = rows.num_seqs};
  choice.part_heads =
      std::min(shape.group(), 16 * most_row_tiles(shape.head_dim) / rows.max_tokens);
  choice.parts = div_up(shape.group(), choice.part_heads);
  choice.slot_rows = choice.part_heads * rows.max_tokens;
  choice.row_tiles = div_up(choice.slot_rows, 16);
  const int64_t units = int64_t{shape.num_kv_heads} * choice.parts;
  const int pieces = most_pieces(shape, rows.block_table_stride);
  bool has_room = false;
  const auto choose = [&]<int kDim, int kRowTiles>() {
    has_room = divide_block<PieceShared<kDim, kRowTiles>>(units * rows.num_seqs * pieces, kRowTiles,
                                                          traits, choice);
  };
  if (!with_pieces_kernel(shape.head_dim, choice.row_tiles, choose) || !has_room) return {};
  // With a counter for each unit.
  const int64_t seq_words =
      units * (1 + int64_t{pieces} * choice.slot_rows * piece_row_words(shape.head_dim));
  choice.launch_seqs = static_cast<int>(std::min<int64_t>(
      {PieceQueues::kMaxSeqs, PieceQueues::kMaxPieces / pieces,
       static_cast<int64_t>(kPieceWords - 2 * kCounterWords) / seq_words, rows.num_seqs}));
  if (choice.launch_seqs == 0) return {};
  choice.num_blocks = static_cast<int>(
      std::min<int64_t>(traits.num_multiprocessors, choice.launch_seqs * pieces * units));
  return choice;
}

void launch_piece_attention(const Bf16Attention& call, const PiecesChoice& choice) {
  const AttentionWorkspace& workspace = call.workspace;
  NANOVLLM_CHECK(workspace.piece_words != nullptr);
  for (int first = 0; first < choice.num_seqs; first += choice.launch_seqs) {
    PieceArguments arguments = {call.out,
                                call.qkv,
                                call.cache,
                                call.p,
                                {},
                                false,
                                workspace.piece_words,
                                choice.parts,
                                choice.part_heads,
                                choice.parts * call.p.kv.num_kv_heads,
                                choice.slot_rows,
                                {},
                                choice.stages};
    AttentionProblem& p = arguments.p;
    p.query_start_loc += first;
    p.seq_lens += first;
    p.block_table += int64_t{first} * p.block_table_stride;
    p.num_seqs = std::min(choice.launch_seqs, choice.num_seqs - first);
    const int counters = p.num_seqs * arguments.units;
    arguments.slots = kCounterWords + div_up(counters, kCounterWords) * kCounterWords;
    const auto [queue, is_new] = workspace.queues->find(
        call.stream, {p.query_start_loc, p.seq_lens, p.num_seqs, p.params.window},
        workspace.plans->generation());
    arguments.queue = queue;
    arguments.queue_is_new = is_new;
    const auto launch_kernel = [&]<int kDim, int kRowTiles>() {
      launch(call.stream, pieces_kernel<kDim, kRowTiles>, choice.num_blocks, choice.num_warps * 32,
             choice.shared_bytes, arguments);
    };
    const bool is_planned = with_pieces_kernel(p.kv.head_dim, choice.row_tiles, launch_kernel);
    NANOVLLM_CHECK(is_planned);
  }
}

}  // namespace nanovllm::cuda
