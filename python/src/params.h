// SamplingParams and EngineConfig, whose keywords come from tables.
#pragma once

#include <nanobind/nanobind.h>

#include "nanovllm/config.h"

namespace nanovllm::python {

namespace nb = nanobind;

// Of keywords. Throws Error(kInvalidArgument).
EngineConfig to_config(const nb::dict& arguments);

void bind_params(nb::module_& module);
void bind_engine(nb::module_& module);
void bind_loop(nb::module_& module);

}  // namespace nanovllm::python
