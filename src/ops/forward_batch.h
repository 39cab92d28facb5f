// One step as the kernels see it: sequences with different numbers of tokens in one batch.
#pragma once

#include <cstdint>

namespace nanovllm {

// Rows of a chunk of recurrent layers, which are counted from position 0 of a sequence. What they
// keep of a sequence is a state at the start of its present chunk, in a slot, and a log of what the
// chunk's rows add to it. A step whose row opens a chunk first folds the log of the chunk before
// into the state, which goes to another slot: a slot never changes, a shorter log is an earlier
// time.
inline constexpr int kStateChunk = 64;
// Rows of a verification in models with recurrent layers, at most: one more than its drafts.
inline constexpr int kMaxDraftRows = 16;

// Any mix of decodes and prefill chunks; sequences that decode (one new token) come first. Sizes in
// the comments: T = num_tokens, S = num_seqs, R = num_logits, G = num_groups. All pointers are
// device memory; in steps that run as graphs their addresses depend on the sizes alone.
//
// The new tokens of sequence s are rows query_start_loc[s] .. query_start_loc[s+1]-1 of every
// [T, ...] tensor; the last of them has position seq_lens[s]-1.
struct ForwardBatch {
  int num_tokens = 0;
  int num_seqs = 0;
  // Sequences 0 .. num_decodes-1 have one new token.
  int num_decodes = 0;
  // Rows whose logits are wanted.
  int num_logits = 0;
  // Most new tokens of a sequence.
  int max_query_len = 0;
  // The largest of seq_lens.
  int max_seq_len = 0;
  // Groups of layers, each of which has its KV in blocks of its own.
  int num_groups = 1;
  // Entries in a row of block_table.
  int block_table_stride = 0;
  // [T]
  const int32_t* token_ids = nullptr;
  const int32_t* positions = nullptr;
  // [G, T] block * block_size + offset, where to store the token's KV; -1 = do not store it: it is
  // there already, or the token is padding. In a sequence, -1 can only be at the beginning.
  const int32_t* slot_mapping = nullptr;
  // [S+1]
  const int32_t* query_start_loc = nullptr;
  // [S] tokens of the sequence up to its last new one.
  const int32_t* seq_lens = nullptr;
  // [G, S, block_table_stride]; what a group's window hides from all new tokens is not to be read.
  const int32_t* block_table = nullptr;
  // [S] each, for recurrent layers. state_len: tokens that the state in state_slot has taken in, a
  // multiple of kStateChunk; where it is 0, the state is 0 and the slot is not read. The sequence's
  // first new row is at most kStateChunk behind. next_slot: where a step that opens a chunk leaves
  // the state of the last one; -1 = the sequence is padding. log_slot: of the sequence's log.
  const int32_t* state_slot = nullptr;
  const int32_t* state_len = nullptr;
  const int32_t* next_slot = nullptr;
  const int32_t* log_slot = nullptr;
  // [R] which of the T rows have their logits wanted, in any order; if all sequences are decodes,
  // in the order of the sequences.
  const int32_t* logits_rows = nullptr;

  // The same step for the layers of one group: ops take these, with G = 1.
  ForwardBatch of_group(int group) const {
    ForwardBatch batch = *this;
    batch.num_groups = 1;
    batch.slot_mapping += int64_t{group} * num_tokens;
    batch.block_table += int64_t{group} * num_seqs * block_table_stride;
    return batch;
  }
};

}  // namespace nanovllm
