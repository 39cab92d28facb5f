// Attention of several layers in one step: what a backend prepares once for all of them, as a graph
// has it too, must be right for every layer and every step.
#include <algorithm>

#include "backend/attention_test_support.h"

namespace nanovllm::test {
namespace {

class AttentionLayers : public OpsTest {};

INSTANTIATE_TEST_SUITE_P(Backends, AttentionLayers, every_backend_and_dtype(), name_of);

constexpr int kHeads = 4, kKvHeads = 2, kBlockSize = 32;
constexpr int kSeqs = 6, kStride = full_or_reduced(6, 3);  // blocks of a sequence
constexpr int kMaxLen = kStride * kBlockSize;
constexpr int kWindows[] = {0, 40, 7, 0};  // of the layers

using Lengths = std::vector<int32_t>;  // of kSeqs contexts, 0 = padding

// What the memory of each layer holds at first.
struct Contents {
  Contents(const Backend& backend, DType act, int head_dim)
      : spec{kKvHeads, head_dim, kBlockSize, act} {
    Random random(1);
    const int64_t width = int64_t{kHeads + 2 * kKvHeads} * head_dim;
    const auto elements =
        static_cast<int64_t>(backend.kv_block_bytes(spec) * kSeqs * kStride / size_of(act));
    kv = HostTensor(random.floats(elements, -1, 1), act, {elements});
    for ([[maybe_unused]] const int window : kWindows) {
      qkv.emplace_back(random.floats(kSeqs * width, -2, 2), act,
                       std::initializer_list<int64_t>{kSeqs, width});
    }
    cos_sin = random.floats(int64_t{kMaxLen} * head_dim, -1, 1);
    table.resize(kSeqs * kStride);
    std::iota(table.begin(), table.end(), 0);
    random.shuffle(table);
  }

  KvCacheSpec spec;
  HostTensor kv;
  std::vector<HostTensor> qkv;  // of each layer
  std::vector<float> cos_sin;
  std::vector<int32_t> table;
};

// Decodes of every layer at fixed addresses, as graphs want them.
class Decodes {
 public:
  Decodes(Backend& backend, const Contents& contents, bool one_pass)
      : backend_(backend), contents_(contents), one_pass_(one_pass) {
    const KvCacheSpec& spec = contents.spec;
    for (const HostTensor& qkv : contents.qkv) {
      kv_.push_back(upload(backend, contents.kv.view));
      qkv_.push_back(upload(backend, qkv.view));
      out_.push_back(device_tensor(backend, spec.dtype, {kSeqs, kHeads * spec.head_dim}));
    }
    cos_sin_ = upload(backend, contents.cos_sin);
    std::vector<int32_t> starts(kSeqs + 1);
    std::iota(starts.begin(), starts.end(), 0);
    batch_.num_tokens = batch_.num_seqs = batch_.num_decodes = kSeqs;
    batch_.max_query_len = 1;
    batch_.max_seq_len = kMaxLen;
    batch_.block_table_stride = kStride;
    batch_.block_table = array(contents.table);
    batch_.query_start_loc = array(starts);
    batch_.positions = positions_ = array(Lengths(kSeqs));
    batch_.slot_mapping = slots_ = array(Lengths(kSeqs));
    batch_.seq_lens = lengths_ = array(Lengths(kSeqs));
  }

  // Everything as it was at first, but for the lengths.
  void begin(const Lengths& lengths) {
    Lengths positions(kSeqs, 0), slots(kSeqs, -1);
    for (int s = 0; s < kSeqs; ++s) {
      if (lengths[s] == 0) continue;
      positions[s] = lengths[s] - 1;
      slots[s] = contents_.table[s * kStride + positions[s] / kBlockSize] * kBlockSize +
                 positions[s] % kBlockSize;
    }
    put(positions_, positions);
    put(slots_, slots);
    put(lengths_, lengths);
    for (size_t layer = 0; layer < kv_.size(); ++layer) {
      restore(kv_[layer], contents_.kv);
      restore(qkv_[layer], contents_.qkv[layer]);
    }
  }

  void attend(size_t layer) {
    const KvCacheSpec& spec = contents_.spec;
    RopeParams rope;
    rope.rotary_dim = spec.head_dim;
    rope.cos_sin = Tensor(cos_sin_->data(), DType::kFloat32, {kMaxLen, spec.head_dim});
    const AttentionParams params = {kHeads, 0.1f, kWindows[layer], 0};
    const KvCache cache = {spec, kv_[layer].view.data, kSeqs * kStride};
    const Tensor qkv = qkv_[layer].view, out = out_[layer].view;
    if (one_pass_) {
      backend_.store_and_attend(out, qkv, rope, cache, params, batch_);
    } else {
      backend_.qk_norm_rope_store(qkv, kHeads, rope, cache, batch_);
      backend_.paged_attention(out, qkv, cache, params, batch_);
    }
  }
  void attend_all() {
    for (size_t layer = 0; layer < kv_.size(); ++layer) attend(layer);
  }
  HostTensor result(size_t layer) { return download(backend_, out_[layer].view); }

 private:
  int32_t* array(const std::vector<int32_t>& values) {
    arrays_.push_back(upload(backend_, values));
    return static_cast<int32_t*>(arrays_.back()->data());
  }
  void put(int32_t* target, const Lengths& values) {
    backend_.upload(target, values.data(), values.size() * sizeof(int32_t));
  }
  void restore(const DeviceTensor& target, const HostTensor& source) {
    backend_.upload(target.view.data, source.bytes.data(), source.bytes.size());
  }

  Backend& backend_;
  const Contents& contents_;
  const bool one_pass_;
  std::vector<DeviceTensor> kv_, qkv_, out_;  // of each layer
  std::unique_ptr<Buffer> cos_sin_;
  std::vector<std::unique_ptr<Buffer>> arrays_;
  int32_t *positions_ = nullptr, *slots_ = nullptr, *lengths_ = nullptr;
  ForwardBatch batch_;
};

// The first is what graphs are recorded with.
const Lengths kSteps[] = {{33, 1, kMaxLen, 70, 16, 60},
                          {34, 2, 50, 71, 17, 61},
                          {kMaxLen, kMaxLen, kMaxLen, kMaxLen, kMaxLen, kMaxLen},
                          {1, 90, 65, 0, 0, 0}};

// What each layer gives where its backend has computed nothing before.
std::vector<HostTensor> alone(const BackendCase& backend_case, const Contents& contents,
                              bool one_pass, const Lengths& lengths) {
  std::vector<HostTensor> results;
  for (size_t layer = 0; layer < std::size(kWindows); ++layer) {
    const auto backend = backend_case.make(2);
    Decodes decodes(*backend, contents, one_pass);
    decodes.begin(lengths);
    decodes.attend(layer);
    results.push_back(decodes.result(layer));
  }
  return results;
}

// Rows of padding are nobody's.
void expect_layers(Decodes& decodes, const std::vector<HostTensor>& wanted,
                   const Lengths& lengths) {
  for (size_t layer = 0; layer < wanted.size(); ++layer) {
    SCOPED_TRACE(::testing::Message() << "layer " << layer);
    const HostTensor result = decodes.result(layer);
    for (int row = 0; row < kSeqs; ++row) {
      if (lengths[row] > 0) expect_same_bits(result.row(row), wanted[layer].row(row));
    }
  }
}

TEST_P(AttentionLayers, GiveWhatEachGivesAlone) {
  const auto backend = make();
  for (const auto& [head_dim, one_pass] : {std::pair{64, true}, {64, false}, {128, true}}) {
    const Contents contents(*backend, act(), head_dim);
    Decodes decodes(*backend, contents, one_pass);
    std::vector<std::vector<HostTensor>> wanted;
    for (const Lengths& lengths : kSteps) {
      SCOPED_TRACE(::testing::Message() << "head_dim " << head_dim << ", step " << wanted.size());
      wanted.push_back(alone(backend_case(), contents, one_pass, lengths));
      decodes.begin(lengths);
      decodes.attend_all();
      expect_layers(decodes, wanted.back(), lengths);
    }
    decodes.begin(kSteps[0]);
    const auto graph = backend->capture([&] { decodes.attend_all(); });
    if (graph == nullptr) continue;  // the device has none
    for (size_t step = std::size(kSteps); step-- > 0;) {
      SCOPED_TRACE(::testing::Message() << "head_dim " << head_dim << ", graph of step " << step);
      decodes.begin(kSteps[step]);
      backend->launch(*graph);
      expect_layers(decodes, wanted[step], kSteps[step]);
      decodes.begin(kSteps[0]);  // what a graph prepared is not taken for another step's
      decodes.attend_all();
      expect_layers(decodes, wanted[0], kSteps[0]);
    }
  }
}

}  // namespace
}  // namespace nanovllm::test
