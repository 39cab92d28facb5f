// Times every CPU kernel; of_read and of_peak are its shares of what the machine reads and
// multiplies at most. Usage: nanovllm_kernels_bench [--benchmark_filter=REGEX]; set
// NANOVLLM_CPU_ISA to measure the kernels of a lower instruction set.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "backend/cpu/cpu_backend.h"
#include "ceilings.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  {
    nanovllm::CpuBackend cpu;
    fmt::print(stderr,
               "{}: reads {:.1f} GB/s, multiplies {:.0f} GFLOP/s bfloat16, {:.0f} float32\n",
               cpu.description(), nanovllm::read_bandwidth(cpu) / 1e9,
               nanovllm::peak_flops(cpu, nanovllm::DType::kBFloat16) / 1e9,
               nanovllm::peak_flops(cpu, nanovllm::DType::kFloat32) / 1e9);
  }
  benchmark::RunSpecifiedBenchmarks();
}
