// What the fuzz targets share: what may be thrown, and what ends the run as a finding.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "nanovllm/error.h"
#include "text/utf8.h"

namespace nanovllm::fuzzing {

// A promise that did not hold; libFuzzer keeps the input.
inline void require(bool holds, std::string_view promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %.*s\n", static_cast<int>(promise.size()), promise.data());
  std::abort();
}

// Runs `call`, which may refuse its input, but with an Error of one line of UTF-8 only that blames
// no bug of ours. Any other exception ends the run.
template <typename Call>
void run_or_refuse(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string_view message = error.what();
    require(error.code() != ErrorCode::kInternal, message);
    require(message.find('\n') == std::string_view::npos, message);
    require(text::find_invalid_utf8(message) == message.size(), message);
  }
}

inline std::string_view as_text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace nanovllm::fuzzing
