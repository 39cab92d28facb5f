// The exception of this library.
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
  kUnavailable,      // an engine that is shutting down, or a hub that can't be reached
};

// What public functions throw, except std::bad_alloc and what a callback threw. what() is one
// sentence for users: what went wrong, where, and what was expected.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace nanovllm
