// One step as the kernels see it: sequences with different numbers of tokens in one batch.
#pragma once

#include <cstdint>

namespace nanovllm {

// Any mix of decodes and prefill chunks; sequences that decode (one new token) come first. Sizes in
// the comments: T = num_tokens, S = num_seqs, R = num_logits. All pointers are device memory; in
// steps that run as graphs their addresses depend on the sizes alone.
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
  // Entries in a row of block_table.
  int block_table_stride = 0;
  // [T]
  const int32_t* token_ids = nullptr;
  const int32_t* positions = nullptr;
  // [T] block * block_size + offset, where to store the token's KV; -1 = do not store it: it is
  // there already, or the token is padding. In a sequence, -1 can only be at the beginning.
  const int32_t* slot_mapping = nullptr;
  // [S+1]
  const int32_t* query_start_loc = nullptr;
  // [S] tokens of the sequence up to its last new one.
  const int32_t* seq_lens = nullptr;
  // [S, block_table_stride]
  const int32_t* block_table = nullptr;
  // [R] which of the T rows have their logits wanted, in any order; if all sequences are decodes,
  // in the order of the sequences.
  const int32_t* logits_rows = nullptr;
};

}  // namespace nanovllm
