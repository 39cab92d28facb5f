// nanovllm._engine: what the Python package nanovllm stands on.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>

#include <atomic>
#include <stdexcept>
#include <utility>

#include "base/quantity.h"
#include "base/version.h"
#include "convert.h"
#include "nanovllm/chat.h"
#include "nanovllm/prepare.h"
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

// The text, and whether the tokenizer is to add special tokens.
std::pair<std::string, bool> render(const ChatTemplate& self, nb::handle messages, nb::handle tools,
                                    nb::handle kwargs, bool add_generation_prompt,
                                    bool continue_final_message) {
  ChatText chat = chat_text(self, to_json(messages), to_json(tools), to_json(kwargs),
                            {.add_generation_prompt = add_generation_prompt,
                             .continue_final_message = continue_final_message});
  return {std::move(chat.text), chat.add_special_tokens};
}

// Its classes are known to the process once, with what a second module would break.
void refuse_to_be_another() {
  static std::atomic<bool> is_there = false;
  if (is_there.exchange(true)) {
    throw std::runtime_error(
        "nanovllm is imported once in a process, and this one has it already: keep what the first "
        "import gave, or start another process.");
  }
}

}  // namespace

// PyInit__engine below is what Python calls.
#define PyInit__engine nanovllm_make_module
NB_MODULE(_engine, module) {
  refuse_to_be_another();
  find_classes();
  nb::set_leak_warnings(false);  // programs may end with engines in their global variables
  nb::register_exception_translator(translate);
  module.attr("__version__") = std::string(kVersion);
  nb::class_<ChatTemplate>(module, "ChatTemplate")
      .def_static("load", &ChatTemplate::load)
      .def_static("from_source",
                  [](const std::string& source, const std::string& model) {
                    return ChatTemplate::from_source(source, model);
                  })
      .def("render", render, nb::arg("messages"), nb::arg("tools").none(), nb::arg("kwargs"),
           nb::arg("add_generation_prompt"), nb::arg("continue_final_message"));
  module.def("end_calls", &Unlocked::end);
  module.def("parse_quantity", &parse_quantity, nb::arg("text"), nb::arg("is_bytes"));
  bind_params(module);
  bind_engine(module);
  bind_loop(module);
}
#undef PyInit__engine

}  // namespace nanovllm::python

// In front of nanobind's own, which a subinterpreter would have forget the main one.
extern "C" NB_EXPORT PyObject* PyInit__engine() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) {
    return nanovllm::python::nanovllm_make_module();
  }
  PyErr_SetString(PyExc_ImportError,
                  "nanovllm can't be imported in a subinterpreter: use it in the main one, or in "
                  "another process.");
  return nullptr;
}
