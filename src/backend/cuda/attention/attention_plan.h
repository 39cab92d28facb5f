// Which kernels compute attention, and how they divide it: pure functions of shapes and of what a
// device has. The launchers do what they say.
#pragma once

#include <cstddef>
#include <optional>

#include "backend/cuda/device/device_traits.h"
#include "ops/backend.h"

namespace nanovllm::cuda {

enum class AttentionPath {
  kGeneral,         // attention.cu
  kStream,          // attention_decode.cu
  kStoreAndStream,  // the same, with qk_norm_rope_store's work
  kMma,             // attention_prefill.cu
  kWgmma,           // attention_prefill_wgmma.cu
  kPieces,          // attention_pieces.cu
};
const char* to_string(AttentionPath path);

struct AttentionTraits {
  int num_multiprocessors = 0;
  int block_bytes = 0;         // of shared memory, that a block may have at most
  bool has_wgmma = false;      // and the memory that its kernel wants
  bool deterministic = false;  // a row's bits depend on its own sequence only
  bool in_pieces = false;      // kPieces for all that it takes, not only where it is faster
};
AttentionTraits attention_traits(const DeviceTraits& device, bool deterministic,
                                 bool in_pieces = false);

// Of a layer.
struct AttentionShape {
  DType dtype = DType::kBFloat16;
  int num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int block_size = 0;  // of the KV cache, tokens
  bool has_gate = false;

  int group() const { return num_heads / num_kv_heads; }
};

// How attention_decode.cu divides the decodes of a batch.
struct DecodeChoice {
  AttentionPath path = AttentionPath::kStream;
  int num_warps = 0;   // of a block
  int num_blocks = 0;  // at most one a multiprocessor
  int stages = 0;      // of a warp's ring of tiles
  int shared_bytes = 0;

  bool operator==(const DecodeChoice&) const = default;
};

// How attention_pieces.cu divides the first sequences of a batch, which have few new tokens each.
struct PiecesChoice {
  AttentionPath path = AttentionPath::kPieces;
  int num_seqs = 0;
  int launch_seqs = 0;            // of a launch, at most
  int part_heads = 0, parts = 0;  // query heads of a KV head that a warp takes at once
  int slot_rows = 0;              // these times the most tokens of a sequence
  int row_tiles = 0;              // of 16 rows, a warp's
  int num_warps = 0;              // of a block
  int num_blocks = 0;
  int stages = 0;  // of a warp's ring
  size_t shared_bytes = 0;

  bool operator==(const PiecesChoice&) const = default;
};

// How chunks of prompts are divided, and what goes along with them.
struct PrefillChoice {
  AttentionPath path = AttentionPath::kGeneral;
  int row_tiles = 0;   // kMma: of 16 rows, a warp's
  int parts = 1;       // kWgmma: into which the keys of a piece of rows are cut, at most
  int num_blocks = 0;  // kWgmma
  size_t shared_bytes = 0;

  bool operator==(const PrefillChoice&) const = default;
};

// Of a batch. No decodes: there are none, or they go along with the rest: the head size, the
// lengths of the block table or the sequences are too many for their kernel, or the device has too
// little shared memory.
struct AttentionPlan {
  std::optional<DecodeChoice> decodes;
  std::optional<PiecesChoice> pieces;  // instead of decodes, or of all
  PrefillChoice rest;

  bool operator==(const AttentionPlan&) const = default;
};
AttentionPlan plan_attention(const AttentionShape& shape, const ForwardBatch& batch,
                             const AttentionTraits& traits);

// Of a prompt that has work for all multiprocessors.
AttentionPath long_prompt_path(const AttentionShape& shape, const AttentionTraits& traits);

// Of a batch whose queries and keys are yet to be normalised, rotated and stored: nothing where
// that is done before, in a kernel of its own.
std::optional<DecodeChoice> plan_store_and_attend(const AttentionShape& shape,
                                                  const RopeParams& rope, const ForwardBatch& batch,
                                                  const AttentionTraits& traits);

// The parts of the plan, each beside its kernel. Nothing where the kernel does not take the batch.
struct DecodeRows {
  int num_seqs;
  int block_table_stride;
};
// Of sequences with at most kMostPieceTokens new tokens each.
struct PieceRows {
  int num_seqs, max_tokens;
  int block_table_stride;
};
struct PrefillRows {
  int num_tokens, num_seqs;
  int max_seq_len;
};
std::optional<DecodeChoice> plan_decodes(const AttentionShape& shape, const DecodeRows& rows,
                                         const AttentionTraits& traits, bool stores);
std::optional<PiecesChoice> plan_pieces(const AttentionShape& shape, const PieceRows& rows,
                                        const AttentionTraits& traits);
std::optional<PrefillChoice> plan_mma_prefill(const AttentionShape& shape, const PrefillRows& rows,
                                              const AttentionTraits& traits);
// Nothing either for few rows a sequence, unless contexts are long enough to be shared among
// blocks.
std::optional<PrefillChoice> plan_wgmma_prefill(const AttentionShape& shape,
                                                const PrefillRows& rows,
                                                const AttentionTraits& traits);

}  // namespace nanovllm::cuda
