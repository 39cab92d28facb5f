#include "base/resource_limits.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace nanovllm {
namespace {

// A folder that stands for "/", with files written by the test.
class ResourceLimits : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "limits-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& content) {
    const auto full = root_ / path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << content;
  }
  CgroupLimits limits() const { return read_cgroup_limits(root_.string()); }

  std::filesystem::path root_;
};

TEST_F(ResourceLimits, NothingToReadLimitsNothing) {
  EXPECT_EQ(limits().cpus, 0);
  EXPECT_EQ(limits().memory_limit, -1);
  EXPECT_EQ(limits().memory_headroom, -1);
}

TEST_F(ResourceLimits, Version2TakesTheTightestOfAllLevels) {
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("sys/fs/cgroup/outer/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/outer/inner/cpu.max", "400000 100000\n");
  write("sys/fs/cgroup/outer/memory.max", "max\n");
  write("sys/fs/cgroup/outer/inner/memory.max", "1000000\n");
  write("sys/fs/cgroup/outer/inner/memory.current", "600000\n");
  write("sys/fs/cgroup/outer/inner/memory.stat",
        "anon 1\ninactive_file 70000\nactive_file 30000\n");
  EXPECT_DOUBLE_EQ(limits().cpus, 1.5);
  EXPECT_EQ(limits().memory_limit, 1000000);
  EXPECT_EQ(limits().memory_headroom, 500000);  // page cache can be given back
}

TEST_F(ResourceLimits, Version2WithoutLimits) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(limits().cpus, 0);
  EXPECT_EQ(limits().memory_limit, -1);
}

TEST_F(ResourceLimits, Version1) {
  write("proc/self/cgroup", "5:memory:/job\n4:cpu,cpuacct:/job\n3:cpuset:/\n");
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "250000\n");
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2000\n");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "900\n");
  write("sys/fs/cgroup/memory/job/memory.stat", "total_inactive_file 400\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // unlimited
  EXPECT_DOUBLE_EQ(limits().cpus, 2.5);
  EXPECT_EQ(limits().memory_limit, 2000);
  EXPECT_EQ(limits().memory_headroom, 1500);
}

TEST_F(ResourceLimits, AContainerThatSeesItsOwnGroupAtTheMountPoint) {
  write("proc/self/cgroup", "0::/docker/0123\n");  // as the host names it
  write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_DOUBLE_EQ(limits().cpus, 0.5);
}

TEST_F(ResourceLimits, AGroupThatIsOverItsLimitHasNoHeadroom) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "1000\n");
  write("sys/fs/cgroup/memory.current", "1500\n");
  EXPECT_EQ(limits().memory_headroom, 0);
}

TEST_F(ResourceLimits, MemoryIsTheLesserOfMachineAndGroup) {
  write("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    600 kB\n");
  EXPECT_EQ(read_memory_info(root_.string()).total_bytes, 1000 * 1024);
  EXPECT_EQ(read_memory_info(root_.string()).free_bytes, 600 * 1024);
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "300000\n");
  write("sys/fs/cgroup/memory.current", "100000\n");
  EXPECT_EQ(read_memory_info(root_.string()).total_bytes, 300000);
  EXPECT_EQ(read_memory_info(root_.string()).free_bytes, 200000);
}

TEST_F(ResourceLimits, TheProcessesOwnLimitsCountAndAreNamed) {
  write("proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    600 kB\n");
  const auto limit = [&](const std::string& addresses, const std::string& data) {
    write("proc/self/limits",
          "Limit                     Soft Limit           Hard Limit           Units     \n"
          "Max data size             " +
              data +
              "            unlimited            bytes     \n"
              "Max address space         " +
              addresses + "            unlimited            bytes     \n");
    return read_memory_info(root_.string());
  };
  write("proc/self/status", "VmPeak:\t 900 kB\nVmSize:\t 300 kB\nVmData:\t 100 kB\n");
  EXPECT_EQ(limit("unlimited", "unlimited").free_bytes, 600 * 1024);
  EXPECT_EQ(limit("unlimited", "unlimited").limit, "");
  EXPECT_EQ(limit("921600", "unlimited").limit, "");  // 900 KiB leave 600
  EXPECT_EQ(limit("921599", "unlimited").limit, " (ulimit -v)");
  EXPECT_EQ(limit("921599", "unlimited").free_bytes, 600 * 1024 - 1);
  EXPECT_EQ(limit("921599", "unlimited").total_bytes, 921599);
  EXPECT_EQ(limit("921599", "716799").limit, " (ulimit -v)");  // as little as the other leaves
  EXPECT_EQ(limit("921599", "716798").limit, " (ulimit -d)");
  EXPECT_EQ(limit("1", "unlimited").free_bytes, 0);
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "300000\n");
  EXPECT_EQ(limit("921599", "unlimited").limit, " (the control group's limit)");
}

TEST_F(ResourceLimits, WhatTheSystemHasPromisedIsNotFreeWhereItKeepsItsPromises) {
  write("proc/meminfo",
        "MemTotal: 1000 kB\nMemAvailable: 600 kB\nCommitLimit: 700 kB\nCommitted_AS: 500 kB\n");
  for (const char* mode : {"0\n", "1\n"}) {
    write("proc/sys/vm/overcommit_memory", mode);
    EXPECT_EQ(read_memory_info(root_.string()).free_bytes, 600 * 1024);
  }
  write("proc/sys/vm/overcommit_memory", "2\n");
  EXPECT_EQ(read_memory_info(root_.string()).free_bytes, 200 * 1024);
  EXPECT_EQ(read_memory_info(root_.string()).limit, " (vm.overcommit_memory=2)");
}

TEST(UsableCpus, FollowsTheAffinityMask) {
  EXPECT_GE(usable_cpus(), 1);
  // In a thread of its own, whose mask dies with it.
  int with_one = 0;
  std::thread([&] {
    cpu_set_t mask;
    ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
    int first = 0;
    while (!CPU_ISSET(first, &mask)) ++first;
    CPU_ZERO(&mask);
    CPU_SET(first, &mask);
    ASSERT_EQ(sched_setaffinity(0, sizeof mask, &mask), 0);
    with_one = usable_cpus();
  }).join();
  EXPECT_EQ(with_one, 1);
}

}  // namespace
}  // namespace nanovllm
