// The activations of gated MLPs in float32, exact to a few units in the last place.
#pragma once

#include <cmath>

#include "backend/cuda/device/device.cuh"
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

// activation(gate) * up, or what Activation says where that is not all.
template <Activation kActivation>
__device__ inline float gate_and_mul(float gate, float up) {
  if constexpr (kActivation == Activation::kClampedSwiglu) {
    gate = fminf(gate, 7.f);
    return gate / (1.f + expf(-1.702f * gate)) * (fminf(fmaxf(up, -7.f), 7.f) + 1.f);
  } else {
    return activate<kActivation>(gate) * up;
  }
}

__device__ inline float gate_and_mul(Activation activation, float gate, float up) {
  switch (activation) {
    case Activation::kSilu:
      return gate_and_mul<Activation::kSilu>(gate, up);
    case Activation::kGelu:
      return gate_and_mul<Activation::kGelu>(gate, up);
    case Activation::kGeluTanh:
      return gate_and_mul<Activation::kGeluTanh>(gate, up);
    case Activation::kClampedSwiglu:
      return gate_and_mul<Activation::kClampedSwiglu>(gate, up);
  }
  return 0;
}

// g / (1 + exp(-g (slope + cube g^2))) * (u + shift), where g = min(gate, limit) and u = up within
// -limit .. limit: every activation but kGelu, good for a result that becomes bfloat16, in few
// instructions, which a block runs through once a tile and so has to fetch.
struct Gating {
  float slope = 1, cube = 0, shift = 0, limit = INFINITY;

  __host__ __device__ explicit Gating(Activation activation) {
    if (activation == Activation::kGeluTanh) {
      slope = 1.5957691216f;
      cube = 0.0713548163f;
    }
    if (activation == Activation::kClampedSwiglu) {
      slope = 1.702f;
      shift = 1;
      limit = 7;
    }
  }
  __device__ float operator()(float gate, float up) const {
    const float g = fminf(gate, limit), u = fmaxf(fminf(up, limit), -limit);
    return __fdividef(g, 1.f + __expf(-g * (slope + cube * g * g))) * (u + shift);
  }
};

}  // namespace nanovllm::cuda
