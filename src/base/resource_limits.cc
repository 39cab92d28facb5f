#include "base/resource_limits.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

namespace nanovllm {
namespace {

// Version 1 says "no limit" with a huge number instead of a word.
constexpr int64_t kNoLimit = int64_t{1} << 60;

std::optional<int64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  int64_t value;
  if (file >> value) return value;
  return std::nullopt;  // absent, or "max"
}

// The value after `key` in a file of "key value" lines.
std::optional<int64_t> read_key(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string name;
    int64_t value;
    if (fields >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

void limit_cpus(double cpus, CgroupLimits* limits) {
  if (limits->cpus == 0 || cpus < limits->cpus) limits->cpus = cpus;
}

void limit_memory(int64_t limit, int64_t used, CgroupLimits* limits) {
  if (limit >= kNoLimit) return;
  const int64_t headroom = std::max<int64_t>(0, limit - used);
  if (limits->memory_limit < 0 || limit < limits->memory_limit) limits->memory_limit = limit;
  if (limits->memory_headroom < 0 || headroom < limits->memory_headroom) {
    limits->memory_headroom = headroom;
  }
}

void read_memory_group(const std::string& folder, const char* limit_name, const char* usage_name,
                       const std::string& cache_prefix, CgroupLimits* limits) {
  const auto limit = read_number(folder + limit_name);
  if (!limit) return;
  const auto cached = [&](const char* key) {
    return read_key(folder + "/memory.stat", cache_prefix + key).value_or(0);
  };
  const int64_t cache = cached("inactive_file") + cached("active_file");
  limit_memory(*limit, read_number(folder + usage_name).value_or(0) - cache, limits);
}

void read_v2_group(const std::string& folder, CgroupLimits* limits) {
  std::ifstream cpu_max(folder + "/cpu.max");
  double quota, period;
  if (cpu_max >> quota >> period && quota > 0 && period > 0) limit_cpus(quota / period, limits);
  read_memory_group(folder, "/memory.max", "/memory.current", "", limits);
}

void read_v1_cpu_group(const std::string& folder, CgroupLimits* limits) {
  const auto quota = read_number(folder + "/cpu.cfs_quota_us");
  const auto period = read_number(folder + "/cpu.cfs_period_us");
  if (quota && period && *quota > 0 && *period > 0) {
    limit_cpus(static_cast<double>(*quota) / static_cast<double>(*period), limits);
  }
}

void read_v1_memory_group(const std::string& folder, CgroupLimits* limits) {
  read_memory_group(folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_", limits);
}

// A container may see its own group's files at the mount point while /proc/self/cgroup names the
// path on the host; so every prefix of the path is tried, the mount point included, and what does
// not exist there limits nothing.
template <typename ReadGroup>
void read_hierarchy(const std::string& mount, std::string path, ReadGroup read_group) {
  while (!path.empty() && path != "/") {
    read_group(mount + path);
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  read_group(mount);
}

// What a shell's ulimit sets, and what of it is used.
struct ProcessLimit {
  std::string_view name;  // in /proc/self/limits
  const char* used;       // in /proc/self/status
  const char* shown;
};
constexpr ProcessLimit kProcessLimits[] = {{"Max address space", "VmSize:", " (ulimit -v)"},
                                           {"Max data size", "VmData:", " (ulimit -d)"}};

// The soft limit, in bytes; nothing for "unlimited".
std::optional<int64_t> read_limit(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(name)) continue;
    std::istringstream fields(line.substr(name.size()));
    int64_t value;
    if (fields >> value) return value;
  }
  return std::nullopt;
}

}  // namespace

CgroupLimits read_cgroup_limits(const std::string& root) {
  CgroupLimits limits;
  const std::string base = root + (root.ends_with('/') ? "" : "/");
  const std::string mount = base + "sys/fs/cgroup";
  std::ifstream file(base + "proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {  // "4:memory:/group" or, version 2, "0::/group"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      const auto read = [&](const std::string& folder) { read_v2_group(folder, &limits); };
      read_hierarchy(mount, path, read);
      read_hierarchy(mount + "/unified", path, read);
      continue;
    }
    const std::string padded = "," + controllers + ",";
    if (padded.find(",cpu,") != std::string::npos) {
      for (const std::string& name : {std::string("cpu"), controllers}) {
        read_hierarchy(fmt::format("{}/{}", mount, name), path,
                       [&](const std::string& folder) { read_v1_cpu_group(folder, &limits); });
      }
    }
    if (padded.find(",memory,") != std::string::npos) {
      for (const std::string& name : {std::string("memory"), controllers}) {
        read_hierarchy(fmt::format("{}/{}", mount, name), path,
                       [&](const std::string& folder) { read_v1_memory_group(folder, &limits); });
      }
    }
  }
  return limits;
}

int usable_cpus() {
  int cpus = static_cast<int>(std::thread::hardware_concurrency());
  // cpu_set_t holds 1024 cores; larger machines need a larger set, found by trying.
  for (size_t size = 1024; size <= 64 * 1024; size *= 2) {
    cpu_set_t* set = CPU_ALLOC(size);
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(size);
    const bool ok = sched_getaffinity(0, bytes, set) == 0;
    if (ok) cpus = CPU_COUNT_S(bytes, set);
    CPU_FREE(set);
    if (ok) break;
  }
  const double limit = read_cgroup_limits().cpus;
  if (limit > 0 && limit < cpus) cpus = static_cast<int>(std::ceil(limit));
  return std::max(cpus, 1);
}

MemoryInfo read_memory_info(const std::string& root) {
  MemoryInfo info;
  const std::string base = root + (root.ends_with('/') ? "" : "/");
  const std::string meminfo = base + "proc/meminfo";  // in KiB
  const int64_t page = sysconf(_SC_PAGESIZE);
  info.total_bytes =
      read_key(meminfo, "MemTotal:").value_or(sysconf(_SC_PHYS_PAGES) * page / 1024) * 1024;
  info.free_bytes =
      read_key(meminfo, "MemAvailable:").value_or(sysconf(_SC_AVPHYS_PAGES) * page / 1024) * 1024;
  const auto apply = [&](int64_t limit, int64_t headroom, const char* name) {
    info.total_bytes = std::min(info.total_bytes, limit);
    if (headroom >= info.free_bytes) return;
    info.free_bytes = std::max<int64_t>(headroom, 0);
    info.limit = name;
  };
  const CgroupLimits limits = read_cgroup_limits(root);
  if (limits.memory_limit >= 0) {
    apply(limits.memory_limit, limits.memory_headroom, " (the control group's limit)");
  }
  for (const ProcessLimit& limit : kProcessLimits) {
    const auto bytes = read_limit(base + "proc/self/limits", limit.name);
    const auto used = read_key(base + "proc/self/status", limit.used);  // in KiB
    if (bytes && used) apply(*bytes, *bytes - *used * 1024, limit.shown);
  }
  // Where the system promises no more than it has, what is promised and not yet used counts.
  if (read_number(base + "proc/sys/vm/overcommit_memory") == 2) {
    const auto promises = read_key(meminfo, "CommitLimit:");
    const auto promised = read_key(meminfo, "Committed_AS:");
    if (promises && promised) {
      apply(*promises * 1024, (*promises - *promised) * 1024, " (vm.overcommit_memory=2)");
    }
  }
  return info;
}

}  // namespace nanovllm
