// Errors for users, checks for ourselves.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "base/assert.h"
#include "nanovllm/error.h"

namespace nanovllm {

// throw_error(ErrorCode::kNotFound, "{}: no such folder", path)
template <typename... Args>
[[noreturn]] void throw_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace nanovllm
