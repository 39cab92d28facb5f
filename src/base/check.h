// Errors for users, checks for ourselves.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "nanovllm/error.h"

namespace nanovllm {

// throw_error(ErrorCode::kNotFound, "{}: no such folder", path)
template <typename... Args>
[[noreturn]] void throw_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace nanovllm

// For bugs of ours only: prints the condition and aborts. Bad input throws Error instead.
#define NANOVLLM_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::nanovllm::check_failed(#condition, __FILE__, __LINE__))
