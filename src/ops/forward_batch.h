// One ragged step as the kernels see it.
#pragma once

#include <cstdint>

namespace nanovllm {

// Any mix of decodes and prefill chunks; sequences that decode (one new token) come first. All
// pointers are device memory with fixed addresses. T = num_tokens, S = num_seqs, R = num_logits.
// The new tokens of sequence s are rows query_start_loc[s] .. query_start_loc[s+1]-1 of every [T,
// ...] tensor; the last of them has position seq_lens[s]-1.
struct ForwardBatch {
  int num_tokens = 0;
  int num_seqs = 0;
  int num_decodes = 0;                 // sequences 0 .. num_decodes-1 have one new token
  int num_logits = 0;                  // rows whose logits are wanted
  int max_query_len = 0;               // most new tokens of a sequence
  int max_seq_len = 0;                 // longest context, new tokens included
  int block_table_stride = 0;          // entries in a row of block_table
  const int32_t* token_ids = nullptr;  // [T]
  const int32_t* positions = nullptr;  // [T]
  // [T] block * block_size + offset; -1 = nothing is stored: padding, or it is there already. Of a
  // sequence, all tokens behind the first one that is stored are stored too.
  const int32_t* slot_mapping = nullptr;
  const int32_t* query_start_loc = nullptr;  // [S+1]
  const int32_t* seq_lens = nullptr;         // [S] context length with this step's tokens
  const int32_t* block_table = nullptr;      // [S, block_table_stride]
  // [R] rows of [T] whose logits are wanted, in any order; in theirs where all are decodes
  const int32_t* logits_rows = nullptr;
};

}  // namespace nanovllm
