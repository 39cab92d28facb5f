// Values of Python as the engine's, and back. All functions need the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "nanovllm/llm_engine.h"

namespace nanovllm::python {

namespace nb = nanobind;

// A str in UTF-8. Throws ValueError where it is none of Unicode.
std::string to_text(nb::handle value);
std::string type_of(nb::handle value);  // its name

// None, bool, int, float, str, and lists, tuples and dicts of them; arrays and scalars of numpy.
// Keys of dicts may be integers. Throws TypeError for all else.
nlohmann::ordered_json to_json(nb::handle value);

// A str, token ids (list, tuple, array), {"prompt": str} or {"prompt_token_ids": ids}. Throws
// TypeError or ValueError.
Prompt to_prompt(nb::handle value);
std::vector<Prompt> to_prompts(const nb::list& values);  // errors say which

// The same for ids alone.
std::vector<int32_t> to_token_ids(nb::handle value);

// Objects of nanovllm.outputs.
nb::object to_python(const RequestOutput& output);
nb::object to_python(const CompletionOutput& completion);
nb::object to_python(const StepStats& stats);
// The exception that stands for an error.
nb::object exception_of(ErrorCode code, const std::string& message);

nb::dict to_python(const EngineInfo& info);
nb::object to_python(const RequestMetrics& metrics);
nb::object to_python(const PositionLogprobs& position);
nb::object to_python(const StopReason& reason);
nb::object to_python(FinishReason reason);
nb::list to_python(const std::vector<int32_t>& ids);
nb::list to_python(const std::vector<PositionLogprobs>& positions);
nb::object to_python(const std::vector<std::optional<PositionLogprobs>>& positions);

}  // namespace nanovllm::python
