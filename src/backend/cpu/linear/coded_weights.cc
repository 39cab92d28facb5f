#include "backend/cpu/linear/coded_weights.h"

#include <cstring>

#include "backend/cpu/linear/linear_kernels.h"

namespace nanovllm {
namespace {

int exponent_at(const char* plain, int64_t index) {
  uint16_t word;
  std::memcpy(&word, plain + index * 2, sizeof word);
  return word >> 7 & 0xff;
}

// The exponent below the 15 that cover most of a sample of the weights; of neighbouring equals
// the middle one, because what the sample lacks may lie on both sides. Any choice is without loss.
int choose_base(const char* plain, int64_t num_weights) {
  constexpr int64_t kSamples = 4096;
  uint32_t counts[256] = {};
  // Odd, so that the sample goes through all columns.
  const int64_t stride = num_weights / kSamples | 1;
  for (int64_t i = 0; i < num_weights; i += stride) ++counts[exponent_at(plain, i)];
  int first = 0, last = 0;
  uint32_t covered = 0, most = 0;
  for (int top = 1; top < 256; ++top) {
    covered += counts[top];
    if (top > kCodedExponents) covered -= counts[top - kCodedExponents];
    const int base = top - kCodedExponents;
    if (base < 0) continue;
    if (covered > most) {
      most = covered;
      first = last = base;
    } else if (covered == most && base == last + 1) {
      last = base;
    }
  }
  return (first + last) / 2;
}

}  // namespace

int write_code_table(const char* plain, int64_t num_steps, char* coded) {
  const int base = choose_base(plain, num_steps * kPanelColumns * 2);
  uint16_t table[kCodeTableBytes / 2];
  for (int i = 0; i < kCodeTableBytes / 2; ++i) {
    const int code = i % (kCodedExponents + 1);
    table[i] = static_cast<uint16_t>(code == 0 ? 0 : (base + code) << 7);
  }
  std::memcpy(coded, table, sizeof table);
  return base;
}

}  // namespace nanovllm
