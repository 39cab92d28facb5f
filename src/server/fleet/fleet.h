// All engines of a server as one: requests go where they fit best, and survive the engine they run
// on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/fleet/engine_client.h"

namespace nanovllm::server {

// What a request's user has yet to be sent. Thread-safe. It may outlive the fleet, but not be
// cancelled beside the fleet's end.
class RequestStream {
 public:
  virtual ~RequestStream() = default;
  // What came since the last call, in order; what a completion gained in several steps is one
  // delta. Empty when there is nothing new. A stream that nobody reads is merged as it grows: its
  // memory is bounded by its output.
  virtual std::vector<EngineEvent> take() = 0;
  // Calls `wake` once, when there is something to take or nothing more will come: at once if so,
  // else on any thread. A later `wake` takes the place of one that waits; cancel() drops it.
  virtual void on_ready(std::function<void()> wake) = 0;
  // The same, but only when nothing more will come: who wants all at once is not woken before.
  virtual void on_end(std::function<void()> wake) = 0;
  // Ends the request where it has not ended; nothing more comes. The destructor does it too.
  virtual void cancel() noexcept = 0;
};

struct FleetOptions {
  int num_engines = 1;
  std::chrono::milliseconds worker_timeout{60'000};  // without progress, with work aboard
  int max_num_queued = 1024;  // requests that have not been given a token yet, over all engines
  int64_t seed = 0;           // EngineConfig::seed of the engines
  // How long requests that were shown nothing wait where no engine is ready any more. They wait no
  // longer either where several starts in a row failed by themselves.
  std::chrono::milliseconds unready_patience{60'000};
  // Without a ready engine, and without one whose loading advances, until on_unready() is called.
  std::chrono::milliseconds worker_start_timeout{300'000};
};

struct FleetStatus {
  int num_ready = 0;  // engines
  int num_engines = 0;
  std::chrono::system_clock::time_point since;  // of the last change of num_ready to or from 0
  std::string why;                              // a sentence where num_ready is 0
  int num_restarts = 0;
  int num_streams = 0;
  int num_queued = 0;  // of the streams, those that have not been given a token yet
  EngineLimits limits =
      {};  // what requests are judged by; less where an engine came back with less
};

// Engines are told apart by a bit each.
inline constexpr int kMaxNumEngines = 64;

// Thrown by Fleet::add where a bound is reached: try again later.
class QueueFull : public Error {
 public:
  explicit QueueFull(const std::string& message) : Error(ErrorCode::kUnavailable, message) {}
};

class Fleet {
 public:
  virtual ~Fleet() = default;  // shuts down at once
  // Waits until each engine is loaded or failed to; throws what keeps the first of them from
  // loading, or any of them where that is kUnsupported, or that they would compute on GPUs here and
  // the CPU there. What the one says of itself that takes the longest requests.
  virtual const EngineHello& wait_ready() = 0;
  virtual FleetStatus status() const = 0;
  // Queues a request; its id is chosen here, 0 first, and its seed where it has none, so that it
  // draws what it would without a fleet. Its ends have metrics from here on, across engines. Throws
  // QueueFull, or Error(kUnavailable) after shut_down() and while no engine is ready any more.
  virtual std::shared_ptr<RequestStream> add(AddRequest request) = 0;
  // Takes no more requests; returns when all have ended, or ends them at the deadline with an
  // error. From any thread, and again with less time.
  virtual void shut_down(std::chrono::milliseconds timeout) = 0;
};

// What the fleet sees pass by, for metrics; called one at a time, with the fleet's lock held: it
// must not call the fleet.
struct FleetObserver {
  // The engine is loaded, be it for the first time or again.
  std::function<void(int engine, const EngineLimits& limits)> on_ready = [](int,
                                                                            const EngineLimits&) {};
  // The engine died and is started again.
  std::function<void(int engine)> on_restart = [](int) {};
  std::function<void(int engine, const StepStats& stats)> on_step = [](int, const StepStats&) {};
  // The engine has no requests any more, or is gone.
  std::function<void(int engine)> on_idle = [](int) {};
  // A completion gained tokens: `seconds` after those before, or where they are its first ones,
  // after Fleet::add.
  std::function<void(int engine, bool first, double seconds)> on_tokens = [](int, bool, double) {};
  // A completion's end, with kAbort where it was cancelled or, with `failed`, ended with an error;
  // `request` has its tokens in `previous_output_ids`. engine: -1 = on none.
  std::function<void(int engine, const AddRequest& request, const RequestEnd& end, bool failed)>
      on_end = [](int, const AddRequest&, const RequestEnd&, bool) {};
  // No engine was ready for FleetOptions::worker_start_timeout; once. The fleet goes on trying.
  std::function<void(const std::string& why)> on_unready = [](const std::string&) {};
  // Sentences for a log: engines that die and come back.
  std::function<void(const std::string& sentence)> on_message = [](const std::string&) {};
};

// Throws Error(kInvalidArgument) where there are to be less than 1 or more than kMaxNumEngines.
std::unique_ptr<Fleet> make_fleet(const FleetOptions& options, EngineStarter start,
                                  FleetObserver observer = {});

// An engine in a process of its own: the binary, by default this one again, with `arguments` and
// "--worker-fd FD --worker-index I" behind its name, and "--num-kvcache-blocks N" where it takes
// another's place; it is to serve the descriptor in run_worker(). It inherits nothing but that and
// the standard streams, and ends when its front does.
EngineStarter worker_starter(std::vector<std::string> arguments,
                             std::string binary = "/proc/self/exe");
// The worker's main: loads the model, serves the socket until the front closes it. Returns the exit
// status.
int run_worker(int socket, int index, const std::string& model, const EngineConfig& config);
// An engine on threads of this process.
EngineStarter thread_starter(std::function<LLMEngine(const EngineStart& start)> load);

}  // namespace nanovllm::server
