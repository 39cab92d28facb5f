// What this machine can do at most, measured.
#pragma once

#include <cstddef>

#include "backend/cpu/cpu_backend.h"

namespace nanovllm {

// Bytes a second that all threads of the backend read together from memory, streaming through
// huge pages that no cache can hold. Neighbours on the same machine make it swing: measure it
// beside what is compared with it. Takes some tenths of a second.
double read_bandwidth(CpuBackend& cpu);

// The same of one quick pass over a part of that memory, which takes some milliseconds.
double read_once(CpuBackend& cpu);

// Floating-point operations a second that all threads reach together with the multiply-add
// instruction of the backend's instruction set, on registers alone: for bfloat16 or float32
// weights. 0 where it is not known how to measure it.
double peak_flops(CpuBackend& cpu, DType weights);

}  // namespace nanovllm
