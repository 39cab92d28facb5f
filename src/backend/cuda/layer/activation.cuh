// The activations of gated MLPs in float32, exact to a few units in the last place.
#pragma once

#include "backend/cuda/device.cuh"
#include "ops/backend.h"

namespace nanovllm::cuda {

template <Activation kActivation>
__device__ inline float activate(float x) {
  if constexpr (kActivation == Activation::kSilu) {
    return x / (1.f + expf(-x));
  } else if constexpr (kActivation == Activation::kGelu) {
    // erfc keeps its digits where 1 + erf would cancel.
    return 0.5f * x * erfcf(x * -0.70710678f);
  } else {
    // https://arxiv.org/abs/1606.08415, section 2, with (1 + tanh(y)) / 2 = 1 / (1 + exp(-2y)).
    return x / (1.f + expf(x * (-1.5957691216f - 0.0713548163f * x * x)));
  }
}

// Calls f.operator()<kActivation>().
template <typename F>
void with_activation(Activation activation, F&& f) {
  switch (activation) {
    case Activation::kSilu:
      return f.template operator()<Activation::kSilu>();
    case Activation::kGelu:
      return f.template operator()<Activation::kGelu>();
    case Activation::kGeluTanh:
      return f.template operator()<Activation::kGeluTanh>();
  }
}

}  // namespace nanovllm::cuda
