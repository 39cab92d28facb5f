// The errors that calls are answered with, as vLLM writes them.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "nanovllm/error.h"

namespace nanovllm::server {

// A call that is answered with an error. what() is one sentence.
class ApiError : public std::runtime_error {
 public:
  ApiError(int status, const std::string& message, std::string param = {})
      : std::runtime_error(message), status_(status), param_(std::move(param)) {}
  int status() const noexcept { return status_; }
  const std::string& param() const noexcept { return param_; }  // the field; empty = none

 private:
  int status_;
  std::string param_;
};

int status_of(ErrorCode code);
// {"error": {message, type, param, code}}
// The type is the one that goes with the status unless it is given.
std::string error_body(int status, const std::string& message, const std::string& param = "",
                       const std::string& type = "");

}  // namespace nanovllm::server
