// The gated activation of an MLP.
#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/scalar.h"

namespace nanovllm {
namespace {

float activate(float x, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0f + std::exp(-x));
    case Activation::kGelu:
      return 0.5f * x * (1.0f + std::erf(x * 0.70710678f));
    case Activation::kGeluTanh:
      return 0.5f * x * (1.0f + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
  }
  return x;
}

}  // namespace

void CpuBackend::act_and_mul(Tensor out, Tensor gate_up, Activation activation) {
  const int64_t width = out.row_size();
  pool_.parallel_for(out.rows(), [&](int64_t t, int) {
    for (int64_t i = 0; i < width; ++i)
      store(out, t * width + i,
            activate(load(gate_up, 2 * t * width + i), activation) *
                load(gate_up, (2 * t + 1) * width + i));
  });
}

}  // namespace nanovllm
