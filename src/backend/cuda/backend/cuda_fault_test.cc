// What a failing device says, and that nobody waits for it for ever.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "backend/cuda/backend/cuda_backend.h"
#include "nanovllm/error.h"

namespace nanovllm {
namespace {

class CudaFault : public ::testing::Test {
 protected:
  void SetUp() override {
    if (CudaBackend::device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  }
};

TEST_F(CudaFault, MemoryThatIsNotThereIsRefusedInBytesAndTheDeviceGoesOn) {
  CudaBackend backend;
  try {
    backend.allocate(size_t{1} << 50);
    FAIL() << "a pebibyte was allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_NE(std::string(error.what()).find("1125899906842624 bytes were needed and"),
              std::string::npos)
        << error.what();
  }
  const auto buffer = backend.allocate(64);
  const int32_t sent = 42;
  int32_t received = 0;
  backend.upload(buffer->data(), &sent, sizeof(sent));
  backend.download(&received, buffer->data(), sizeof(received));
  EXPECT_EQ(received, sent);
}

// Reads through a wild pointer, then asks for more; leaves with what the device says to that.
[[noreturn]] void use_a_lost_device() {
  std::string first, second;
  {
    CudaBackend backend;
    const auto memory = backend.allocate(1 << 20);
    const Tensor x(memory->data(), DType::kFloat32, {16, 16});
    try {
      backend.gather_rows(x, x, reinterpret_cast<const int32_t*>(uintptr_t{64}));
      backend.synchronize();
    } catch (const Error& error) {
      first = error.what();
    }
    try {
      backend.allocate(64);
    } catch (const Error& error) {
      second = error.what();
    }
  }
  std::fprintf(stderr, "%s\n%s\n", first.c_str(), second.c_str());
  std::exit(first.empty() || second.empty() ? 1 : 3);
}

// In a process of its own: this one goes on using the device.
TEST_F(CudaFault, AKernelsFaultIsToldByEveryCallAndEndsTheProcessCleanly) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(use_a_lost_device(), ::testing::ExitedWithCode(3),
              "illegal memory access .*can't use the device any more\n.*illegal memory access");
}

}  // namespace
}  // namespace nanovllm
