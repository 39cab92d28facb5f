// The other end of an engine's socket: told what to do, it tells what it did.
#pragma once

#include <functional>

#include "base/progress.h"
#include "nanovllm/llm_engine.h"

namespace nanovllm::server {

// What ps and top call a worker's process: 15 characters are the most that they show.
inline constexpr const char* kWorkerName = "nanovllm-worker";

// Makes an engine that advances `progress` while it is loaded and as it computes.
using EngineLoader = std::function<LLMEngine(Progress& progress)>;

// Loads an engine and serves the socket until the front closes it, or the engine can't go on:
// false, with why for its last words, behind which nothing more is told. From the beginning on a
// thread tells of progress, where there is some.
bool serve_socket(int socket, const EngineLoader& load);
// What a worker of a front with this configuration computes with: its GPUs are those behind the
// ones of workers of lower index.
EngineConfig config_of_worker(int index, EngineConfig config);
// As a process whose signals are its front's business; returns its exit status.
int serve_engine(int socket, const EngineLoader& load);

}  // namespace nanovllm::server
