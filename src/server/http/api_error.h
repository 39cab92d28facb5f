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
  ApiError(int status, const std::string& message, std::string param = {}, std::string code = {})
      : std::runtime_error(message),
        status_(status),
        param_(std::move(param)),
        code_(std::move(code)) {}
  int status() const noexcept { return status_; }
  const std::string& param() const noexcept { return param_; }  // the field; empty = none
  // What programs know it by, in APIs that say so; empty = by nothing but its status.
  const std::string& code() const noexcept { return code_; }

 private:
  int status_;
  std::string param_, code_;
};

// What an answer says that is an error, for APIs that write it in another form.
struct ErrorWords {
  std::string message = {}, param = {}, code = {};  // as ApiError's
};

int status_of(ErrorCode code);
const char* type_of(int status);                                             // "BadRequestError"
inline constexpr const char* kUnauthorized = R"({"error":"Unauthorized"})";  // body of a 401
// {"error": {message, type, param, code}}
// Type and code are those that go with the status unless they are given.
std::string error_body(int status, const std::string& message, const std::string& param = "",
                       const std::string& type = "", const std::string& code = "");

}  // namespace nanovllm::server
