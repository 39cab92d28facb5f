// A step's integers on their way to the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nanovllm::cuda {

// `host` is pinned memory; see Backend::stage_batch.
void launch_stage_batch(cudaStream_t stream, int32_t* device, const int32_t* host, int64_t count,
                        int64_t num_token_ids, const int32_t* previous_ids);

}  // namespace nanovllm::cuda
