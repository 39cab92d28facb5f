// What whoever started this process lets it have.
#pragma once

#include <string>

namespace nanovllm {

// The limits on its memory as a shell's ulimit sets them, for messages about a lack of it:
// " (ulimit -v 300000)", in KiB. Empty = there are none.
std::string memory_limits();

}  // namespace nanovllm
