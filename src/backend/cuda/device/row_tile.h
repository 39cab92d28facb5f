// Rows that one product multiplies by one of several weights.
#pragma once

namespace nanovllm::cuda {

// Neighbouring ones of a step's sorted pairs of a row and an expert, all of one expert.
struct alignas(16) RowTile {
  int expert;     // of this rank's
  int first_row;  // of the sorted pairs
  int num_rows;
};

}  // namespace nanovllm::cuda
