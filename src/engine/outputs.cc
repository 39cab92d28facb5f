#include "nanovllm/outputs.h"

namespace nanovllm {

const char* to_string(FinishReason reason) {
  constexpr const char* kNames[] = {"", "stop", "length", "abort"};
  return kNames[static_cast<int>(reason)];
}

}  // namespace nanovllm
