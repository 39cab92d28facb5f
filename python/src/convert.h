// Values of Python as the engine's, and back; and the parts of the module. All functions need the
// GIL.
#pragma once

#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "nanovllm/llm_engine.h"

namespace nanovllm::python {

namespace nb = nanobind;

// Throws an exception of Python.
template <typename... Args>
[[noreturn]] void refuse(nb::exception_type type, fmt::format_string<Args...> format,
                         Args&&... args) {
  throw nb::builtin_exception(type, fmt::format(format, std::forward<Args>(args)...).c_str());
}

// A str in UTF-8. Throws TypeError where it is none, and ValueError where it is none of Unicode.
std::string to_text(nb::handle value);
std::string type_of(nb::handle value);  // its name

// None, bool, int, float, str, and lists, tuples and dicts of them; arrays and scalars of numpy.
// Keys of dicts may be integers. Throws TypeError for all else, and RecursionError rather than
// reach the end of the stack, for a list that holds itself.
nlohmann::ordered_json to_json(nb::handle value);
// The same of what goes on as JSON, a schema: throws ValueError, with the place, for a number that
// JSON does not have, or that would be rounded.
nlohmann::ordered_json to_document(nb::handle value);

// A str, token ids (list, tuple, array), {"prompt": str} or {"prompt_token_ids": ids}. Throws
// TypeError or ValueError.
Prompt to_prompt(nb::handle value);
std::vector<Prompt> to_prompts(const nb::list& values);  // errors say which

// The same for ids alone. `expected` is what the sentence about something else says first.
std::vector<int32_t> to_token_ids(
    nb::handle value, const char* expected = "token ids must be a list or an array of integers");

// Looks up nanovllm.outputs, of which the following are objects: a program that forgets its modules
// would not find it later.
void find_classes();
nb::object to_python(const RequestOutput& output);
nb::object to_python(const StepStats& stats);

nb::object to_python(const EngineInfo& info);  // a dict

// An engine's keywords. Throws Error(kInvalidArgument).
EngineConfig to_config(const nb::dict& arguments);
// The same with a max_model_len that the model was made for: more is lowered, as in nano-vLLM, and
// that is said on stderr. Throws what loading the model's config does.
EngineConfig lowered_for(const std::string& model, EngineConfig config);

void bind_params(nb::module_& module);
void bind_engine(nb::module_& module);
void bind_loop(nb::module_& module);

}  // namespace nanovllm::python
