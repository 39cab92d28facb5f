#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "backend/cuda/backend/cuda_backend.h"
#include "backend/cuda/backend/plan_rows.h"
#include "backend/cuda/layer/layer_plan_testing.h"

namespace nanovllm::cuda {
namespace {

// The GPU of the tests of plans that this one is as far as plans go, or null.
const Gpu* gpu_like(const DeviceTraits& device) {
  const auto is_like = [&](const Gpu& gpu) {
    const cudaDeviceProp &own = device.properties, &other = gpu.traits.properties;
    return own.major == other.major && own.minor == other.minor &&
           device.num_multiprocessors() == gpu.traits.num_multiprocessors() &&
           device.block_bytes() == gpu.traits.block_bytes() &&
           device.has_wgmma == gpu.traits.has_wgmma;
  };
  const Gpu* const found = std::ranges::find_if(kGpus, is_like);
  return found != std::end(kGpus) ? found : nullptr;
}

// What tests of plans say of GPUs that they don't have holds on those.
TEST(CudaProgram, PlansOnAGpuWhatIsPlannedForItWithoutOne) {
  if (CudaBackend::device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  const Sizes sizes = {1024, 16, 8, 128, 3072, 3};
  const std::vector<BFloat16> zeros(size_t{6144} * 1024);
  StackSpec spec = spec_of(sizes);
  spec.rotary_tables = {{std::vector<float>(size_t{16} * 128), 128}};
  for (LayerSpec& layer : spec.layers) {
    auto& ffn = std::get<Dense>(layer.ffn);
    for (Matrix* matrix : {&layer.in, &layer.out, &ffn.gate_up, &ffn.down}) {
      matrix->pieces[0].data = zeros.data();
      matrix->pieces[0].dtype = DType::kBFloat16;
    }
  }
  const CompileLimits limits = {.dtype = DType::kBFloat16, .max_num_tokens = 256, .num_threads = 2};
  for (const bool deterministic : {false, true}) {
    CudaBackend backend({0, deterministic});
    const Gpu* const gpu = gpu_like(backend.tail_traits().device);
    if (gpu == nullptr)
      GTEST_SKIP() << backend.description() << " is none that plans are tested for";
    TailTraits traits = traits_of(*gpu);
    traits.deterministic = deterministic;
    std::vector<PathChoice> expected = {
        {.num_layers = 3, .part = "weights", .max_rows = 0, .path = "bfloat16"}};
    const auto rows = stack_choices(spec, limits, tails_of(spec, traits), traits, "");
    expected.insert(expected.end(), rows.begin(), rows.end());
    EXPECT_EQ(backend.compile(spec, limits)->plan(), expected) << gpu->name;
  }
}

}  // namespace
}  // namespace nanovllm::cuda
