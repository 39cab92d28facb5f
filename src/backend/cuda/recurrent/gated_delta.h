// Launcher of the gated delta rule: asynchronous on `stream`, act as the cache's spec says.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/recurrent/gated_delta_plan.h"
#include "ops/backend.h"

namespace nanovllm::cuda {

// Backend::gated_delta, as plan_gated_delta() says of the batch. Rows of padding become zeros. The
// launch depends on the batch's number of sequences and the plan alone.
void launch_gated_delta(cudaStream_t stream, Tensor out, Tensor in, const GatedDeltaParams& params,
                        const StateCache& cache, const ForwardBatch& batch,
                        const GatedDeltaPlan& plan);

}  // namespace nanovllm::cuda
