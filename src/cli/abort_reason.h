// Completions that the engine itself ended early.
#pragma once

#include <string>
#include <variant>

#include "nanovllm/outputs.h"

namespace nanovllm::cli {

// Why the engine aborted it, or null where it did not: an abort that was asked for has no reason.
inline const std::string* abort_reason(const CompletionOutput& completion) {
  if (completion.finish_reason != FinishReason::kAbort) return nullptr;
  return std::get_if<std::string>(&completion.stop_reason);
}

}  // namespace nanovllm::cli
