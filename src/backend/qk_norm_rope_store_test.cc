// qk_norm_rope_store on every backend; attention's own tests show that what it stores is right.
#include "backend/ops_test_support.h"

namespace nanovllm::test {
namespace {

class QkNormRopeStore : public OpsTest {};

INSTANTIATE_TEST_SUITE_P(Backends, QkNormRopeStore, every_backend_and_dtype(), name_of);

TEST_P(QkNormRopeStore, PaddingTokensStoreNothing) {
  const auto backend = make();
  const KvCacheSpec spec{2, 64, 16, act()};
  const size_t bytes = backend->kv_block_bytes(spec);
  Random random(8);
  const HostTensor qkv(random.floats(3 * 8 * 64, -1, 1), act(), {3, 8 * 64});
  const auto memory = upload(*backend, std::vector<char>(2 * bytes, '\x11'));
  const KvCache cache{spec, memory->data(), 2};
  const auto positions = upload(*backend, std::vector<int32_t>{0, 0, 0});
  const auto slots = upload(*backend, std::vector<int32_t>{-1, -1, -1});
  const auto table = upload(*backend, std::vector<float>(2, 0.0f));
  ForwardBatch batch;
  batch.num_tokens = 3;
  batch.positions = static_cast<int32_t*>(positions->data());
  batch.slot_mapping = static_cast<int32_t*>(slots->data());
  RopeParams rope;
  rope.cos_sin = Tensor(table->data(), DType::kFloat32, {1, 2});
  rope.rotary_dim = 2;
  const DeviceTensor device = upload(*backend, qkv.view);
  backend->qk_norm_rope_store(device.view, 4, rope, cache, batch);
  std::vector<char> after(2 * bytes);
  backend->synchronize();
  backend->download(after.data(), memory->data(), after.size());
  EXPECT_EQ(after, std::vector<char>(2 * bytes, '\x11'));
}

TEST_P(QkNormRopeStore, QueriesAreNormalisedAndTurned) {
  const auto backend = make();
  Random random(9);
  constexpr int kSlotsOfASequence = 16;
  for (const auto& [dim, rotary] : {std::pair{8, 8}, {40, 40}, {64, 32}, {80, 80}, {128, 128}}) {
    const int heads = 3, tokens = 20, width = (heads + 2) * dim;  // 4 tokens, a padding; again
    const HostTensor qkv(random.floats(tokens * width, -3, 3), act(), {tokens, width});
    const std::vector<float> norm = random.floats(dim, 0.5f, 2);
    const std::vector<float> table = random.floats(64 * rotary, -1, 1);
    std::vector<int32_t> positions, slots;
    for (int t = 0; t < tokens; ++t) {
      positions.push_back(random.below(64));
      slots.push_back(t % 5 == 4 ? -1 : t / 5 * kSlotsOfASequence + t % 5);
    }
    RopeParams rope;
    rope.norm_eps = 1e-6f;
    rope.rotary_dim = rotary;
    rope.q_norm = norm.data();
    rope.cos_sin = Tensor(const_cast<float*>(table.data()), DType::kFloat32, {64, rotary});
    ForwardBatch batch;
    batch.num_tokens = tokens;
    batch.positions = positions.data();
    batch.slot_mapping = slots.data();
    reference::PlainKvCache plain(1, dim, kSlotsOfASequence, 4);
    const std::vector<float> expected =
        reference::qk_norm_rope_store(qkv.view, heads, rope, plain, batch);

    const KvCacheSpec spec{1, dim, kSlotsOfASequence, act()};
    const auto memory = backend->allocate(4 * backend->kv_block_bytes(spec));
    const auto device_positions = upload(*backend, positions),
               device_slots = upload(*backend, slots);
    const auto device_norm = upload(*backend, norm), device_table = upload(*backend, table);
    batch.positions = static_cast<int32_t*>(device_positions->data());
    batch.slot_mapping = static_cast<int32_t*>(device_slots->data());
    rope.q_norm = static_cast<float*>(device_norm->data());
    rope.cos_sin.data = device_table->data();
    const DeviceTensor device = upload(*backend, qkv.view);
    backend->qk_norm_rope_store(device.view, heads, rope, {spec, memory->data(), 4}, batch);
    const HostTensor after = download(*backend, device.view);
    HostTensor q(act(), {tokens, heads * dim});
    for (int t = 0; t < tokens; ++t) {
      const auto row = after.row(t);
      std::memcpy(q.bytes.data() + q.row(0).size() * t, row.data(), q.row(0).size());
      // Keys and values go to the cache and stay as they were here.
      expect_same_bits(row.subspan(q.row(0).size()), qkv.row(t).subspan(q.row(0).size()));
    }
    expect_close(q, expected, rounding(act()), 2e-6);
  }
}

}  // namespace
}  // namespace nanovllm::test
