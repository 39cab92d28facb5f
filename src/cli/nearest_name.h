// The name that somebody meant who typed another one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nanovllm::cli {

// Of an option with its dashes, or of a command: the name that is near, which has at most a third
// of the letters otherwise, or of which the end is missing. Empty = none is.
std::string nearest_name(std::string_view typed, const std::vector<std::string>& names);

}  // namespace nanovllm::cli
