// What tests that read files share: safetensors files made on the spot, temporary folders.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "io/temp_dir_testing.h"
#include "nanovllm/error.h"

namespace nanovllm::testing {

// A safetensors file: the length of the header, the header, the data.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes.push_back(static_cast<char>(uint64_t{header.size()} >> (8 * i)));
  }
  return bytes.append(header).append(data);
}

// The error a call throws. A call that does not throw is a failure of the test.
template <typename Call>
Error error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no Error was thrown";
  return Error(ErrorCode::kInternal, "no error");
}

}  // namespace nanovllm::testing
