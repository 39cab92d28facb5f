// What kernels know of codes when they are compiled, so that few instructions stand between codes
// and tensor cores, and a tile's groups by it.
#pragma once

#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/linear/code_fragments.cuh"

namespace nanovllm::cuda {

template <CodeKind kKind_, ScaleKind kScales_, Scaling kScaling_, int kSteps_, bool kIsSuper_>
struct CodeForm {
  static constexpr CodeKind kKind = kKind_;
  static constexpr ScaleKind kScales = kScales_;
  static constexpr Scaling kScaling = kScaling_;
  static constexpr int kSteps = kSteps_;  // whose sums are scaled at once
  static constexpr bool kIsSuper = kIsSuper_;
  static constexpr bool kHasOffsets = kScaling == Scaling::kTaken || kScaling == Scaling::kAdded;
  static constexpr int kNumberBytes = kScales == ScaleKind::kFloat32 ? 4 : 2;
};

// Calls f.operator()<Form>() for the form of the codes of this kind, if there are kernels for it.
template <CodeKind kKind, typename F>
void with_form(const CodeShape& shape, F&& f) {
  using enum ScaleKind;
  using enum Scaling;
  with_constant<kFloat16, kBFloat16, kFloat32>(form_scales(shape), [&]<ScaleKind kScales>() {
    with_constant<kNone, kScale, kTaken, kAdded>(scaling_of(shape), [&]<Scaling kScaling>() {
      with_constant<1, 2, 4>(form_steps(shape), [&]<int kSteps>() {
        with_constant<false, true>(shape.is_super, [&]<bool kIsSuper>() {
          if constexpr (has_form(kKind, kScales, kScaling, kSteps, kIsSuper)) {
            f.template operator()<CodeForm<kKind, kScales, kScaling, kSteps, kIsSuper>>();
          } else {
            NANOVLLM_CHECK(!"a kernel that was planned");
          }
        });
      });
    });
  });
}

// A warp's number, in a way that the compiler sees that all lanes agree.
__device__ inline int uniform_warp() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
}

// Two signed bytes, exactly.
__device__ inline float2 to_floats(uint32_t pair) {
  const uint32_t raised = pair ^ 0x8080u;
  constexpr uint32_t kTwoTo23 = 0x4b000000u;
  constexpr float kRaised = 8388608.f + 128.f;
  return {__uint_as_float(__byte_perm(raised, kTwoTo23, 0x7540)) - kRaised,
          __uint_as_float(__byte_perm(raised, kTwoTo23, 0x7541)) - kRaised};
}

// Blocks of codes in shared memory, a group of Form::kSteps steps at a time.
template <typename Form>
class TileDecoder {
 public:
  // `pair_table`: see fill_pair_table(), of a format with a table.
  __device__ TileDecoder(const CodeShape& shape, const uint32_t* pair_table) : shape_(shape) {
    values_.pairs = pair_table + threadIdx.x % kTableCopies;
    set_taken(values_, {0, 0});
  }

  // Before a block's groups.
  __device__ void begin_block(const char* block) {
    if constexpr (Form::kIsSuper) {
      super_scale_ = load_scale(Form::kScales, block, row_pair());
      super_scale_.y *= upper_unit(Form::kKind);
      if constexpr (Form::kHasOffsets) {
        super_offset_ = load_scale(Form::kScales, block, 8 + row_pair());
      }
    }
  }

  // The operands of the group that begins at this step of a unit, and what its sums are scaled
  // with.
  __device__ PairOfScales decode(uint32_t (&a)[Form::kSteps][4], const char* block, int unit,
                                 int step) const {
    const PairOfScales scales = scales_of(block, (unit * kUnitSteps + step) * 16);
    CodeValues values = values_;
    if constexpr (Form::kScaling == Scaling::kTaken) {
      set_taken(values, scales.offset);
    }
    const char* const codes = block + shape_.header_bytes + unit * unit_bytes_of(Form::kKind);
    load_codes<Form::kKind, Form::kSteps>(a, codes, step, values);
    return scales;
  }

 private:
  __device__ static int row_pair() { return static_cast<int>(threadIdx.x) % 32 / 4; }

  __device__ void set_taken(CodeValues& values, float2 taken) const {
    const uint2 added = added_to_codes<Form::kKind>(shape_, taken);
    values.added[0] = added.x;
    values.added[1] = added.y;
  }

  __device__ PairOfScales scales_of(const char* block, int column) const {
    PairOfScales got;
    if constexpr (Form::kScaling == Scaling::kNone) return got;
    constexpr int kParts = Form::kHasOffsets ? 2 : 1;
    const int shift = Form::kSteps == 4 ? shape_.group_shift : Form::kSteps == 2 ? 5 : 4;
    const int at = (column >> shift) * 8 + row_pair();
    if constexpr (Form::kIsSuper) {
      const auto* const codes =
          reinterpret_cast<const uint16_t*>(block + kParts * kTileRows * Form::kNumberBytes);
      const float2 t = to_floats(codes[at]);
      got.scale = {super_scale_.x * t.x, super_scale_.y * t.y};
      if constexpr (Form::kHasOffsets) {
        const float2 n = to_floats(codes[(kBlockColumns * 8 >> shift) + at]);
        got.offset = {super_offset_.x * -n.x, super_offset_.y * -n.y};
      }
    } else {
      got.scale = load_scale(Form::kScales, block, at);
      if constexpr (Form::kHasOffsets) {
        got.offset = load_scale(
            Form::kScales, block + (kBlockColumns * kTileRows >> shift) * Form::kNumberBytes, at);
        if (Form::kKind == CodeKind::kInt8) {
          got.offset = {-got.scale.x * got.offset.x, -got.scale.y * got.offset.y};
        }
      }
      got.scale.y *= upper_unit(Form::kKind);
    }
    return got;
  }

  const CodeShape& shape_;
  CodeValues values_;
  float2 super_scale_ = {}, super_offset_ = {};
};

}  // namespace nanovllm::cuda
