// The other end of a worker's socket: an engine that is told what to do and tells what it did.
#pragma once

#include <functional>

#include "nanovllm/llm_engine.h"

namespace nanovllm::server {

// Loads an engine and serves the socket until the front closes it, or the engine can't go on.
// Returns the process's exit status.
int serve_engine(int socket, const std::function<LLMEngine()>& load);

}  // namespace nanovllm::server
