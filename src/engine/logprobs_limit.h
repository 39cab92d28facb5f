// How many log-probabilities a position may have, which -1 makes a matter of the vocabulary too.
#pragma once

namespace nanovllm {

// Throws Error(kInvalidArgument) for more than are given out. `what` they are of: "sample" or
// "prompt".
void check_max_logprobs(int num_logprobs, const char* what);

}  // namespace nanovllm
