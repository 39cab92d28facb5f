// Writes a Hugging Face folder whose weights are rounded, in the format of compressed-tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "io/rounded_matrix.h"

namespace nanovllm {

struct RoundedFolder {
  int64_t num_rounded = 0;     // matrices
  int64_t num_parameters = 0;  // of all that is written, so of a tied head as well
  int64_t bytes = 0;           // of all tensors
  int64_t num_ungrouped = 0;   // matrices of layers that stay: their rows are no whole groups
  int64_t num_stacks = 0;      // of experts, for which compressed-tensors has no format
};

// What WeightLoader rounds on the way to memory becomes the same codes and scales in `out`: the
// matrices of the layers in `format` and the head in int8, written as one of its own where it is
// tied to the embeddings. All else is copied. `out` must be absent or an empty folder; its
// config.json comes last. What ends it, an error or a throw, leaves `out` as it was.
// `on_bytes(bytes read, bytes in all)` is called now and then, from any thread but one at a time,
// and may throw. Throws Error: kInvalidArgument (`model` is no folder of plain weights; `out` is in
// use), kCorruptData (two tensors would have one name), kIo, and what reading the model throws.
RoundedFolder write_rounded_folder(const std::string& model, const std::string& out,
                                   RoundedFormat format, int num_threads,
                                   const std::function<void(int64_t, int64_t)>& on_bytes);

}  // namespace nanovllm
