// An engine on a thread of its own: commands in from any thread, events out to one sink.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
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

class CompileQueue;

// Command: end a request with FinishReason::kAbort. Unknown ids are ignored.
struct AbortRequest {
  uint64_t id = 0;
  bool operator==(const AbortRequest&) const = default;
};

// Command: end the loop. With drain, it ends when all requests have ended; without, immediately.
// Requests that are cut off, and those that are added after this command, end with
// RequestError(kUnavailable). All their tokens have been delivered before, so another engine can
// continue them (AddRequest::previous_output_ids).
struct Shutdown {
  bool drain = true;
  bool operator==(const Shutdown&) const = default;
};

using EngineCommand = std::variant<AddRequest, AbortRequest, Shutdown>;

// The log-probabilities of the prompt, before the request's first delta.
struct PromptLogprobs {
  uint64_t id = 0;
  // One per token of the prompt; the first token has none.
  std::vector<std::optional<PositionLogprobs>> positions = {};
  bool operator==(const PromptLogprobs&) const = default;
};

// What a completion gained.
struct RequestDelta {
  uint64_t id = 0;
  // Which of the n completions.
  int index = 0;
  std::string text = {};
  std::vector<TokenMark> marks = {};
  std::vector<int32_t> token_ids = {};
  // One entry per token, if asked for.
  std::vector<PositionLogprobs> logprobs = {};
  bool operator==(const RequestDelta&) const = default;
};

// The end of a completion, after its last delta.
struct RequestEnd {
  uint64_t id = 0;
  int index = 0;
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason = {};
  // true: all completions of the request have ended; this is its last event.
  bool last = false;
  // These three are of the whole request, up to now.
  int num_cached_tokens = 0;
  int num_preemptions = 0;
  RequestMetrics metrics = {};
  bool operator==(const RequestEnd&) const = default;
};

// The request failed. This is its last event: none of its completions gets another one.
struct RequestError {
  uint64_t id = 0;
  ErrorCode code = ErrorCode::kInternal;
  // One sentence.
  std::string message = {};
  bool operator==(const RequestError&) const = default;
};

// What happened, in order. A StepStats ends the list of a step that computed something.
using EngineEvent = std::variant<PromptLogprobs, RequestDelta, RequestEnd, RequestError, StepStats>;

// Runs steps while there are requests and sleeps otherwise. A step that throws is run again. If two
// in a row throw and nothing was generated in between, all requests end with the error; later
// requests are tried again. (Ranks that share a model can't go on after an error: each later
// request ends with that error.)
class EngineLoop {
 public:
  // Gets the new events, on the loop's thread: after each step, and when commands are answered
  // without a step. The next step waits until it returns. It may call try_submit(), and submit() if
  // there is room.
  //
  // If it throws, it is unknown which events arrived: all requests end with its error, which is
  // passed to the sink immediately (and printed to stderr if the sink throws again). The loop goes
  // on.
  using Sink = std::function<void(std::vector<EngineEvent> events)>;

  // `engine` must have no requests, and at most max_num_commands commands wait for the loop. Throws
  // Error(kInvalidArgument) if the engine has requests, the sink is empty or the number is 0.
  EngineLoop(LLMEngine engine, Sink sink, size_t max_num_commands = 1024);
  // Shuts down without draining, waits for the sink's last call, and completes the trace. Must not
  // be called by the sink, nor while other threads are in a method.
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // Any thread may call the following methods. try_submit(), submit() and call() throw
  // Error(kUnavailable) when the loop has ended.

  // Requests are checked on the caller's thread, also those that the loop answers with an error;
  // what preparer() has checked is not checked again. One whose grammar is not known yet waits for
  // a thread of the loop that compiles it, and lets others pass. Returns false if the queue is
  // full.
  bool try_submit(EngineCommand command);
  bool try_submit(CheckedRequest request);
  // Waits while the queue is full. Inside the sink that would be for ever, so there it throws
  // Error(kInvalidArgument) instead.
  void submit(EngineCommand command);
  void submit(CheckedRequest request);
  // Runs a task between two steps, on the loop's thread, when the commands before it were handled;
  // returns when it has ended, and throws what it throws. Must not be called by the sink.
  void call(const std::function<void(LLMEngine&)>& task);
  // Returns when a Shutdown has been carried out and the sink was called for the last time. Must
  // not be called by the sink.
  void wait();

  const EngineInfo& info() const { return engine_.info(); }
  const SamplingParams& default_sampling_params() const {
    return engine_.default_sampling_params();
  }
  // As LLMEngine's.
  std::vector<int32_t> encode(const std::string& text, bool add_special_tokens = true) const {
    return engine_.encode(text, add_special_tokens);
  }
  std::string decode(const std::vector<int32_t>& ids, bool skip_special_tokens = true) const {
    return engine_.decode(ids, skip_special_tokens);
  }
  // Makes commands for this loop; valid while the loop and the template live.
  RequestPreparer preparer(const ChatTemplate* chat_template = nullptr) const;

 private:
  struct Refusal {
    uint64_t id;
    std::exception_ptr error;
  };
  // What came of a request whose grammar was to be compiled.
  struct Compiled {
    uint64_t ticket;
    std::variant<CheckedRequest, Refusal> result;
  };
  // An AddRequest is one whose grammar is to be compiled.
  using Command =
      std::variant<CheckedRequest, Refusal, AddRequest, Compiled, AbortRequest, Shutdown>;

  // Has neither number after it was refused or has ended.
  struct LiveRequest {
    std::optional<uint64_t> engine_id = {};
    std::optional<uint64_t> ticket = {};  // its grammar is being compiled
    std::vector<bool> ended = {};         // [n] completions
  };

  void run() noexcept;
  bool run_once();
  std::optional<Command> next_command();
  void wait_for_work();
  void handle(CheckedRequest&& command);
  void handle(const Refusal& command);
  void handle(AddRequest&& command);
  void handle(Compiled&& command);
  void handle(const AbortRequest& command);
  void handle(const Shutdown& command);
  template <typename Begin>
  void add(uint64_t id, Begin&& begin);
  void begin(LiveRequest& live, CheckedRequest&& request);
  void compile(uint64_t ticket, AddRequest&& request);
  void refuse(uint64_t id, const std::exception_ptr& error);
  void discard(LiveRequest& live) noexcept;
  void step();
  void tell(RequestOutput&& output);
  void deliver();
  void fail_all(const std::exception_ptr& error) noexcept;
  void close() noexcept;
  void run_calls();
  Command checked(EngineCommand&& command) const;
  Command checked(CheckedRequest&& request) const;
  // Returns false if the queue is full, and stays so where it does not wait.
  bool push(Command&& command, bool wait);
  void push_or_throw(Command&& command);

  LLMEngine engine_;
  const RequestPreparer preparer_;  // the engine's
  const Sink sink_;
  const size_t max_num_commands_;

  // Used by the loop's thread only.
  std::unordered_map<uint64_t, LiveRequest> requests_;  // until their last event is delivered
  std::unordered_map<uint64_t, uint64_t> ids_;          // the engine's id -> the caller's
  std::vector<EngineEvent> events_;                     // to be delivered
  std::vector<uint64_t> ended_ids_;                     // requests whose last event is in events_
  uint64_t num_tickets_ = 0;                            // given to requests to be compiled
  std::optional<bool> shutdown_;                        // a Shutdown came; its `drain`
  int num_failures_ = 0;                                // steps that threw since the last output

  std::mutex mutex_;  // guards the following
  std::condition_variable work_, room_, end_;
  std::deque<Command> commands_;
  std::vector<std::packaged_task<void()>> calls_;
  bool destroyed_ = false;  // the destructor runs
  bool closed_ = false;     // no more commands are accepted
  bool ended_ = false;      // the sink was called for the last time

  std::unique_ptr<CompileQueue> compiling_;
  std::thread thread_;
};

}  // namespace nanovllm
