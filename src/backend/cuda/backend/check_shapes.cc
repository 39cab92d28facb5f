#include "backend/cuda/backend/check_shapes.h"

#include "backend/cuda/device/kv_layout.cuh"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/layer/row_kernels.h"
#include "backend/cuda/recurrent/delta_layout.h"
#include "base/check.h"

namespace nanovllm::cuda {
namespace {

[[noreturn]] void refuse(const std::string& device, int size, const char* what,
                         const std::string& most) {
  throw_error(ErrorCode::kUnsupported,
              "{}: {} {}; at most {} are supported here, use the device cpu", device, size, what,
              most);
}

void check_heads(const Attention& core, const std::string& device) {
  if (core.head_dim <= kMaxHeadDim && core.head_dim % kHeadVector == 0) return;
  refuse(device, core.head_dim, "elements a head of attention",
         fmt::format("{}, in multiples of {},", kMaxHeadDim, kHeadVector));
}

void check_heads(const GatedDelta& core, const std::string& device) {
  const auto check = [&](int size, const char* what, int most) {
    if (size > most) refuse(device, size, what, std::to_string(most));
  };
  check(core.key_dim, "elements a key of recurrent layers", kMaxStateKeyDim);
  check(core.value_dim, "elements a value of recurrent layers", kMaxStateValueDim);
  check(core.conv_width, "rows a convolution of recurrent layers", kMaxConvWidth);
}

}  // namespace

void check_shapes(const StackSpec& spec, const std::string& device) {
  const bool is_aligned = spec.hidden_size % 4 == 0;
  const int most = is_aligned ? kMaxNormSize : kMaxUnalignedNormSize;
  if (spec.hidden_size > most) {
    refuse(device, spec.hidden_size, "elements a hidden state",
           fmt::format("{}{}", most, is_aligned ? "" : " that are no multiple of 4"));
  }
  for (const LayerSpec& layer : spec.layers) {
    std::visit([&](const auto& core) { check_heads(core, device); }, layer.core);
    const auto* experts = std::get_if<Experts>(&layer.ffn);
    if (experts != nullptr && experts->router.out_features() > kMaxExperts) {
      refuse(device, static_cast<int>(experts->router.out_features()), "experts a layer",
             std::to_string(kMaxExperts));
    }
  }
}

}  // namespace nanovllm::cuda
