#include "backend/cpu/cpu_features.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/isas_testing.h"
#include "backend/cpu/linear/weight_streams.h"
#include "base/check.h"

namespace nanovllm {
namespace {

// Sets NANOVLLM_CPU_ISA for one test and puts back what it was.
class CpuIsaVariable : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* value = std::getenv(kName);
    was_set_ = value != nullptr;
    if (was_set_) before_ = value;
  }
  void TearDown() override {
    if (was_set_) {
      set(before_);
    } else {
      unsetenv(kName);
    }
  }
  static void set(const std::string& value) { setenv(kName, value.c_str(), 1); }

  static constexpr const char* kName = "NANOVLLM_CPU_ISA";

 private:
  bool was_set_ = false;
  std::string before_;
};

TEST_F(CpuIsaVariable, AbsentOrEmptyMeansTheBestThereIs) {
  unsetenv(kName);
  EXPECT_EQ(default_isa(), detected_isa());
  set("");
  EXPECT_EQ(default_isa(), detected_isa());
}

TEST_F(CpuIsaVariable, LowersEveryBackendMadeWithoutAnIsa) {
  for (const Isa isa : available_isas()) {
    set(to_string(isa));
    EXPECT_EQ(default_isa(), isa);
    EXPECT_EQ(CpuBackend({1, {}}).isa(), isa);
  }
}

TEST_F(CpuIsaVariable, NeverRaises) {
  set("amx");
  EXPECT_EQ(default_isa(), detected_isa());
}

TEST_F(CpuIsaVariable, AnUnknownValueIsAnErrorThatNamesTheValues) {
  for (const char* value : {"avx3", "AVX2", " avx2", "avx512bf16"}) {
    set(value);
    try {
      CpuBackend backend({1, {}});
      FAIL() << value;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      const std::string message = error.what();
      EXPECT_NE(message.find(std::string("'") + value + "'"), std::string::npos) << message;
      EXPECT_NE(message.find("portable, avx2, avx512, avx512_bf16 or amx"), std::string::npos);
    }
  }
}

TEST(CpuFeatures, NamesAreReadBack) {
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    EXPECT_EQ(parse_isa(to_string(isa)), isa);
  }
}

TEST(CpuFeatures, EverythingUpToTheDetectedIsAvailable) {
  const auto isas = available_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::kPortable);
  EXPECT_EQ(isas.back(), detected_isa());
  EXPECT_EQ(isas.size(), static_cast<size_t>(detected_isa()) + 1);
}

// As the kernel names vendor and family; of other architectures it names none.
TEST(CpuFeatures, ProcessorsOfAmdReadInOneStream) {
  std::ifstream file("/proc/cpuinfo");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const bool amd = text.find("AuthenticAMD") != std::string::npos ||
                   text.find("HygonGenuine") != std::string::npos;
  const auto family = text.find("cpu family\t: ");
  const bool up_to_zen4 = family != std::string::npos && std::stoi(text.substr(family + 13)) <= 25;
  const auto of_amd = up_to_zen4 ? WeightStreams::kOneForeseen : WeightStreams::kOne;
  EXPECT_EQ(weight_streams(), amd ? of_amd : WeightStreams::kSeveral);
}

TEST(CpuFeatures, AnIsaTheMachineLacksIsNotUsed) {
  EXPECT_EQ(CpuBackend({1, Isa::kAmx}).isa(), detected_isa());
  EXPECT_EQ(CpuBackend({1, Isa::kPortable}).isa(), Isa::kPortable);
}

}  // namespace
}  // namespace nanovllm
