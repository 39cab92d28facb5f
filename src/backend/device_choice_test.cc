// Which devices an engine's ranks get, of machines with any number of GPUs.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "backend/registry.h"
#include "nanovllm/error.h"

namespace nanovllm {
namespace {

constexpr std::optional<int> kNoCudaBackend;

BackendOptions ranks(int first_gpu, int num_ranks, const std::string& device = "auto") {
  return {.device = device, .first_gpu = first_gpu, .num_ranks = num_ranks};
}

void expect_refused(const BackendOptions& options, std::optional<int> num_gpus, ErrorCode code,
                    const std::string& message) {
  try {
    is_on_gpus(options, num_gpus);
    ADD_FAILURE() << "not refused: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(error.what(), message);
  }
}

TEST(DeviceChoice, AutoTakesGpusWhereThereAreAny) {
  EXPECT_FALSE(is_on_gpus(ranks(0, 1), kNoCudaBackend));
  EXPECT_FALSE(is_on_gpus(ranks(0, 1), 0));
  EXPECT_TRUE(is_on_gpus(ranks(0, 1), 1));
  EXPECT_TRUE(is_on_gpus(ranks(0, 1, "cuda"), 1));
  EXPECT_FALSE(is_on_gpus(ranks(0, 1, "cpu"), 1));
}

// As many workers and ranks as one likes: they share the CPU.
TEST(DeviceChoice, OnTheCpuTheNumberOfAGpuMeansNothing) {
  EXPECT_FALSE(is_on_gpus(ranks(6, 4), kNoCudaBackend));
  EXPECT_FALSE(is_on_gpus(ranks(6, 4), 0));
  EXPECT_FALSE(is_on_gpus(ranks(6, 4, "cpu"), 1));
}

TEST(DeviceChoice, EachRankNeedsAGpuFromTheFirstOnesNumberOn) {
  EXPECT_TRUE(is_on_gpus(ranks(0, 8), 8));
  EXPECT_TRUE(is_on_gpus(ranks(7, 1), 8));
  EXPECT_TRUE(is_on_gpus(ranks(4, 4), 8));
  expect_refused(ranks(0, 3), 2, ErrorCode::kUnsupported,
                 "tensor_parallel_size is 3, but this machine has 2 GPUs; use at most 2, or device "
                 "cpu");
  expect_refused(ranks(5, 4), 8, ErrorCode::kUnsupported,
                 "tensor_parallel_size is 4, but this machine has 8 GPUs, 3 of them from number 5 "
                 "on; use at most 3, or a lower first_gpu or data_parallel_size, or device cpu");
  expect_refused(ranks(1, 1), 1, ErrorCode::kUnsupported,
                 "there is no CUDA device 1: this machine has 1 GPU, counted from 0; use a lower "
                 "first_gpu or data_parallel_size, or device cpu");
  expect_refused(ranks(9, 2), 8, ErrorCode::kUnsupported,
                 "there is no CUDA device 9: this machine has 8 GPUs, counted from 0; use a lower "
                 "first_gpu or data_parallel_size, or device cpu");
}

TEST(DeviceChoice, WhatThereIsNotIsRefusedInASentence) {
  expect_refused(ranks(0, 1, "cuda"), 0, ErrorCode::kUnsupported,
                 "there is no CUDA device 0: this machine has 0 GPUs, counted from 0; use device "
                 "cpu");
  expect_refused(ranks(0, 1, "cuda"), kNoCudaBackend, ErrorCode::kUnsupported,
                 "device cuda is not available: this build has no CUDA backend; use cpu or auto");
  for (const std::optional<int> num_gpus : {kNoCudaBackend, std::optional(2)}) {
    expect_refused(ranks(0, 1, "tpu"), num_gpus, ErrorCode::kInvalidArgument,
                   "device is 'tpu', but must be auto, cpu or cuda");
  }
}

}  // namespace
}  // namespace nanovllm
