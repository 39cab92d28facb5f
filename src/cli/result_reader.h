// Result lines of `nanovllm generate`, read back.
#pragma once

#include <optional>
#include <string>

#include "cli/earlier_results.h"

namespace nanovllm::cli {

// A ResultReader.
std::optional<EarlierResult> read_result(const std::string& line);

}  // namespace nanovllm::cli
