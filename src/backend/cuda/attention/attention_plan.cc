#include "backend/cuda/attention/attention_plan.h"

#include <algorithm>

#include "backend/cuda/attention/attention_pieces.h"

namespace nanovllm::cuda {
namespace {

PrefillChoice plan_prefill(const AttentionShape& shape, const PrefillRows& rows,
                           const AttentionTraits& traits) {
  if (shape.dtype != DType::kBFloat16 || rows.num_tokens == 0) return {};
  // Its bits differ from the other kernel's, and depend on the batch.
  if (traits.has_wgmma && !traits.deterministic) {
    if (const auto choice = plan_wgmma_prefill(shape, rows, traits)) return *choice;
  }
  return plan_mma_prefill(shape, rows, traits).value_or(PrefillChoice{});
}

// The sequences that pieces are for: all where none has many new tokens, else the decodes.
PieceRows piece_rows(const ForwardBatch& batch) {
  if (batch.max_query_len > kMostPieceTokens) {
    return {batch.num_decodes, 1, batch.block_table_stride};
  }
  return {batch.num_seqs, std::max(batch.max_query_len, 1), batch.block_table_stride};
}

// New tokens of a sequence; eight of each of 32 are slower than in the kernel for prompts.
constexpr int kMostFasterTokens = 4;

// The others are scalar, or made for many rows: they lose where few have more keys than a short
// piece, until pieces are so long that too few warps share a sequence's.
bool is_faster_in_pieces(const AttentionShape& shape, const ForwardBatch& batch,
                         const PieceRows& rows, const PiecesChoice& choice,
                         const AttentionTraits& traits) {
  if (rows.num_seqs == batch.num_decodes) {
    return !plan_decodes(shape, {rows.num_seqs, rows.block_table_stride}, traits, false);
  }
  const PrefillRows chunks = {batch.num_tokens, batch.num_seqs, batch.max_seq_len};
  if (plan_prefill(shape, chunks, traits).path == AttentionPath::kGeneral) return true;
  const bool are_mostly_decodes = 2 * batch.num_decodes > batch.num_seqs;
  const bool are_few =
      rows.max_tokens <= kMostFasterTokens && choice.row_tiles == 1 && choice.parts == 1;
  return !are_mostly_decodes && are_few && batch.max_seq_len > KeyPieces::kShort &&
         batch.max_seq_len <= KeyPieces::kMiddleEnd + KeyPieces::kMiddle;
}

std::optional<PiecesChoice> plan_pieces_of(const AttentionShape& shape, const ForwardBatch& batch,
                                           const AttentionTraits& traits) {
  if (shape.dtype != DType::kBFloat16 || !traits.has_wgmma) return {};
  const PieceRows rows = piece_rows(batch);
  if (rows.num_seqs == 0) return {};
  const auto choice = plan_pieces(shape, rows, traits);
  if (!choice || traits.in_pieces) return choice;
  // Chunks are added up in another order.
  if (traits.deterministic) return {};
  return is_faster_in_pieces(shape, batch, rows, *choice, traits) ? choice : std::nullopt;
}

}  // namespace

const char* to_string(AttentionPath path) {
  switch (path) {
    case AttentionPath::kGeneral:
      return "general kernel";
    case AttentionPath::kStream:
      return "stream of keys and values";
    case AttentionPath::kStoreAndStream:
      return "stream of keys and values, with norms, rotation and store";
    case AttentionPath::kMma:
      return "mma";
    case AttentionPath::kWgmma:
      return "wgmma";
    case AttentionPath::kPieces:
      return "pieces of keys and values";
  }
  return "";
}

AttentionTraits attention_traits(const DeviceTraits& device, bool deterministic, bool in_pieces) {
  return {device.num_multiprocessors(), static_cast<int>(device.block_bytes()), device.has_wgmma,
          deterministic, in_pieces};
}

AttentionPlan plan_attention(const AttentionShape& shape, const ForwardBatch& batch,
                             const AttentionTraits& traits) {
  AttentionPlan plan;
  plan.pieces = plan_pieces_of(shape, batch, traits);
  if (plan.pieces && plan.pieces->num_seqs == batch.num_seqs) return plan;
  if (shape.dtype == DType::kBFloat16 && !traits.deterministic && batch.num_decodes > 0 &&
      !plan.pieces) {
    plan.decodes =
        plan_decodes(shape, {batch.num_decodes, batch.block_table_stride}, traits, false);
  }
  // Token and sequence.
  const int first = plan.decodes || plan.pieces ? batch.num_decodes : 0;
  plan.rest = plan_prefill(
      shape, {batch.num_tokens - first, batch.num_seqs - first, batch.max_seq_len}, traits);
  return plan;
}

AttentionPath long_prompt_path(const AttentionShape& shape, const AttentionTraits& traits) {
  constexpr int kTokens = 1 << 15;
  return plan_prefill(shape, {kTokens, 1, kTokens}, traits).path;
}

std::optional<DecodeChoice> plan_store_and_attend(const AttentionShape& shape,
                                                  const RopeParams& rope, const ForwardBatch& batch,
                                                  const AttentionTraits& traits) {
  const bool are_decodes = batch.num_tokens > 0 && batch.num_decodes == batch.num_tokens;
  if (traits.deterministic || traits.in_pieces || !are_decodes || shape.dtype != DType::kBFloat16)
    return {};
  if (shape.has_gate) return {};
  if (rope.rotary_dim != shape.head_dim || shape.group() > 8) return {};
  if ((rope.q_norm == nullptr) != (rope.k_norm == nullptr)) return {};
  return plan_decodes(shape, {batch.num_seqs, batch.block_table_stride}, traits, true);
}

}  // namespace nanovllm::cuda
