// An engine that the front drives without knowing whether it is a thread or another process.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/wire.h"
#include "nanovllm/engine_loop.h"

namespace nanovllm::server {

// What an engine tells the front; called one at a time, on a thread of the client, never after its
// destructor returned.
struct EngineListener {
  std::function<void(EngineHello hello)> on_ready;
  std::function<void(std::vector<EngineEvent> events)> on_events;
  // It has got on with what it does, be it loading (before on_ready) or a step that takes long.
  std::function<void(EngineProgress progress)> on_progress = [](EngineProgress) {};
  // The last call: the engine is gone and nothing more will come. kUnavailable: somebody outside
  // ended it; else the code of what it failed at. `error` is one sentence.
  std::function<void(ErrorCode code, std::string error)> on_death;
};

class EngineClient {
 public:
  virtual ~EngineClient() = default;  // ends the engine at once
  // From any thread, once on_ready was called. Never waits, so the caller bounds what is aboard.
  // What is sent to an engine that is gone is lost. Throws Error(kUnsupported) where a command is
  // too large.
  virtual void submit(const EngineCommand& command) = 0;
  // Ends the engine as a crash would; on_death follows.
  virtual void kill() noexcept = 0;
};

// Which of the fleet's engines to start.
struct EngineStart {
  int index = 0;
  int num_kvcache_blocks = -1;  // of the one whose place it takes; -1 = as the configuration says
};

// Begins to load an engine and returns at once.
using EngineStarter =
    std::function<std::unique_ptr<EngineClient>(const EngineStart& start, EngineListener listener)>;

// What is told of an exception that ended an engine.
EngineFault fault_of(const std::exception_ptr& error);
// A request's error by which the engine that tells it shows that it can't go on; null = none: what
// a request itself is refused for has other codes.
const RequestError* fault_among(const std::vector<EngineEvent>& events);

}  // namespace nanovllm::server
