// Log-probabilities for people.
#pragma once

#include <string>

#include "nanovllm/outputs.h"

namespace nanovllm::cli {

// A line a token: the token, its log-probability and rank, and the most likely others with theirs.
// Empty where none were asked for.
std::string prompt_logprob_table(const RequestOutput& output);
std::string logprob_table(const CompletionOutput& completion);

}  // namespace nanovllm::cli
