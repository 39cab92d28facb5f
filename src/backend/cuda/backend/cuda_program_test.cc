#include <gtest/gtest.h>

#include "backend/cuda/backend/cuda_backend.h"
#include "backend/cuda/layer/layer_plan_testing.h"

namespace nanovllm::cuda {
namespace {

// What is planned above for an H200 is what a Hopper GPU runs.
TEST(CudaProgram, RunsOnThisGpuWhatIsPlannedForIt) {
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
  for (const bool deterministic : {false, true}) {
    CudaBackend backend({0, deterministic});
    const auto program =
        backend.compile(spec, {.dtype = DType::kBFloat16, .max_num_tokens = 256, .num_threads = 2});
    std::vector<PathChoice> tails = program->plan();
    std::erase_if(tails, [](const PathChoice& choice) { return choice.part != "tail"; });
    const bool is_hopper = backend.tail_traits().device.has_wgmma;
    EXPECT_EQ(tails, plan(spec, backend.tail_traits()));
    if (deterministic || !is_hopper) continue;
    EXPECT_EQ(tails, plan(spec, h200())) << "an H200's paths are those of every Hopper GPU";
  }
}

}  // namespace
}  // namespace nanovllm::cuda
