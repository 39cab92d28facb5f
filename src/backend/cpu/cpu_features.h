// Which instruction sets the kernels may use on this machine.
#pragma once

#include <string>

#include "backend/cpu/isa.h"

namespace nanovllm {

// "portable", "avx2", "avx512", "avx512_bf16", "amx": for people and for NANOVLLM_CPU_ISA.
const char* to_string(Isa isa);
// Throws Error(kInvalidArgument) that names the values there are.
Isa parse_isa(const std::string& name);

// The best that processor and operating system support (CPUID, XGETBV; for AMX the kernel's
// permission to use tiles, which this asks for). Found out once; thread-safe.
Isa detected_isa();

// The detected instruction set, or the one the environment variable NANOVLLM_CPU_ISA names if that
// is lower (a higher one is not an error: the variable can only lower it). Throws
// Error(kInvalidArgument) for an unknown value.
Isa default_isa();

}  // namespace nanovllm
