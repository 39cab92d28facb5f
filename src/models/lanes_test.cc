// Steps that the model computes in halves, on a CPU that asks for them: it computes one op after
// the other, and a row's bits depend on the row alone.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <stdexcept>

#include "backend/cpu/cpu_backend.h"
#include "models/testing.h"

namespace nanovllm {
namespace {

using testing::Chunk;
using testing::golden_dir;
using testing::ModelRig;
using testing::Rows;

constexpr int kMinTokens = 5;

class LaneBackend final : public CpuBackend {
 public:
  explicit LaneBackend(int64_t layer_bytes)
      : CpuBackend(CpuOptions{2, {}}), layer_bytes_(layer_bytes) {}
  int min_lane_tokens(int64_t layer_bytes) const override {
    EXPECT_EQ(layer_bytes, layer_bytes_);
    return kMinTokens;
  }
  void begin_lanes() override {
    ++num_begun;
    lane = 0;
  }
  void use_lane(int chosen) override {
    EXPECT_GE(lane, 0);
    lane = chosen;
    ++num_uses[chosen];
  }
  void end_lanes() override {
    EXPECT_GE(lane, 0);
    lane = -1;
  }
  void paged_attention(Tensor out, Tensor qkv, const KvCache& cache, const AttentionParams& params,
                       const ForwardBatch& batch) override {
    at_attention(lane);
    CpuBackend::paged_attention(out, qkv, cache, params, batch);
  }

  int lane = -1;  // outside
  int num_begun = 0, num_uses[2] = {};
  std::function<void(int)> at_attention = [](int) {};

 private:
  const int64_t layer_bytes_;
};

class Lanes : public ::testing::Test {
 protected:
  Lanes() {
    const ModelConfig config = ModelConfig::load(dir_);
    const int64_t heads = 2 * (config.num_attention_heads + config.num_key_value_heads);
    auto backend = std::make_unique<LaneBackend>(
        4 * config.hidden_size * (heads * config.head_dim + 3 * config.intermediate_size));
    backend_ = backend.get();
    in_lanes_.emplace(dir_, DType::kFloat32, std::move(backend), 16);
    plain_.emplace(dir_, DType::kFloat32, std::make_unique<CpuBackend>(CpuOptions{2, {}}), 16);
    for (int s = 0; s < kSequences; ++s) {
      for (ModelRig* rig : {&*in_lanes_, &*plain_}) rig->prefill({s, ids(3 + 5 * s)});
    }
  }

  static constexpr int kSequences = 12;
  static std::vector<int32_t> ids(int count) {
    std::vector<int32_t> ids;
    for (int i = 0; i < count; ++i) ids.push_back((i * 37 + count) % 250);
    return ids;
  }
  // One token of each of `count` sequences.
  static std::vector<Chunk> decodes(int count, int first = 0) {
    std::vector<Chunk> chunks;
    for (int s = first; s < first + count; ++s) chunks.push_back({s, {s * 11 % 250}});
    return chunks;
  }
  void expect_same(const std::vector<Chunk>& chunks, bool only_last = false) {
    const std::vector<Rows> wanted = plain_->step(chunks, only_last);
    EXPECT_EQ(in_lanes_->step(chunks, only_last), wanted);
    EXPECT_EQ(backend_->lane, -1);
  }

  const std::string dir_ = golden_dir("qwen3_tied");
  LaneBackend* backend_ = nullptr;
  std::optional<ModelRig> in_lanes_, plain_;
};

TEST_F(Lanes, ChangeNoBit) {
  for (const int count : {5, 6, 11, 12, 5}) expect_same(decodes(count));
  EXPECT_EQ(backend_->num_begun, 5);
  EXPECT_GT(backend_->num_uses[0], 0);
  EXPECT_EQ(backend_->num_uses[0], backend_->num_uses[1]);
}

TEST_F(Lanes, AreForLargeStepsOfDecodesOnly) {
  expect_same(decodes(kMinTokens - 1));
  expect_same({{0, ids(9)}});
  std::vector<Chunk> mixed = decodes(8);
  mixed.push_back({9, ids(2)});
  expect_same(mixed);
  expect_same(mixed, /*only_last=*/true);
  EXPECT_EQ(backend_->num_begun, 0);
  expect_same(decodes(kMinTokens));
  EXPECT_EQ(backend_->num_begun, 1);
}

TEST_F(Lanes, EndWhereAStepFails) {
  for (const int failing : {0, 1}) {
    backend_->at_attention = [&](int lane) {
      if (lane == failing) throw std::runtime_error("refused");
    };
    EXPECT_THROW(in_lanes_->step(decodes(6)), std::runtime_error);
    EXPECT_EQ(backend_->lane, -1);
    backend_->at_attention = [](int) {};
    expect_same(decodes(6, /*first=*/6));
  }
}

}  // namespace
}  // namespace nanovllm
