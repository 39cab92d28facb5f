// Result lines of `nanovllm generate`, read back.
#pragma once

#include "cli/earlier_results.h"

namespace nanovllm::cli {

ResultLines generated_lines();

}  // namespace nanovllm::cli
