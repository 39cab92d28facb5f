// What holds an engine in the process that loaded it, and what Python sees of all kinds of them.
#pragma once

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "convert.h"

namespace nanovllm::python {

// A child of fork() has none of the engine's threads: it can neither use nor destroy it, so that it
// leaves it where it is.
template <typename T>
class Owner {
 public:
  Owner() = default;
  ~Owner() {
    if (is_elsewhere()) static_cast<void>(value_.release());
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  void set(std::unique_ptr<T> value) {
    value_ = std::move(value);
    process_ = getpid();
  }
  // Others may run meanwhile, but for them it is gone at once.
  void close() {
    if (!is_open()) return;
    std::unique_ptr<T> last = std::move(value_);
    const nb::gil_scoped_release release;
    last.reset();
  }
  bool is_open() const { return value_ != nullptr && !is_elsewhere(); }
  // Throws Error(kUnavailable), a RuntimeError, where it can't be used.
  T& get() const {
    if (is_elsewhere()) {
      throw_error(ErrorCode::kUnavailable,
                  "An engine can't be used in a forked child of its process; load one there, or "
                  "start the child with multiprocessing's \"spawn\".");
    }
    if (!value_) throw_error(ErrorCode::kUnavailable, "The engine was closed.");
    return *value_;
  }
  T* operator->() const { return value_.get(); }

 private:
  bool is_elsewhere() const { return value_ != nullptr && process_ != getpid(); }

  std::unique_ptr<T> value_;
  pid_t process_ = 0;
};

// The class `Core`, whose get() is an engine that can be used or throws, with what all have.
template <typename Core>
nb::class_<Core> bind_core(nb::module_& module, const char* name) {
  return nb::class_<Core>(module, name)
      .def(nb::init<const std::string&, const EngineConfig&>())
      .def("default_sampling_params",
           [](const Core& self) { return self.get().default_sampling_params(); })
      .def("encode",
           [](const Core& self, nb::handle text, bool add_special_tokens) {
             return self.get().encode(to_text(text), add_special_tokens);
           })
      .def("decode",
           [](const Core& self, nb::handle ids, bool skip_special_tokens) {
             return self.get().decode(to_token_ids(ids), skip_special_tokens);
           })
      .def("info", [](const Core& self) { return to_python(self.get().info()); })
      .def("close", &Core::close);
}

}  // namespace nanovllm::python
