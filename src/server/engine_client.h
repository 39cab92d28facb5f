// An engine that the front drives without knowing whether it is a thread or another process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nanovllm/engine_loop.h"

namespace nanovllm::server {

// What an engine says of itself once it is loaded.
struct EngineHello {
  EngineInfo info = {};
  SamplingParams default_sampling_params = {};
  std::string model_dir = {};
};

// What an engine tells the front; called one at a time, on a thread of the client, never after its
// destructor returned.
struct EngineListener {
  std::function<void(EngineHello hello)> on_ready;
  std::function<void(std::vector<EngineEvent> events)> on_events;
  // The last call: the engine is gone and nothing more will come. `error` is one sentence.
  std::function<void(ErrorCode code, std::string error)> on_death;
};

class EngineClient {
 public:
  virtual ~EngineClient() = default;  // ends the engine at once
  // From any thread. False where its queue is full; what is sent to an engine that is gone is lost.
  virtual bool try_submit(EngineCommand command) = 0;
  // Ends the engine as a crash would; on_death follows.
  virtual void kill() noexcept = 0;
};

// Begins to load an engine and returns at once.
using EngineStarter =
    std::function<std::unique_ptr<EngineClient>(int index, EngineListener listener)>;

}  // namespace nanovllm::server
