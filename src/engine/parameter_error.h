// What is wrong with one parameter of a request.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/error.h"

namespace nanovllm {

class ParameterError : public Error {
 public:
  ParameterError(ErrorCode code, std::string_view parameter, const std::string& message)
      : Error(code, message), parameter_(parameter) {}
  // As APIs name it; empty = none.
  const std::string& parameter() const noexcept { return parameter_; }

 private:
  std::string parameter_;
};

template <typename... Args>
[[noreturn]] void refuse_parameter(std::string_view parameter, fmt::format_string<Args...> format,
                                   Args&&... args) {
  throw ParameterError(ErrorCode::kInvalidArgument, parameter,
                       fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace nanovllm
