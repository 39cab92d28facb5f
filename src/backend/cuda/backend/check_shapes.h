// Which models the kernels take at all.
#pragma once

#include <string>

#include "ops/backend.h"

namespace nanovllm::cuda {

// Throws Error(kUnsupported) for shapes that no kernel takes. `device` is for the sentence.
void check_shapes(const StackSpec& spec, const std::string& device);

}  // namespace nanovllm::cuda
