// nanovllm._engine: what the Python package nanovllm stands on.
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include "base/version.h"
#include "convert.h"
#include "nanovllm/chat.h"
#include "owner.h"

namespace nanovllm::python {
namespace {

PyObject* exception_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kCorruptData:
    case ErrorCode::kUnsupported:
      return PyExc_ValueError;
    case ErrorCode::kNotFound:
      return PyExc_FileNotFoundError;
    case ErrorCode::kOutOfMemory:
      return PyExc_MemoryError;
    case ErrorCode::kIo:
      return PyExc_OSError;
    case ErrorCode::kInternal:
    case ErrorCode::kUnavailable:
      return PyExc_RuntimeError;
  }
  return PyExc_RuntimeError;
}

void translate(const std::exception_ptr& exception, void* /*payload*/) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    PyErr_SetString(exception_of(error.code()), error.what());
  }
}

std::string render(const ChatTemplate& self, nb::handle messages, nb::handle tools,
                   bool add_generation_prompt, nb::handle kwargs) {
  return self.render(to_json(messages), to_json(tools), add_generation_prompt, to_json(kwargs));
}

}  // namespace

NB_MODULE(_engine, module) {
  nb::set_leak_warnings(false);  // programs may end with engines in their global variables
  nb::register_exception_translator(translate);
  module.attr("__version__") = std::string(kVersion);
  nb::class_<ChatTemplate>(module, "ChatTemplate")
      .def_static("load", &ChatTemplate::load)
      .def_static("from_source",
                  [](const std::string& source, const std::string& model) {
                    return ChatTemplate::from_source(source, model);
                  })
      .def("render", render, nb::arg("messages"), nb::arg("tools").none(),
           nb::arg("add_generation_prompt"), nb::arg("kwargs"));
  module.def("end_calls", &Unlocked::end);
  bind_params(module);
  bind_engine(module);
  bind_loop(module);
}

}  // namespace nanovllm::python
