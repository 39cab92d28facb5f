// What a layer does behind its attention in one op, against the steps that it stands for.
#include "backend/cuda/peers/peer_queue.h"
#include "backend/layer_tail_test_support.h"

namespace nanovllm::test {
namespace {

using LayerTails = OpsTest;

// Of CUDA, without a fixed order, in bfloat16: other cases take the steps one by one.
auto cuda_backend() {
  std::vector<BackendCase> cases = backends();
  std::erase_if(cases, [](const BackendCase& backend) { return backend.name != "cuda"; });
  return ::testing::Combine(::testing::ValuesIn(cases), ::testing::Values(DType::kBFloat16));
}
INSTANTIATE_TEST_SUITE_P(Backends, LayerTails, cuda_backend(), name_of);

bool is_hopper() { return cuda::DeviceContext::of(0).traits().has_wgmma; }

// GPUs with less shared memory than Hopper may leave layers of more than 1,024 features to the
// steps.
bool must_fuse(const TailShape& shape) { return shape.hidden_size <= 1024 || has_tail_kernels(); }

TEST_P(LayerTails, IsWhatItsStepsAre) {
  const auto backend = make();
  Random random(10);
  const struct {
    std::vector<int> row_counts;
    TailShape shape;
  } cases[] = {{{1, 2, 3, 4, 5, 6, 7, 8}, kSmallQwen},
               {{1, 8, 5}, {1024, 2048, 3072, 0}},
               {{1, 3, 8}, {896, 1152, 2944, 4072, true, Activation::kGelu}},
               {{4, 9, 1}, {64, 64, 160, 128}},
               {{2, 7}, {256, 512, 128, 0, true, Activation::kGeluTanh}},
               {{2}, {200, 96, 344, 66, true, Activation::kGeluTanh}},
               {{3}, {256, 520, 72, 0}},
               {{8}, {2048, 1024, 1032, 600}},
               {{1, 2, 3, 4, 5, 6, 7, 8}, kLargeLayer},
               // Parts of slots, halves of tiles and blocks without features.
               {{1, 4, 7}, {1152, 640, 12288, 4968, true, Activation::kGelu}},
               {{2, 6}, {1280, 1152, 28672, 0, true, Activation::kGeluTanh}}};
  for (const auto& [row_counts, shape] : cases) {
    TailFixture layer(*backend, act(), shape, random);
    for (const int rows : row_counts) {
      layer.begin(rows, random);
      const bool is_done = layer.run();
      // 9 of so small a layer are no rows for Hopper's kernels.
      EXPECT_TRUE(is_done == (rows <= 8) || !must_fuse(shape)) << rows << " rows";
      if (is_done) layer.expect_what_steps_give();
    }
  }
}

TEST_P(LayerTails, OfManyRowsIsWhatItsStepsAre) {
  if (!is_hopper()) GTEST_SKIP() << "this GPU has no kernels for tails of 9 to 128 rows";
  const auto backend = make();
  Random random(13);
  const struct {
    std::vector<int> row_counts;
    TailShape shape;
  } cases[] = {{{9, 16, 17, 31, 32, 33, 48, 64, 65, 96, 97, 128, 129}, kSmallQwen},
               // Eight blocks share K.
               {{70, 96, 128}, {512, 2048, 1536, 1536}},
               {{16, 31, 50, 90, 111}, {1024, 2048, 3072, 0, true, Activation::kGelu}},
               // Tiles with features missing.
               {{11, 32, 48, 61, 70, 127}, {960, 2048, 2560, 6000, true, Activation::kGeluTanh}}};
  for (const auto& [row_counts, shape] : cases) {
    TailFixture layer(*backend, act(), shape, random);
    for (const int rows : row_counts) {
      layer.begin(rows, random);
      const bool is_done = layer.run();
      EXPECT_EQ(is_done, rows <= 128);
      if (is_done) layer.expect_what_steps_give();
    }
  }
}

TEST_P(LayerTails, IsOfEveryBackendOfADevice) {
  const auto first = make(), second = make();
  Random random(12);
  for (Backend* backend : {first.get(), second.get()}) {
    TailFixture layer(*backend, act(), kSmallQwen, random);
    layer.begin(2, random);
    ASSERT_TRUE(layer.run());
    layer.expect_what_steps_give();
  }
}

TEST_P(LayerTails, RepeatsItselfInGraphs) {
  const auto backend = make();
  Random random(11);
  TailFixture small(*backend, act(), kSmallQwen, random);
  TailFixture large(*backend, act(), kLargeLayer, random);
  struct Run {
    TailFixture& layer;
    int rows;
  };
  const Run runs[] = {{small, 1},  {large, 1},  {large, 8},  {small, 8},  {small, 3},
                      {large, 3},  {small, 9},  {small, 32}, {small, 17}, {small, 48},
                      {small, 64}, {small, 80}, {small, 128}};
  for (const auto& [layer, rows] : runs) {
    layer.begin(rows, random);
    const bool is_done = layer.run();
    if (&layer == &small || must_fuse(kLargeLayer)) {
      ASSERT_EQ(is_done, rows <= 8 || is_hopper());
    }
    if (!is_done) continue;
    layer.run();
    layer.run();
    const HostTensor residual = download(*backend, layer.residual.view);
    const HostTensor out = download(*backend, layer.out);
    const auto graph = backend->capture([&] {
      for (int i = 0; i < 3; ++i) layer.run();
    });
    for (int i = 0; i < 100; ++i) {
      layer.restart();
      backend->launch(*graph);
      expect_same_bits(download(*backend, layer.residual.view).bytes, residual.bytes);
      expect_same_bits(download(*backend, layer.out).bytes, out.bytes);
    }
  }
}

bool takes_large(const CudaBackend& backend, const TailFixture& layer, int rows) {
  cuda::TailProducts products = backend.tail_products(layer.layer, layer.next_norm, layer.next());
  for (cuda::SkinnyProduct& product : products) product.rows = rows;
  return cuda::LayerTailKernel::takes_large(products,
                                            backend.tail_traits().device.num_multiprocessors());
}

TEST_P(LayerTails, LargeLayersHaveAKernelOfTheirOwn) {
  if (!has_tail_kernels()) GTEST_SKIP() << "this GPU has too little shared memory";
  const auto backend = make();
  const auto& cuda = dynamic_cast<const CudaBackend&>(*backend);
  ASSERT_TRUE(cuda.tail_traits().has_tail_kernel);
  Random random(14);
  const struct {
    std::vector<int> row_counts;
    TailShape shape;
    bool is_taken = true;
  } cases[] = {{{1, 2, 3, 4, 5, 6, 7, 8}, kLargeLayer},
               {{9}, kLargeLayer, false},
               {{1, 8}, {8192, 256, 1152, 256}},
               {{1}, {8320, 256, 256, 256}, false},
               // Several passes over K.
               {{2, 8}, {256, 128, 32768, 20000}},
               {{1}, {256, 128, 32896, 256}, false},
               // A depth that warps can't share, and features that are no whole slots.
               {{1}, {256, 64, 256, 256}, false},
               {{1}, {256, 128, 256, 260}, false},
               {{1}, {256, 128, 256, 4}, false},
               // Parts of slots, halves of tiles and blocks without features.
               {{1, 4, 7}, {1152, 640, 12288, 4968, true, Activation::kGelu}},
               {{2, 6}, {1280, 1152, 28672, 136, true, Activation::kGeluTanh}}};
  for (const auto& [row_counts, shape, is_taken] : cases) {
    TailFixture layer(*backend, act(), shape, random);
    for (const int rows : row_counts) {
      layer.begin(rows, random);
      const bool is_done =
          takes_large(cuda, layer, rows) && layer.run(cuda::TailPath::kLargeKernel);
      EXPECT_EQ(is_done, is_taken) << rows << " rows of " << shape.hidden_size;
      if (is_done) layer.expect_what_steps_give();
    }
  }
}

}  // namespace
}  // namespace nanovllm::test
