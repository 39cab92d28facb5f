// Every op but attention, layer tails and sampling against its scalar reference, on every backend.
#include "backend/ops_test_support.h"

namespace nanovllm::test {
namespace {

constexpr int kThreadCounts[] = {1, 2, 3};

using Ops = OpsTest;
INSTANTIATE_TEST_SUITE_P(Backends, Ops, every_backend_and_dtype(), name_of);

TEST_P(Ops, EmbeddingCopiesRowsOfTheShardAndZerosElsewhere) {
  const auto backend = make();
  Random random(1);
  for (const int width : {8, 40, 96, 1001}) {
    const HostTensor table(random.floats(37 * width, -3, 3), act(), {37, width});
    std::vector<int32_t> ids = {5, 41, 4, 42, 0, -1, 17, 17};
    for (int i = 0; i < 60; ++i) ids.push_back(random.between(0, 50));
    const DeviceTensor device = upload(*backend, table.view);
    const auto device_ids = upload(*backend, ids);
    const auto rows = static_cast<int64_t>(ids.size());
    const DeviceTensor out = device_tensor(*backend, DType::kFloat32, {rows, width});
    backend->embedding(out.view, static_cast<int32_t*>(device_ids->data()),
                       EmbeddingTable(device.view), 5);
    expect_close(download(*backend, out.view), reference::embedding(ids, table.view, 5), 0, 0);

    EmbeddingTable scaled(device.view);
    scaled.scale = 5.5f;
    backend->embedding(out.view, static_cast<int32_t*>(device_ids->data()), scaled, 5);
    std::vector<float> expected = reference::embedding(ids, table.view, 5);
    for (float& x : expected) x *= scaled.scale;
    const HostTensor rounded(expected, act(), {rows, width});
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = rounded.at(static_cast<int64_t>(i));
    expect_close(download(*backend, out.view), expected, 0, 0);
  }
}

TEST_P(Ops, BackendSaysWhatItsDeviceIs) {
  EXPECT_EQ(make()->device_type(), backend_case().name.starts_with("cuda") ? "cuda" : "cpu");
}

TEST_P(Ops, SoftCapBoundsLogits) {
  const auto backend = make();
  Random random(16);
  for (const int width : {1, 100, 4097}) {
    const HostTensor x(random.floats(3 * width, -90, 90), DType::kFloat32, {3, width});
    const DeviceTensor device = upload(*backend, x.view);
    backend->soft_cap(device.view, 30);
    std::vector<float> expected;
    for (int64_t i = 0; i < int64_t{3} * width; ++i) {
      expected.push_back(static_cast<float>(30 * std::tanh(x.at(i) / 30.0)));
    }
    expect_close(download(*backend, device.view), expected, 1e-6, 1e-6);
  }
}

TEST_P(Ops, RmsNormMatchesReference) {
  const auto backend = make();
  Random random(2);
  for (const int width : {1, 7, 16, 63, 128, 1000, 1024, 2049}) {
    for (const DType dtype : {DType::kFloat32, act()}) {
      const int rows = random.between(1, 40);
      const float scale = width % 2 == 0 ? 1e-3f : 50.0f;
      const HostTensor x(random.floats(rows * width, -scale, scale), dtype, {rows, width});
      const std::vector<float> weight = random.floats(width, -2, 2);
      const DeviceTensor device = upload(*backend, x.view);
      const auto device_weight = upload(*backend, weight);
      const DeviceTensor out = device_tensor(*backend, act(), {rows, width});
      backend->rms_norm(out.view, device.view, static_cast<float*>(device_weight->data()), 1e-6f);
      expect_close(download(*backend, out.view), reference::rms_norm(x.view, weight, 1e-6f),
                   rounding(act()) + 1e-6, 0);
    }
  }
}

TEST_P(Ops, AddRmsNormUpdatesTheResidualAndNormalisesIt) {
  const auto backend = make();
  Random random(3);
  for (const int width : {3, 64, 100, 1024}) {
    const int rows = random.between(1, 30);
    const HostTensor residual(random.floats(rows * width, -4, 4), DType::kFloat32, {rows, width});
    const HostTensor x(random.floats(rows * width, -4, 4), act(), {rows, width});
    const std::vector<float> weight = random.floats(width, -2, 2);
    const DeviceTensor device_residual = upload(*backend, residual.view);
    const DeviceTensor device_x = upload(*backend, x.view);
    const auto device_weight = upload(*backend, weight);
    const DeviceTensor out = device_tensor(*backend, act(), {rows, width});
    backend->add_rms_norm(out.view, device_residual.view, device_x.view, 1,
                          static_cast<float*>(device_weight->data()), 1e-5f);
    const HostTensor sum(reference::add(residual.view, x.view), DType::kFloat32, {rows, width});
    const HostTensor actual_sum = download(*backend, device_residual.view);
    expect_same_bits(actual_sum.bytes, sum.bytes);
    expect_close(download(*backend, out.view), reference::rms_norm(sum.view, weight, 1e-5f),
                 rounding(act()) + 1e-6, 0);
  }
}

TEST_P(Ops, AddRmsNormMayScaleWhatItAddsAndNormaliseNothing) {
  const auto backend = make();
  Random random(5);
  for (const int width : {3, 64, 1024}) {
    const int rows = 7;
    const HostTensor residual(random.floats(rows * width, -4, 4), DType::kFloat32, {rows, width});
    const HostTensor x(random.floats(rows * width, -4, 4), act(), {rows, width});
    const DeviceTensor device_residual = upload(*backend, residual.view);
    const DeviceTensor device_x = upload(*backend, x.view);
    const DeviceTensor out = device_tensor(*backend, act(), {rows, width});
    backend->add_rms_norm(out.view, device_residual.view, device_x.view, 0.22f, nullptr, 1e-5f);
    const std::vector<float> sum = reference::add(residual.view, x.view, 0.22f);
    expect_close(download(*backend, device_residual.view), sum, 1e-6, 1e-6);
    expect_close(download(*backend, out.view), sum, rounding(act()) + 1e-6, 1e-6);
  }
}

TEST_P(Ops, NormAllHeadsNormalisesQAndKEachAsAWhole) {
  Random random(6);
  for (const auto& [q_width, k_width] : {std::pair(32, 8), {96, 96}, {4096, 1024}}) {
    const int rows = random.between(1, 30);
    const int width = q_width + 2 * k_width;
    const HostTensor qkv(random.floats(rows * width, -4, 4), act(), {rows, width});
    const std::vector<float> q = random.floats(q_width, -2, 2), k = random.floats(k_width, -2, 2);
    const std::vector<float> wanted =
        reference::norm_all_heads(qkv.view, {q.data(), k.data(), q_width, k_width, 1e-5f});
    for (const int threads : kThreadCounts) {
      const auto backend = make(threads);
      const DeviceTensor device = upload(*backend, qkv.view);
      const DeviceTensor means = device_tensor(*backend, DType::kFloat32, {rows, 2});
      const auto q_weight = upload(*backend, q), k_weight = upload(*backend, k);
      backend->norm_all_heads(device.view, means.view,
                              {static_cast<float*>(q_weight->data()),
                               static_cast<float*>(k_weight->data()), q_width, k_width, 1e-5f});
      expect_close(download(*backend, device.view), wanted, rounding(act()) + 2e-6, 0);
    }
  }
}

TEST_P(Ops, RmsNormOfARowIsTheSameAloneAndWithAnyNumberOfThreads) {
  Random random(4);
  const int rows = 33, width = 777;
  const HostTensor x(random.floats(rows * width, -1, 1), DType::kFloat32, {rows, width});
  const std::vector<float> weight = random.floats(width, -2, 2);
  HostTensor first;
  for (const int threads : kThreadCounts) {
    const auto backend = make(threads);
    const DeviceTensor device = upload(*backend, x.view);
    const auto device_weight = upload(*backend, weight);
    const DeviceTensor out = device_tensor(*backend, act(), {rows, width});
    const auto* w = static_cast<float*>(device_weight->data());
    backend->rms_norm(out.view, device.view, w, 1e-6f);
    HostTensor all = download(*backend, out.view);
    for (const int r : {0, 13, 32}) {
      backend->rms_norm(out.view.first_rows(1), device.view.slice_rows(r, r + 1), w, 1e-6f);
      expect_same_bits(download(*backend, out.view.first_rows(1)).bytes, all.row(r));
    }
    if (first.bytes.empty()) {
      first = std::move(all);
    } else {
      expect_same_bits(all.bytes, first.bytes);
    }
  }
}

TEST_P(Ops, ActAndMulMatchesReference) {
  const auto backend = make();
  Random random(5);
  for (const Activation activation :
       {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh}) {
    for (const int width : {1, 8, 33, 768, 3072}) {
      const int rows = random.between(1, 9);
      std::vector<float> values = random.floats(rows * 2 * width, -6, 6);
      // Gates far out, where the activation is 0, tiny or the identity.
      const float far[] = {-1e30f, -300, -88, -40, -12, 0, 12, 40, 88, 300, 1e30f};
      for (size_t i = 0; i < std::size(far) && static_cast<int>(i) < width; ++i) values[i] = far[i];
      const HostTensor x(values, act(), {rows, 2 * width});
      const DeviceTensor device = upload(*backend, x.view);
      const DeviceTensor out = device_tensor(*backend, act(), {rows, width});
      backend->act_and_mul(out.view, device.view, activation);
      expect_close(download(*backend, out.view), reference::act_and_mul(x.view, activation),
                   rounding(act()) + 5e-6, 1e-30);
    }
  }
}

TEST_P(Ops, GatherRowsCopiesBits) {
  const auto backend = make();
  Random random(6);
  const HostTensor x(random.floats(50 * 321, -1, 1), act(), {50, 321});
  std::vector<int32_t> rows;
  for (int i = 0; i < 70; ++i) rows.push_back(random.below(50));
  const DeviceTensor device = upload(*backend, x.view);
  const auto device_rows = upload(*backend, rows);
  const DeviceTensor out = device_tensor(*backend, act(), {70, 321});
  backend->gather_rows(out.view, device.view, static_cast<int32_t*>(device_rows->data()));
  const HostTensor actual = download(*backend, out.view);
  for (int r = 0; r < 70; ++r) expect_same_bits(actual.row(r), x.row(rows[r]));
}

TEST_P(Ops, LinearMatchesReference) {
  const auto backend = make();
  Random random(7);
  for (const auto& [depth, first_rows, second_rows] :
       {std::tuple{8, 3, 1}, {64, 48, 16}, {200, 33, 64}, {1024, 17, 5}}) {
    const int rows = random.between(1, 20);
    const int width = first_rows + second_rows;
    const HostTensor weight(random.floats(width * depth, -1, 1), act(), {width, depth});
    const HostTensor x(random.floats(rows * depth, -1, 1), act(), {rows, depth});
    const std::vector<float> bias = random.floats(width, -1, 1);
    const size_t offset = static_cast<size_t>(first_rows) * depth * size_of(act());
    const HostMatrix pieces[] = {{weight.bytes.data(), act(), first_rows, depth, depth},
                                 {weight.bytes.data() + offset, act(), second_rows, depth, depth}};
    const auto packed = backend->make_linear(pieces, bias.data(), act());
    const DeviceTensor device = upload(*backend, x.view);
    const DeviceTensor out = device_tensor(*backend, DType::kFloat32, {rows, width});
    backend->linear(out.view, device.view, *packed);
    expect_close(download(*backend, out.view), reference::linear(x.view, weight.view, bias), 2e-6,
                 1e-5);
  }
}

// Sizes on both sides of the boundaries where a backend may change its kernel.
constexpr struct {
  int rows, depth, width;
} kProducts[] = {{1, 8, 6},     {1, 1024, 384}, {2, 256, 64},   {5, 3072, 40}, {7, 200, 34},
                 {8, 2048, 96}, {9, 1024, 64},  {17, 512, 130}, {33, 64, 48},  {70, 1032, 20}};

TEST_P(Ops, LinearMatchesReferenceForAnyNumberOfRows) {
  const auto backend = make();
  Random random(8);
  for (const auto& [rows, depth, width] : kProducts) {
    const HostTensor weight(random.floats(width * depth, -0.1f, 0.1f), act(), {width, depth});
    const HostTensor x(random.floats(rows * depth, -1, 1), act(), {rows, depth});
    const std::vector<float> bias(width, 3);
    const HostMatrix piece{weight.bytes.data(), act(), width, depth, depth};
    const auto packed = backend->make_linear({&piece, 1}, bias.data(), act());
    const DeviceTensor device = upload(*backend, x.view);
    const DeviceTensor out = device_tensor(*backend, act(), {rows, width});
    backend->linear(out.view, device.view, *packed);
    // A device may round the product before it adds the bias: cuBLASLt does for 70 rows.
    expect_close(download(*backend, out.view), reference::linear(x.view, weight.view, bias),
                 rounding(act()) + 2e-6, 8 * rounding(act()) + 1e-5);
  }
}

// Of these shapes no device does. The bias is the negated product of the first row, rounded: of one
// that is rounded before the bias is added nothing is left.
TEST_P(Ops, LinearRoundsAfterTheBias) {
  const auto backend = make();
  Random random(9);
  constexpr int kDepth = 256, kFeatures = 72;
  const HostTensor weight(random.floats(kFeatures * kDepth, -1, 1), act(), {kFeatures, kDepth});
  const HostMatrix piece{weight.bytes.data(), act(), kFeatures, kDepth, kDepth};
  for (const int rows : {1, 7, 9, 40, 130, 600}) {
    const HostTensor x(random.floats(rows * kDepth, -1, 1), act(), {rows, kDepth});
    const Tensor first = x.view.first_rows(1);
    std::vector<float> bias = reference::linear(first, weight.view, std::vector<float>(kFeatures));
    for (float& value : bias) value = -to_float(to_bfloat16(value));
    const auto packed = backend->make_linear({&piece, 1}, bias.data(), act());
    const DeviceTensor device = upload(*backend, x.view);
    const DeviceTensor out = device_tensor(*backend, act(), {rows, kFeatures});
    backend->linear(out.view, device.view, *packed);
    HostTensor row = download(*backend, out.view);
    row.view = row.view.first_rows(1);
    expect_close(row, reference::linear(first, weight.view, bias), rounding(act()), 5e-5);
  }
}

// Where a device's fast memory does not hold them whole.
TEST_P(Ops, LinearOfLongRowsMatchesReference) {
  const auto backend = make();
  Random random(15);
  for (const auto& [rows, depth, width] :
       {std::tuple{1, 12288, 40}, {9, 12296, full_or_reduced(1034, 66)}, {40, 25600, 24}}) {
    const HostTensor weight(random.floats(int64_t{width} * depth, -0.1f, 0.1f), act(),
                            {width, depth});
    const HostTensor x(random.floats(int64_t{rows} * depth, -1, 1), act(), {rows, depth});
    const HostMatrix piece{weight.bytes.data(), act(), width, depth, depth};
    const auto packed = backend->make_linear({&piece, 1}, nullptr, act());
    const DeviceTensor device = upload(*backend, x.view);
    const DeviceTensor out = device_tensor(*backend, DType::kFloat32, {rows, width});
    backend->linear(out.view, device.view, *packed);
    // Sums of so many products have larger errors than their value says.
    expect_close(download(*backend, out.view), reference::linear(x.view, weight.view, {}), 1e-5,
                 1e-4);
  }
}

TEST_P(Ops, LinearOfARowIsTheSameInAnyCompany) {
  if (!backend_case().is_deterministic) GTEST_SKIP() << "promised with `deterministic` only";
  const auto backend = make();
  Random random(9);
  for (const int depth :
       full_or_reduced<std::vector<int>>({64, 1032, 3072, 12296, 25600}, {64, 1032, 12296})) {
    constexpr int kRows = 75, kFeatures = 96;
    const HostTensor weight(random.floats(kFeatures * depth, -1, 1), act(), {kFeatures, depth});
    const HostTensor x(random.floats(kRows * depth, -1, 1), act(), {kRows, depth});
    const HostMatrix piece{weight.bytes.data(), act(), kFeatures, depth, depth};
    const auto packed = backend->make_linear({&piece, 1}, nullptr, act());
    const DeviceTensor device = upload(*backend, x.view);
    const DeviceTensor out = device_tensor(*backend, DType::kFloat32, {kRows, kFeatures});
    backend->linear(out.view, device.view, *packed);
    const HostTensor all = download(*backend, out.view);
    for (const auto& [begin, end] : {std::pair{0, 1}, {3, 5}, {13, 31}, {40, 75}}) {
      backend->linear(out.view.slice_rows(begin, end), device.view.slice_rows(begin, end), *packed);
      const HostTensor some = download(*backend, out.view.slice_rows(begin, end));
      for (int row = begin; row < end; ++row) expect_same_bits(some.row(row - begin), all.row(row));
    }
  }
}

TEST_P(Ops, LinearOfATableIsThatOfAWeightOfItsOwn) {
  const auto backend = make();
  Random random(13);
  for (const auto& [rows, depth, width] : kProducts) {
    const HostTensor matrix(random.floats(width * depth, -1, 1), act(), {width, depth});
    const HostTensor x(random.floats(rows * depth, -1, 1), act(), {rows, depth});
    const DeviceTensor table = device_tensor(*backend, act(), {width, depth});
    const auto shared = backend->make_linear_of_table(table.view);
    ASSERT_EQ(shared == nullptr, backend->traits().shares_host_memory);
    if (shared == nullptr) GTEST_SKIP() << "this backend's weights have a layout of their own";
    // Filled in later, as loading does.
    backend->upload(table.view.data, matrix.bytes.data(), matrix.bytes.size());
    const HostMatrix piece{matrix.bytes.data(), act(), width, depth, depth};
    const auto own = backend->make_linear({&piece, 1}, nullptr, act());
    const DeviceTensor device = upload(*backend, x.view);
    const DeviceTensor expected = device_tensor(*backend, DType::kFloat32, {rows, width});
    const DeviceTensor actual = device_tensor(*backend, DType::kFloat32, {rows, width});
    backend->linear(expected.view, device.view, *own);
    backend->linear(actual.view, device.view, *shared);
    expect_same_bits(download(*backend, actual.view).bytes,
                     download(*backend, expected.view).bytes);
  }
}

}  // namespace
}  // namespace nanovllm::test
