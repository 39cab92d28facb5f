#include "backend/cuda/backend/check_shapes.h"

#include "backend/cuda/device/kv_layout.cuh"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/layer/row_kernels.h"
#include "base/check.h"

namespace nanovllm::cuda {
namespace {

[[noreturn]] void refuse(const std::string& device, int size, const char* what,
                         const std::string& most) {
  throw_error(ErrorCode::kUnsupported,
              "{}: {} {}; at most {} are supported here, use the device cpu", device, size, what,
              most);
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
    const auto* core = std::get_if<Attention>(&layer.core);
    if (core == nullptr || core->has_gate) {
      throw_error(ErrorCode::kUnsupported,
                  "{}: recurrent layers and gates of attention are not supported here yet, use the "
                  "device cpu",
                  device);
    }
    const int dim = core->head_dim;
    if (dim > kMaxHeadDim || dim % kHeadVector != 0) {
      refuse(device, dim, "elements a head of attention",
             fmt::format("{}, in multiples of {},", kMaxHeadDim, kHeadVector));
    }
    const auto* experts = std::get_if<Experts>(&layer.ffn);
    if (experts != nullptr && experts->router.out_features() > kMaxExperts) {
      refuse(device, static_cast<int>(experts->router.out_features()), "experts a layer",
             std::to_string(kMaxExperts));
    }
  }
}

}  // namespace nanovllm::cuda
