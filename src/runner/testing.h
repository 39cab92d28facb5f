// What tests of runners share.
#pragma once

#include <string>

namespace nanovllm::test {

inline constexpr int kBlockSize = 16;  // tokens

// The folder of a checkpoint of tests/goldens.
inline std::string golden(const std::string& name) {
  return std::string(NANOVLLM_SOURCE_DIR) + "/tests/goldens/" + name;
}

}  // namespace nanovllm::test
