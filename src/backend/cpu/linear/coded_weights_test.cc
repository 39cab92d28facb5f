// The coders against a scalar decoder written after the layout's description.
#include "backend/cpu/linear/coded_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cpu/isas_testing.h"
#include "backend/cpu/linear/linear_pack.h"
#include "base/dtype.h"

namespace nanovllm {
namespace {

using Words = std::vector<uint16_t>;

constexpr int64_t kSteps = 48;
constexpr int64_t kWeights = kSteps * kPanelColumns * 2;
constexpr int64_t kPanelBytes = kCodeTableBytes + kSteps / kUnitSteps * kUnitBytes;

struct alignas(64) Panel {
  char bytes[kPanelBytes];
  std::vector<WeightPatch> patches;
  int64_t count = 0;
};

uint16_t word(const char* vector, int i) {
  uint16_t value;
  std::memcpy(&value, vector + i * 2, 2);
  return value;
}

// Of the four vectors of a unit.
uint16_t decoded(const char* table, const char* unit, int vector, int i) {
  uint16_t rest = word(unit + vector / 2 * 64, i);
  if (vector % 2 == 1) rest = static_cast<uint16_t>(rest << 8 | rest >> 8);
  const int code = word(unit + 128, i) >> 4 * vector & 15;
  return static_cast<uint16_t>((rest & 0x807f) | word(table, code));
}

Words decode(const Panel& panel) {
  Words plain;
  for (int64_t unit = 0; unit < kSteps / kUnitSteps; ++unit) {
    for (int vector = 0; vector < 4; ++vector) {
      for (int i = 0; i < 32; ++i) {
        plain.push_back(
            decoded(panel.bytes, panel.bytes + kCodeTableBytes + unit * kUnitBytes, vector, i));
      }
    }
  }
  for (const WeightPatch& patch : panel.patches) {
    plain[patch.unit * size_t{kUnitWeights} + patch.position] = patch.bits;
  }
  return plain;
}

class CodedWeights : public ::testing::TestWithParam<Isa> {
 protected:
  static Panel code(const Words& plain) {
    Panel panel;
    panel.patches.resize(kWeights + 1);
    const auto code_panel = linear_kernels(GetParam()).code_panel;
    panel.count = code_panel(reinterpret_cast<const char*>(plain.data()), kSteps, panel.bytes,
                             panel.patches.data());
    EXPECT_EQ(panel.patches[static_cast<size_t>(panel.count)].unit, kNoUnit);
    panel.patches.resize(static_cast<size_t>(panel.count));
    return panel;
  }
  template <typename Draw>
  static Words words(Draw draw) {
    Words plain(kWeights);
    for (uint16_t& value : plain) value = static_cast<uint16_t>(draw());
    return plain;
  }
  std::mt19937 rng_{7};
};

TEST_P(CodedWeights, NormalWeightsNeedFewPatches) {
  std::normal_distribution<float> normal(0, 0.02f);
  const Words plain = words([&] { return to_bfloat16(normal(rng_)).bits; });
  const Panel panel = code(plain);
  EXPECT_EQ(decode(panel), plain);
  EXPECT_LT(panel.count, kWeights / 1000);
}

TEST_P(CodedWeights, EveryBitPatternComesBack) {
  for (int first = 0; first < 65536; first += kWeights) {
    int next = first;
    const Words plain = words([&] { return next++; });
    EXPECT_EQ(decode(code(plain)), plain) << first;
  }
  const Words random = words([&] { return rng_(); });
  EXPECT_EQ(decode(code(random)), random);
}

TEST_P(CodedWeights, AnyFifteenNeighbouringExponentsAndZerosNeedNoPatch) {
  for (const unsigned lowest : {1u, 2u, 100u, 120u, 240u, 241u}) {
    const Words plain = words([&] {
      const unsigned exponent = rng_() % 4 == 0 ? 0 : lowest + rng_() % 15;
      const unsigned rest = exponent == 0 ? rng_() & 0x8000 : rng_() & 0x807f;
      return exponent << 7 | rest;
    });
    const Panel panel = code(plain);
    EXPECT_EQ(panel.count, 0) << lowest;
    EXPECT_EQ(decode(panel), plain) << lowest;
  }
}

TEST_P(CodedWeights, ZerosAloneNeedNoPatch) {
  const Words plain(kWeights, 0);
  EXPECT_EQ(code(plain).count, 0);
  EXPECT_EQ(decode(code(plain)), plain);
}

TEST_P(CodedWeights, PatchesAreInOrder) {
  Words plain = words([&] { return 0x3f80 | (rng_() & 0x807f); });
  for (const int64_t i : {int64_t{0}, int64_t{1}, int64_t{127}, int64_t{128}, kWeights - 1}) {
    plain[static_cast<size_t>(i)] = 0x0080;  // the smallest number that is normal
  }
  const Panel panel = code(plain);
  ASSERT_EQ(panel.count, 5);
  EXPECT_EQ(decode(panel), plain);
  EXPECT_TRUE(std::is_sorted(panel.patches.begin(), panel.patches.end(),
                             [](const WeightPatch& a, const WeightPatch& b) {
                               return a.unit != b.unit ? a.unit < b.unit : a.position < b.position;
                             }));
}

std::vector<Isa> coding_isas() {
  std::vector<Isa> isas = available_isas();
  std::erase_if(isas, [](Isa isa) { return isa < Isa::kAvx2; });
  return isas;
}

// Without AVX2 there are none.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CodedWeights);
INSTANTIATE_TEST_SUITE_P(Isas, CodedWeights, ::testing::ValuesIn(coding_isas()),
                         [](const auto& param) { return std::string(to_string(param.param)); });

}  // namespace
}  // namespace nanovllm
