// Launcher of the gated delta rule: asynchronous on `stream`, act as the cache's spec says.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/recurrent/gated_delta_plan.h"
#include "ops/backend.h"

namespace nanovllm::cuda {

// Backend::gated_delta, as plan_gated_delta() says of the batch. Rows of padding become zeros.
// `rows`: memory for DeltaRowLayout::bytes of each of the batch's rows. Launches depend on the
// batch's numbers, not on its arrays, and on the plan alone.
void launch_gated_delta(cudaStream_t stream, Tensor out, Tensor in, const GatedDeltaParams& params,
                        const StateCache& cache, const ForwardBatch& batch, void* rows,
                        const GatedDeltaPlan& plan);

}  // namespace nanovllm::cuda
