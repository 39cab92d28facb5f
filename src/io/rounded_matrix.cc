#include "io/rounded_matrix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "io/coded_matrix.h"

namespace nanovllm {
namespace {

constexpr float kLargestFp8 = 448, kLargestHalf = 65504;
// Of numbers that are less, differences and codes times scales are finite.
constexpr float kTooLarge = 0x1p126f;
constexpr int64_t kGroup = RoundedMatrix::kGroupColumns;

// To the nearest integer, ties to even; of numbers below 2^22 in magnitude. Unlike a call of
// rint() it is done to many at a time on any instruction set.
constexpr float kIntegers = 0x1.8p23f;
float nearest(float number) { return number + kIntegers - kIntegers; }

// std::clamp() has a comparison that depends on another one, which compilers leave as it is.
float clamp(float number, float low, float high) { return std::min(std::max(number, low), high); }

// The code of the nearest E4M3, ties to even; numbers too large become the largest.
uint8_t nearest_fp8(float number) {
  const float magnitude = std::min(std::abs(number), kLargestFp8);
  uint32_t code = 0;
  if (magnitude < 0x1p-6f) {
    code = static_cast<uint32_t>(nearest(magnitude * 0x1p9f));
  } else {
    const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
    code = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120 << 3);
  }
  return static_cast<uint8_t>(code | (std::signbit(number) ? 0x80 : 0));
}

float largest_of(const float* numbers, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(numbers[i]));
  return largest;
}

// Integers that numbers of a group become, [kGroup] as floats.
void round_group(const float* numbers, float scale, float low, float high, float* out) {
  const float factor = scale == 0 ? 0 : 1 / scale;
  for (int64_t i = 0; i < kGroup; ++i) out[i] = nearest(clamp(numbers[i] * factor, low, high));
}

// Sums in an order that does not depend on the instruction set.
template <typename Term>
float sum_of_group(Term term) {
  std::array<float, 8> sums{};
  for (int64_t i = 0; i < kGroup; i += 8) {
    for (int64_t j = 0; j < 8; ++j) sums[static_cast<size_t>(j)] += term(i + j);
  }
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

constexpr float kMost4 = 15;  // of 4 bits

const float* values_of(RoundedFormat format) {
  switch (format) {
    case RoundedFormat::kInt8:
      return kSignedCodes.data();
    case RoundedFormat::kInt4:
      return kUnsignedCodes.data();
    case RoundedFormat::kFp8:
      return kFp8Codes.data();
  }
  return nullptr;
}

}  // namespace

std::optional<RoundedFormat> parse_rounded_format(std::string_view name) {
  if (name == "int8") return RoundedFormat::kInt8;
  if (name == "int4") return RoundedFormat::kInt4;
  if (name == "fp8") return RoundedFormat::kFp8;
  return std::nullopt;
}

RoundedMatrix::RoundedMatrix(std::string place, const Numbers& numbers, RoundedFormat format)
    : place_(std::move(place)), numbers_(numbers), format_(format) {
  NANOVLLM_CHECK(can_round(format, numbers.cols));
  const bool is_int4 = format == RoundedFormat::kInt4, is_fp8 = format == RoundedFormat::kFp8;
  const bool is_half = numbers.dtype == DType::kFloat16;
  layout_ = {.layout = is_int4 ? WeightLayout::kGroup : WeightLayout::kByte,
             .code_bits = is_int4 ? 4 : 8,
             .values = values_of(format),
             .group_columns = is_fp8 ? numbers.cols : kGroup,
             .scales = is_half ? ScaleKind::kFloat16 : ScaleKind::kBFloat16,
             .offset = is_int4 ? CodeFormat::Offset::kZero : CodeFormat::Offset::kNone};
  if (is_fp8) row_scales_ = std::vector<std::atomic<float>>(static_cast<size_t>(numbers.rows));
  std::ranges::fill(row_scales_, kUnknown);
}

float RoundedMatrix::to_scale(float number) const {
  if (number < 0x1p-120f) return 0;  // a float32 must hold its reciprocal
  if (layout_.scales == ScaleKind::kBFloat16) return to_float(to_bfloat16(number));
  return half_to_float(float_to_half(std::min(number, kLargestHalf)));
}

void RoundedMatrix::read_numbers(int64_t row, int64_t col, int64_t count, float* out) const {
  if (numbers_.decoder != nullptr) {
    numbers_.decoder->decode(row, col, count, out);
  } else {
    const auto* data = static_cast<const std::byte*>(numbers_.data) +
                       (row * numbers_.cols + col) * static_cast<int64_t>(size_of(numbers_.dtype));
    const auto read = [&](auto type, auto to_number) {
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(&type, data + i * static_cast<int64_t>(sizeof type), sizeof type);
        out[i] = to_number(type);
      }
    };
    if (numbers_.dtype == DType::kFloat32) {
      read(float(), [](float number) { return number; });
    } else if (numbers_.dtype == DType::kBFloat16) {
      read(BFloat16(), [](BFloat16 number) { return to_float(number); });
    } else {
      read(uint16_t(), half_to_float);
    }
  }
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(out[i]) & 0x7fffffff);
  }
  if (largest < std::bit_cast<uint32_t>(kTooLarge)) return;
  throw_error(ErrorCode::kCorruptData,
              "{}: row {} has a number that is {}; download the file again, or use the model "
              "without rounding it",
              place_, row, largest < 0x7f800000 ? "too large to be rounded" : "NaN or infinite");
}

float RoundedMatrix::scale_of_row(int64_t row) const {
  std::atomic<float>& known = row_scales_[static_cast<size_t>(row)];
  if (const float scale = known.load(std::memory_order_relaxed); scale != kUnknown) return scale;
  std::vector<float> numbers(static_cast<size_t>(numbers_.cols));
  read_numbers(row, 0, numbers_.cols, numbers.data());
  const float scale = to_scale(largest_of(numbers.data(), numbers_.cols) / kLargestFp8);
  known.store(scale, std::memory_order_relaxed);
  return scale;
}

RoundedMatrix::Step RoundedMatrix::step_of(int64_t row, const float* numbers) const {
  switch (format_) {
    case RoundedFormat::kInt8:
      return {.scale = to_scale(largest_of(numbers, kGroup) / 127)};
    case RoundedFormat::kInt4:
      return best_step(numbers);
    case RoundedFormat::kFp8:
      return {.scale = scale_of_row(row)};
  }
  return {};
}

// The one of several with the least squared error: steps a little smaller than what the largest and
// the least number need are nearer to the others, and so is the scale that fits the integers best.
RoundedMatrix::Step RoundedMatrix::best_step(const float* numbers) const {
  float low = 0, high = 0;  // zero is always among what the codes stand for
  for (int64_t i = 0; i < kGroup; ++i) {
    low = std::min(low, numbers[i]);
    high = std::max(high, numbers[i]);
  }
  const float range = high - low;
  // Squares and sums are of numbers times a power of two, at which the range is between 1 and 2.
  const uint32_t exponent = std::bit_cast<uint32_t>(range) >> 23;
  const float to_one = std::bit_cast<float>((254 - exponent) << 23);
  const float from_one = std::bit_cast<float>(exponent << 23);
  Step best;
  float least_error = INFINITY, integers[kGroup];
  const auto consider = [&](float scale, float zero) {
    const Step step = {scale, clamp(zero, 0, kMost4)};
    round_group(numbers, scale, -step.zero, kMost4 - step.zero, integers);
    const float error = sum_of_group([&](int64_t i) {
      const float missed = (numbers[i] - scale * integers[i]) * to_one;
      return missed * missed;
    });
    if (error >= least_error) return;
    least_error = error;
    best = step;
  };
  for (const float steps : {15.0f, 14.3f, 13.6f, 12.9f}) {
    const float scale = to_scale(range / steps);
    if (scale == 0) return best;
    consider(scale, nearest(-low / scale - (kMost4 - steps) / 2));
  }
  for (int round = 0; round < 2; ++round) {
    const Step middle = best;
    consider(middle.scale, middle.zero - 1);
    consider(middle.scale, middle.zero + 1);
    round_group(numbers, best.scale, -best.zero, kMost4 - best.zero, integers);
    const float product =
        sum_of_group([&](int64_t i) { return numbers[i] * to_one * integers[i]; });
    const float square = sum_of_group([&](int64_t i) { return integers[i] * integers[i]; });
    const float fitted = to_scale(product / square * from_one);
    if (fitted > 0) consider(fitted, best.zero);
  }
  return best;
}

// use(numbers, step, first, last, offset, group): elements [first, last) of a group's numbers are
// [offset, ...) of those asked for, and their scale is number `group` of these. A row with one
// scale is used in pieces as long as groups.
template <typename Use>
void RoundedMatrix::for_each_group(int64_t row, int64_t col, int64_t count, Use use) const {
  float numbers[kGroup];
  const int64_t first_group = format_ == RoundedFormat::kFp8 ? 0 : col / kGroup;
  for (int64_t done = 0; done < count;) {
    const int64_t begin = (col + done) / kGroup * kGroup;
    const int64_t size = std::min(kGroup, numbers_.cols - begin);
    read_numbers(row, begin, size, numbers);
    const int64_t first = col + done - begin, last = std::min(size, col + count - begin);
    const int64_t group = format_ == RoundedFormat::kFp8 ? 0 : begin / kGroup - first_group;
    use(numbers, step_of(row, numbers), first, last, done, group);
    done += last - first;
  }
}

// Elements [first, last) of a group's numbers.
void RoundedMatrix::round(const float* numbers, const Step& step, int64_t first, int64_t last,
                          uint8_t* out) const {
  if (format_ == RoundedFormat::kFp8) {
    const float factor = step.scale == 0 ? 0 : 1 / step.scale;
    for (int64_t i = first; i < last; ++i) *out++ = nearest_fp8(numbers[i] * factor);
    return;
  }
  const bool is_int4 = format_ == RoundedFormat::kInt4;
  const float low = is_int4 ? -step.zero : -127, high = is_int4 ? kMost4 - step.zero : 127;
  float integers[kGroup];
  round_group(numbers, step.scale, low, high, integers);
  for (int64_t i = first; i < last; ++i) {
    *out++ = static_cast<uint8_t>(static_cast<int>(integers[i] + step.zero));
  }
}

void RoundedMatrix::read_codes(int64_t row, int64_t col, int64_t count, uint8_t* out) const {
  for_each_group(row, col, count,
                 [&](const float* numbers, const Step& step, int64_t first, int64_t last,
                     int64_t offset, int64_t) { round(numbers, step, first, last, out + offset); });
}

void RoundedMatrix::read_scales(int64_t row, int64_t first, int64_t count, GroupScale* out) const {
  // Of a row with one scale, the first columns will do.
  const bool is_fp8 = format_ == RoundedFormat::kFp8;
  const int64_t cols = is_fp8 ? std::min(count, numbers_.cols) : count * kGroup;
  for_each_group(row, first * kGroup, cols,
                 [&](const float*, const Step& step, int64_t, int64_t, int64_t, int64_t group) {
                   out[group] = {.scale = step.scale, .offset = step.zero};
                 });
}

void RoundedMatrix::read_codes_and_scales(int64_t row, int64_t col, int64_t count, uint8_t* codes,
                                          GroupScale* scales) const {
  for_each_group(row, col, count,
                 [&](const float* numbers, const Step& step, int64_t first, int64_t last,
                     int64_t offset, int64_t group) {
                   round(numbers, step, first, last, codes + offset);
                   scales[group] = {.scale = step.scale, .offset = step.zero};
                 });
}

void RoundedMatrix::decode(int64_t row, int64_t col, int64_t count, float* out) const {
  for_each_group(row, col, count,
                 [&](const float* numbers, const Step& step, int64_t first, int64_t last,
                     int64_t offset, int64_t) {
                   uint8_t codes[kGroup];
                   round(numbers, step, first, last, codes);
                   for (int64_t i = 0; i < last - first; ++i) {
                     out[offset + i] = (layout_.values[codes[i]] - step.zero) * step.scale;
                   }
                 });
}

}  // namespace nanovllm
