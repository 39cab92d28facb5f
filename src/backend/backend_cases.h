// The backends that tests run on: every instruction set this machine has, and CUDA where the build
// has it. Sanitizers may get fewer sets.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/isas_testing.h"
#include "base/testing.h"
#include "ops/backend.h"
#ifdef NANOVLLM_WITH_CUDA
#  include "backend/cuda/backend/cuda_backend.h"
#endif

namespace nanovllm::test {

// A way to make a backend.
struct BackendCase {
  std::string name;
  std::function<std::unique_ptr<Backend>(int num_threads)> make;
  // Rows never depend on their batch mates, to the last bit.
  bool is_deterministic = true;
};
inline void PrintTo(const BackendCase& c, std::ostream* out) { *out << c.name; }

// The sets that a sanitizer gets. Tests of whole models leave out what the op tests try with more
// shapes.
enum class SanitizedIsas { kAll, kFirstAndLast, kLast };

// Threads are the same with every set, and cpu/linear_test has them with all.
inline constexpr SanitizedIsas kIsasOfOps =
    kUnderThreadSanitizer ? SanitizedIsas::kFirstAndLast : SanitizedIsas::kAll;

inline std::vector<BackendCase> backends(SanitizedIsas sanitized = kIsasOfOps) {
  std::vector<BackendCase> cases;
  std::vector<Isa> isas = available_isas();
  if (kUnderSanitizer && sanitized == SanitizedIsas::kLast) isas = {isas.back()};
  if (kUnderSanitizer && sanitized == SanitizedIsas::kFirstAndLast && isas.size() > 2) {
    isas = {isas.front(), isas.back()};
  }
  for (const Isa isa : isas) {
    cases.push_back({std::string("cpu_") + to_string(isa), [isa](int threads) {
                       return std::make_unique<CpuBackend>(CpuOptions{threads, isa});
                     }});
  }
#ifdef NANOVLLM_WITH_CUDA
  for (const bool deterministic : {false, true}) {
    cases.push_back({deterministic ? "cuda_deterministic" : "cuda",
                     [deterministic](int) {
                       return std::make_unique<CudaBackend>(CudaOptions{0, deterministic});
                     },
                     deterministic});
  }
#endif
  return cases;
}

}  // namespace nanovllm::test
