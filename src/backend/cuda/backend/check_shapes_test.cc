#include "backend/cuda/backend/check_shapes.h"

#include <gtest/gtest.h>

#include <functional>

#include "backend/cuda/backend/cuda_backend.h"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/layer/layer_plan_testing.h"
#include "base/check.h"

namespace nanovllm::cuda {
namespace {

std::string refusal(const StackSpec& spec) {
  try {
    check_shapes(spec, "cuda (a GPU)");
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    return error.what();
  }
}

TEST(CudaShapes, RecurrentLayersWithWideHeadsAreRefused) {
  const auto of_dims = [](int key_dim, int value_dim, int conv_width = 4) {
    StackSpec spec = spec_of({1024, 2, 2, 256, 64, 2});
    std::get<Attention>(spec.layers[1].core).has_gate = true;
    spec.layers[0].core = GatedDelta{.num_key_heads = 1,
                                     .num_value_heads = 1,
                                     .key_dim = key_dim,
                                     .value_dim = value_dim,
                                     .conv_width = conv_width};
    return refusal(spec);
  };
  EXPECT_EQ(of_dims(128, 128), "");
  EXPECT_EQ(of_dims(96, 192), "");
  EXPECT_EQ(of_dims(136, 128),
            "cuda (a GPU): 136 elements a key of recurrent layers; at most 128 are supported here, "
            "use the device cpu");
  EXPECT_EQ(of_dims(128, 200),
            "cuda (a GPU): 200 elements a value of recurrent layers; at most 192 are supported "
            "here, use the device cpu");
  EXPECT_EQ(of_dims(128, 128, 5),
            "cuda (a GPU): 5 rows a convolution of recurrent layers; at most 4 are supported here, "
            "use the device cpu");
}

TEST(CudaShapes, ABackendRefusesThemBeforeItHasWeights) {
  if (CudaBackend::device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  CudaBackend backend;
  const auto expect_refusal = [](const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
    }
  };
  EXPECT_NO_THROW(backend.check(spec_of({1024, 2, 2, 256, 64, 2})));
  expect_refusal([&] { backend.check(spec_of({1024, 2, 2, 264, 64, 2})); });
  Experts experts;
  experts.router = matrix(kMaxExperts + 1, 1024);
  expect_refusal([&] { backend.make_experts(experts, DType::kBFloat16, 1); });
}

TEST(CudaShapes, ThoseThatNoKernelTakesAreRefused) {
  const auto of_head_dim = [](int dim) { return refusal(spec_of({1024, 2, 2, dim, 64, 2})); };
  EXPECT_EQ(of_head_dim(8), "");
  EXPECT_EQ(of_head_dim(256), "");
  EXPECT_EQ(of_head_dim(264),
            "cuda (a GPU): 264 elements a head of attention; at most 256, in multiples of 8, are "
            "supported here, use the device cpu");
  EXPECT_NE(of_head_dim(252), "");
  const auto of_hidden = [](int hidden) { return refusal(spec_of({hidden, 2, 2, 64, 64, 2})); };
  EXPECT_EQ(of_hidden(16384), "");
  EXPECT_EQ(of_hidden(16388),
            "cuda (a GPU): 16388 elements a hidden state; at most 16384 are supported here, use "
            "the device cpu");
  EXPECT_EQ(of_hidden(8190), "");
  EXPECT_EQ(of_hidden(8194),
            "cuda (a GPU): 8194 elements a hidden state; at most 8192 that are no multiple of 4 "
            "are supported here, use the device cpu");
  const auto of_experts = [](int count) {
    StackSpec spec = spec_of({1024, 2, 2, 64, 64, 2});
    Experts experts;
    experts.router = matrix(count, 1024);
    spec.layers.back().ffn = experts;
    return refusal(spec);
  };
  EXPECT_EQ(of_experts(1024), "");
  EXPECT_EQ(of_experts(1025),
            "cuda (a GPU): 1025 experts a layer; at most 1024 are supported here, use the device "
            "cpu");
}

}  // namespace
}  // namespace nanovllm::cuda
