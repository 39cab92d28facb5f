// Which instruction sets there are to test.
#pragma once

#include <vector>

#include "backend/cpu/cpu_features.h"

namespace nanovllm {

// Every Isa up to the detected one, lowest first.
inline std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (int isa = 0; isa <= static_cast<int>(detected_isa()); ++isa) {
    isas.push_back(static_cast<Isa>(isa));
  }
  return isas;
}

}  // namespace nanovllm
