// What the machine, the affinity mask and control groups let this process use.
#pragma once

#include <cstdint>
#include <string>

namespace nanovllm {

// Limits found in control groups (versions 1 and 2, the process's own group and all above it).
struct CgroupLimits {
  double cpus = 0;               // CPU time a second; 0 = unlimited
  int64_t memory_limit = -1;     // bytes; -1 = unlimited
  int64_t memory_headroom = -1;  // bytes left in the tightest group, page cache counted as free
};

// `root` stands for "/" (tests build a tree of their own): reads proc/self/cgroup and
// sys/fs/cgroup below it. What is absent or unreadable limits nothing.
CgroupLimits read_cgroup_limits(const std::string& root = "/");

// Cores this process may keep busy: the affinity mask, cut to the control groups' CPU limit rounded
// up; at least 1.
int usable_cpus();

struct MemoryInfo {
  // What this process may still take, under all limits.
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
  // The limit that leaves less than the machine has, to be appended to a message: " (ulimit -v)".
  // Empty = none does.
  std::string limit = {};
};

// Memory this process may have and still take: the least of what /proc/meminfo, control groups and
// the process's own limits (ulimit -v and -d) leave; `limit` names the group or the latter.
MemoryInfo read_memory_info(const std::string& root = "/");

}  // namespace nanovllm
