// Prints the ceilings of this machine: GB/s that all threads read from memory, and GFLOP/s of
// bfloat16 multiply-adds. Usage: nanovllm_memory_probe [THREADS]. compare_cpu.py runs it beside
// every decode figure.
#include <cstdio>
#include <cstdlib>

#include "ceilings.h"
#include "nanovllm/error.h"

int main(int argc, char** argv) {
  try {
    nanovllm::CpuBackend cpu({.num_threads = argc > 1 ? std::atoi(argv[1]) : 0, .max_isa = {}});
    std::printf("%.1f GB/s %.0f GFLOP/s\n", nanovllm::read_bandwidth(cpu) / 1e9,
                nanovllm::peak_flops(cpu, nanovllm::DType::kBFloat16) / 1e9);
    return 0;
  } catch (const nanovllm::Error& error) {
    std::fprintf(stderr, "nanovllm_memory_probe: %s\n", error.what());
    return 1;
  }
}
