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

// Of all sequences where none has many new tokens, else of the decodes.
std::optional<PiecesChoice> plan_pieces_of(const AttentionShape& shape, const ForwardBatch& batch,
                                           const AttentionTraits& traits) {
  if (shape.dtype != DType::kBFloat16 || !traits.has_wgmma) return {};
  const bool are_all = batch.max_query_len <= kMostPieceTokens;
  const PieceRows rows = {are_all ? batch.num_seqs : batch.num_decodes,
                          are_all ? std::max(batch.max_query_len, 1) : 1, batch.block_table_stride};
  if (rows.num_seqs == 0) return {};
  return plan_pieces(shape, rows, traits);
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
  if (traits.in_pieces) plan.pieces = plan_pieces_of(shape, batch, traits);
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
