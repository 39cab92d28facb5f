// All engines of a server as one: requests go where they fit best, and survive the engine they run
// on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/engine_client.h"

namespace nanovllm::server {

// What a request's user has yet to be sent. Thread-safe.
class RequestStream {
 public:
  virtual ~RequestStream() = default;
  // What came since the last call, in order; what a completion gained in several steps is one
  // delta. Empty when there is nothing new. A stream that nobody reads is merged as it grows: its
  // memory is bounded by its output.
  virtual std::vector<EngineEvent> take() = 0;
  // Calls `wake` once, when there is something to take: at once if there is, else on any thread.
  virtual void on_ready(std::function<void()> wake) = 0;
  // Ends the request where it has not ended; nothing more comes. The destructor does it too.
  virtual void cancel() noexcept = 0;
};

struct FleetOptions {
  int num_engines = 1;
  std::chrono::milliseconds worker_timeout{60'000};  // without a sign of life, with work aboard
  int max_num_queued = 1024;  // requests that have not been given a token yet, over all engines
};

struct FleetStatus {
  int num_ready = 0;  // engines
  int num_engines = 0;
  std::chrono::system_clock::time_point since;  // of the last change of num_ready to or from 0
  std::string why;                              // a sentence where num_ready is 0
  int num_restarts = 0;
  int num_streams = 0;
  std::vector<StepStats> last_steps;  // [num_engines]
};

// Thrown by Fleet::add where a bound is reached: try again later.
class QueueFull : public Error {
 public:
  explicit QueueFull(const std::string& message) : Error(ErrorCode::kUnavailable, message) {}
};

class Fleet {
 public:
  virtual ~Fleet() = default;
  // Waits for the first engine; throws what keeps it from loading. What it says of itself holds for
  // all.
  virtual const EngineHello& wait_ready() = 0;
  virtual FleetStatus status() const = 0;
  // Queues a request; its id is chosen here. Throws QueueFull, or Error(kUnavailable) after
  // shut_down().
  virtual std::shared_ptr<RequestStream> add(AddRequest request) = 0;
  // Takes no more requests; returns when all have ended, or ends them at the deadline with an
  // error.
  virtual void shut_down(std::chrono::milliseconds timeout) = 0;
};

// A completion that its engine ended, with what the fleet knows of it.
struct FinishedCompletion {
  const AddRequest& request;  // as Fleet::add took it
  const RequestEnd& end;
  int num_tokens = 0;      // of its output
  int max_num_tokens = 0;  // of the outputs of the request's completions; where end.last
  double seconds = 0;      // since Fleet::add
};

// What the fleet sees pass by, for metrics; called on threads of the fleet, one at a time for each
// engine. A function may be missing.
struct FleetObserver {
  std::function<void(int engine, const StepStats& stats)> on_step;
  // The engine has no requests any more, or is gone.
  std::function<void(int engine)> on_idle;
  // A completion gained tokens: `seconds` after those before, or where they are its first ones
  // since Fleet::add.
  std::function<void(int engine, bool first, double seconds)> on_tokens;
  std::function<void(int engine, const FinishedCompletion& finished)> on_end;
  std::function<void(int engine)> on_error;  // a request ended with a RequestError
};

std::unique_ptr<Fleet> make_fleet(const FleetOptions& options, EngineStarter start,
                                  FleetObserver observer = {});

// An engine in a process of its own: this binary again, told by its arguments to serve the socket
// in run_worker(). `arguments` are those behind the binary's name; the worker's index and socket
// are appended. The process ends when its front does.
EngineStarter worker_starter(std::vector<std::string> arguments);
// The worker's main: loads the model, serves the socket until the front closes it. Returns the exit
// status.
int run_worker(int socket, const std::string& model, const EngineConfig& config);
// An engine on threads of this process.
EngineStarter thread_starter(std::function<LLMEngine()> load);

}  // namespace nanovllm::server
