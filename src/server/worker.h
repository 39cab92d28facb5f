// The other end of an engine's socket: told what to do, it tells what it did.
#pragma once

#include <functional>

#include "nanovllm/llm_engine.h"

namespace nanovllm::server {

// Loads an engine and serves the socket until the front closes it, or the engine can't go on:
// false, with why for its last words, behind which nothing more is told.
bool serve_socket(int socket, const std::function<LLMEngine()>& load);
// As a process whose signals are its front's business; returns its exit status.
int serve_engine(int socket, const std::function<LLMEngine()>& load);

}  // namespace nanovllm::server
