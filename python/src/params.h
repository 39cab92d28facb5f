// SamplingParams and EngineConfig, whose keywords come from tables.
#pragma once

#include "convert.h"
#include "nanovllm/config.h"

namespace nanovllm::python {

// Throws Error for values of the wrong type; their ranges are EngineConfig::validate's business.
EngineConfig to_config(const nb::dict& arguments);

void bind_params(nb::module_& module);
void bind_engine(nb::module_& module);
void bind_loop(nb::module_& module);

}  // namespace nanovllm::python
