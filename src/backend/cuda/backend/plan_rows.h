// What is planned for a stack of layers as rows for people and for tests.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/cuda/layer/layer_plan.h"
#include "ops/backend.h"

namespace nanovllm::cuda {

// One choice for each range of rows that has one path; the last is for all more. A path that is
// left for another does not come back.
std::vector<PathChoice> choices_by_rows(const std::string& part,
                                        const std::function<std::string(int rows)>& path_of);

// Of plan_product() for a weight.
std::vector<PathChoice> product_choices(const std::string& part, SkinnyProduct product, DType dtype,
                                        const DeviceTraits& device, bool deterministic);

// The tails, as they were planned, and what of a step no tail computes: attention, the experts, and
// the products of rows whose tail runs op by op. Neighbours of one plan are one entry.
std::vector<PathChoice> stack_choices(const StackSpec& spec, DType act,
                                      const std::vector<std::vector<TailPath>>& tails,
                                      const TailTraits& traits);

}  // namespace nanovllm::cuda
