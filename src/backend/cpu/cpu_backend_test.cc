#include "backend/cpu/cpu_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "backend/sampling_test_support.h"
#include "base/check.h"
#include "base/philox.h"

namespace nanovllm {
namespace {

TEST(CpuBackend, DescribesItself) {
  EXPECT_EQ(CpuBackend({1, Isa::kPortable}).description(), "cpu (portable, 1 thread)");
  EXPECT_EQ(CpuBackend({3, Isa::kPortable}).description(), "cpu (portable, 3 threads)");
}

TEST(CpuBackend, TellsItsKindAsData) {
  EXPECT_EQ(CpuBackend({1, Isa::kPortable}).device_type(), "cpu");
}

TEST(CpuBackend, AllocationsAreZeroedAndAligned) {
  CpuBackend cpu({1, {}});
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100}, (size_t{2} << 20) - 1,
                             size_t{2} << 20, (size_t{4} << 20) + 1}) {
    const auto buffer = cpu.allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
    ASSERT_GE(buffer->bytes(), bytes);
    const char* data = static_cast<const char*>(buffer->data());
    EXPECT_TRUE(std::all_of(data, data + bytes, [](char c) { return c == 0; }));
    std::fill_n(static_cast<char*>(buffer->data()), bytes, char{1});
  }
}

TEST(CpuBackend, MoreMemoryThanThereIsIsRefusedWithBothNumbers) {
  CpuBackend cpu({1, {}});
  for (const size_t bytes : {static_cast<size_t>(cpu.memory().total_bytes) * 2, size_t{1} << 62}) {
    try {
      cpu.allocate(bytes);
      FAIL() << bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
      const std::string message = error.what();
      EXPECT_NE(message.find(std::to_string(bytes) + " bytes of memory"), std::string::npos);
      EXPECT_NE(message.find("bytes are free"), std::string::npos) << message;
    }
  }
}

TEST(CpuBackend, MemoryIsPlausible) {
  const MemoryInfo info = CpuBackend({1, {}}).memory();
  EXPECT_GT(info.free_bytes, 0);
  EXPECT_LE(info.free_bytes, info.total_bytes);
}

TEST(CpuBackend, UploadAndDownloadCopy) {
  CpuBackend cpu({1, {}});
  const std::vector<int> sent = {1, 2, 3};
  std::vector<int> received(3);
  const auto buffer = cpu.allocate(sent.size() * sizeof(int));
  cpu.upload(buffer->data(), sent.data(), sent.size() * sizeof(int));
  cpu.download(received.data(), buffer->data(), sent.size() * sizeof(int));
  cpu.synchronize();
  EXPECT_EQ(sent, received);
  cpu.upload(nullptr, nullptr, 0);
}

// Sums of so many equal weights in float32 would fall short by more than what is to be cut.
TEST(CpuBackend, TopPCutsTheLastOfManyEquals) {
  constexpr int kVocabSize = 151936;
  std::vector<float> logits(kVocabSize, 0.0f);
  logits[0] = 1;
  SamplingRow row{.temperature = 1, .top_p = 0.999f};
  while (philox_uniform(row.seed, row.position) < 0.9995f) ++row.position;
  const auto backend = make_cpu_backend(1);
  const int32_t token = test::sample_row(*backend, row, logits).token_id;
  EXPECT_GE(token, static_cast<int32_t>(0.998 * kVocabSize));
  EXPECT_LE(token, static_cast<int32_t>(0.999 * kVocabSize));
}

TEST(Registry, CpuByName) {
  EXPECT_TRUE(make_cpu_backend(1)->traits().shares_host_memory);
  EXPECT_TRUE(make_cpu_backend(1)->traits().computes_with_codes);
  EXPECT_TRUE(make_backend({.device = "cpu", .num_threads = 2})->traits().shares_host_memory);
  EXPECT_NE(make_backend({.num_threads = 1}), nullptr);
}

TEST(Registry, UnknownDevicesAndBadThreadCountsAreRefused) {
  const auto code_of = [](const std::string& device, int threads) {
    try {
      make_backend({.device = device, .num_threads = threads});
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::kInternal;
  };
  EXPECT_EQ(code_of("tpu", 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of("", 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of("cpu", -1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of("cpu", ThreadPool::kMaxThreads + 1), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace nanovllm
