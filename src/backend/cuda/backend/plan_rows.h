// What is planned for a stack of layers as rows for people and for tests.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/cuda/layer/layer_plan.h"
#include "ops/backend.h"

namespace nanovllm::cuda {

using PathOfRows = std::function<std::string(int rows)>;
// One choice for each range of rows that has one path, up to a step's most rows; the last has no
// limit. A path that is left for another comes back among the rows of kMaxTailPathRows at most.
std::vector<PathChoice> choices_by_rows(const std::string& part, int max_rows,
                                        const PathOfRows& path_of);

// Of plan_product() for a weight: choices of no part.
std::vector<PathChoice> product_choices(SkinnyProduct product, DType dtype,
                                        const DeviceTraits& device, bool deterministic);

// The tails, as they were planned, and all else of a step, part by part; of rows whose tail is
// fused, what belongs to it says so. Neighbours of one plan are one entry. `tail_kernel_holder`:
// who has the kernels of whole tails, where another engine does; or "".
std::vector<PathChoice> stack_choices(const StackSpec& spec, const CompileLimits& limits,
                                      const std::vector<std::vector<TailPath>>& tails,
                                      const TailTraits& traits,
                                      const std::string& tail_kernel_holder);

}  // namespace nanovllm::cuda
