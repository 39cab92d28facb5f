// What a template can fail with, in Python's terms: some of Jinja's rules depend on the class of an
// error.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace nanovllm::jinja {

enum class Fault {
  kSyntax,       // the template does not parse or compile
  kType,         // Python's TypeError
  kValue,        // ValueError
  kLookup,       // KeyError and IndexError
  kOverflow,     // OverflowError, and integers beyond 64 bits
  kArithmetic,   // ZeroDivisionError
  kUndefined,    // UndefinedError
  kSecurity,     // SecurityError: the sandbox forbids it
  kRuntime,      // TemplateRuntimeError and FilterArgumentError
  kRaised,       // raise_exception()
  kLimit,        // time, depth, memory or output exhausted
  kUnsupported,  // valid in Jinja, but not here
};

// Thrown while lexing, parsing and rendering. Where it happened is known to whoever catches it: the
// interpreter and the parser keep the position of the node in hand.
class Failure : public std::runtime_error {
 public:
  Failure(Fault fault, const std::string& message) : std::runtime_error(message), fault_(fault) {}
  Fault fault() const noexcept { return fault_; }

 private:
  Fault fault_;
};

template <typename... Args>
[[noreturn]] void fail(Fault fault, fmt::format_string<Args...> format, Args&&... args) {
  throw Failure(fault, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace nanovllm::jinja
