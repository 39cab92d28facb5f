// An engine on a thread of its own: commands in from any thread, events out to one sink.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "nanovllm/llm_engine.h"
#include "nanovllm/prepare.h"

namespace nanovllm {

// Ends a request now, with FinishReason::kAbort. Unknown ids are ignored.
struct AbortRequest {
  uint64_t id = 0;
  bool operator==(const AbortRequest&) const = default;
};

// Ends the loop, at once or when all requests have ended. The requests that it cuts off, and those
// that are added later, end with kUnavailable and nothing that was not told: they can go on
// elsewhere.
struct Shutdown {
  bool drain = true;
  bool operator==(const Shutdown&) const = default;
};

using EngineCommand = std::variant<AddRequest, AbortRequest, Shutdown>;

// SamplingParams::prompt_logprobs's answer, before the request's first delta.
struct PromptLogprobs {
  uint64_t id = 0;
  std::vector<std::optional<PositionLogprobs>> positions = {};  // none for the first token
  bool operator==(const PromptLogprobs&) const = default;
};

// What a completion gained.
struct RequestDelta {
  uint64_t id = 0;
  int index = 0;  // which of the n completions
  std::string text = {};
  std::vector<int32_t> token_ids = {};
  std::vector<PositionLogprobs> logprobs = {};  // one entry a token, where asked for
  bool operator==(const RequestDelta&) const = default;
};

// The end of a completion, behind its last delta.
struct RequestEnd {
  uint64_t id = 0;
  int index = 0;
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason = {};
  bool last = false;          // of the request's completions: the request is over
  int num_cached_tokens = 0;  // this and the others are the request's, as far as it came
  int num_preemptions = 0;
  RequestMetrics metrics = {};
  bool operator==(const RequestEnd&) const = default;
};

// The end of a request and all of its completions.
struct RequestError {
  uint64_t id = 0;
  ErrorCode code = ErrorCode::kInternal;
  std::string message = {};  // one sentence
  bool operator==(const RequestError&) const = default;
};

// What happened, in order. A StepStats ends the list of a step that computed something.
using EngineEvent = std::variant<PromptLogprobs, RequestDelta, RequestEnd, RequestError, StepStats>;

// Sleeps while there is nothing to do. A step that throws is tried again; when it fails twice and
// nothing was generated in between, all requests end with its error, and later ones are tried as if
// nothing had happened: where ranks can't go on, each of them ends with that error.
class EngineLoop {
 public:
  // Called on the loop's thread with what is new, once a step and where commands are answered
  // without one. The engine's next step waits for it. When it throws, nobody knows what was told:
  // all requests end with the error, which is told at once, and printed to stderr if the sink
  // throws again; the loop goes on. It may call try_submit(), and submit() where there is room.
  using Sink = std::function<void(std::vector<EngineEvent> events)>;

  // Takes an engine that has no requests. At most max_num_commands wait for the loop. Throws
  // Error(kInvalidArgument) where one of them is missing.
  EngineLoop(LLMEngine engine, Sink sink, size_t max_num_commands = 1024);
  // Shuts down at once, waits for the sink's last call, and completes the trace. Not to be called
  // by the sink, nor while other threads are in a method.
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // From any thread; both throw Error(kUnavailable) when the loop has shut down.
  bool try_submit(EngineCommand command);  // false when the queue is full
  // Waits while the queue is full; in the sink, where that would be for ever, it throws
  // Error(kInvalidArgument).
  void submit(EngineCommand command);
  // Returns after a Shutdown was carried out and the sink called for the last time. Not to be
  // called by the sink.
  void wait();

  const EngineInfo& info() const { return engine_.info(); }
  const SamplingParams& default_sampling_params() const {
    return engine_.default_sampling_params();
  }
  // Makes commands for it; valid as long as the loop and the template.
  RequestPreparer preparer(const ChatTemplate* chat_template = nullptr) const;

 private:
  struct LiveRequest {
    std::optional<uint64_t> engine_id = {};  // none when it was refused or is over
    std::vector<bool> ended = {};            // which completions
  };

  void run() noexcept;
  bool run_once();
  std::optional<EngineCommand> next_command();
  void wait_for_work();
  void handle(AddRequest&& command);
  void handle(const AbortRequest& command);
  void handle(const Shutdown& command);
  void refuse(uint64_t id, const std::exception_ptr& error);
  void step();
  void tell(RequestOutput&& output);
  void deliver();
  void fail_all(const std::exception_ptr& error) noexcept;
  void close() noexcept;
  bool may_submit(std::unique_lock<std::mutex>& lock, bool wait);
  void push(EngineCommand&& command);

  LLMEngine engine_;
  const Sink sink_;
  const size_t max_num_commands_;

  // Of the loop's thread.
  std::unordered_map<uint64_t, LiveRequest> requests_;  // until their last event is told
  std::unordered_map<uint64_t, uint64_t> ids_;          // by the engine's id, while it knows them
  std::vector<EngineEvent> events_;
  std::vector<uint64_t> ended_ids_;  // their last event is in events_
  std::optional<bool> shutdown_;     // whether it drains
  int num_failures_ = 0;             // of steps since something was generated

  std::mutex mutex_;  // guards what follows
  std::condition_variable work_, room_, end_;
  std::deque<EngineCommand> commands_;
  bool destroyed_ = false;
  bool closed_ = false;  // takes no more commands
  bool ended_ = false;

  std::thread thread_;
};

}  // namespace nanovllm
