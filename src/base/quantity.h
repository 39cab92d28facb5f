// Numbers with suffixes, as people type them.
#pragma once

#include <optional>
#include <string_view>

namespace nanovllm {

// "64K", "1.5G": as vLLM has it, the suffixes K, M, G and T are binary, and k, m, g and t decimal.
// Of bytes, B or iB may stand behind them, and there may be none. Nothing for another text; what is
// too large for the caller is left to it.
std::optional<double> parse_quantity(std::string_view text, bool is_bytes);

}  // namespace nanovllm
