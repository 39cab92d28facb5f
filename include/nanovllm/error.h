// The one exception type that reaches users.
#pragma once

#include <stdexcept>
#include <string>

namespace nanovllm {

enum class ErrorCode {
  kInvalidArgument,  // a parameter, flag or request that can't be served
  kNotFound,         // a file, folder or tensor that is not there
  kCorruptData,      // a file whose content is not what its format promises
  kUnsupported,      // valid, but not something this build can do
  kOutOfMemory,      // weights, KV cache or workspace do not fit
  kIo,               // the operating system refused a read or write
  kInternal,         // a bug of ours or a failing device
  kUnavailable,      // an engine that is shutting down
};

// Thrown by every public function that can fail. what() is one sentence that says what went wrong,
// where, and what was expected; it is meant to be shown as it is.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace nanovllm
