#include "nanovllm/engine_loop.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "base/signals.h"
#include "engine/compile_queue.h"

namespace nanovllm {

namespace {

// Of steps in a row that generated nothing.
constexpr int kMaxNumFailures = 2;

RequestError request_error(uint64_t id, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return {id, e.code(), e.what()};
  } catch (const std::bad_alloc&) {
    return {id, ErrorCode::kOutOfMemory, "There was no memory left to go on with."};
  } catch (const std::exception& e) {
    return {id, ErrorCode::kInternal, e.what()};
  } catch (...) {
    return {id, ErrorCode::kInternal, "Something was thrown that is no std::exception."};
  }
}

// Of what ends all requests: that a file which a step reads is corrupt is no request's fault.
RequestError engine_error(uint64_t id, const std::exception_ptr& error) {
  RequestError failed = request_error(id, error);
  if (failed.code == ErrorCode::kCorruptData) failed.code = ErrorCode::kIo;
  return failed;
}

std::exception_ptr unavailable() {
  return std::make_exception_ptr(
      Error(ErrorCode::kUnavailable, "The engine was shut down before the request could end."));
}

}  // namespace

EngineLoop::EngineLoop(LLMEngine engine, Sink sink, size_t max_num_commands)
    : engine_(std::move(engine)),
      preparer_(engine_.preparer()),
      sink_(std::move(sink)),
      max_num_commands_(max_num_commands) {
  if (max_num_commands == 0 || !sink_ || !engine_.is_finished()) {
    throw_error(ErrorCode::kInvalidArgument,
                "An EngineLoop needs an engine without requests, a sink, and room for a command at "
                "least.");
  }
  engine_.withhold_remarks();
  compiling_ = std::make_unique<CompileQueue>(
      [this](uint64_t ticket, AddRequest&& request) { compile(ticket, std::move(request)); });
  const SignalsBlocked in_thread;
  thread_ = std::thread([this] { run(); });
}

EngineLoop::~EngineLoop() {
  {
    const std::lock_guard lock(mutex_);
    destroyed_ = true;
  }
  work_.notify_one();
  thread_.join();
}

RequestPreparer EngineLoop::preparer(const ChatTemplate* chat_template) const {
  RequestPreparer preparer = preparer_;
  preparer.chat_template = chat_template;
  return preparer;
}

// What is refused is answered in its turn.
EngineLoop::Command EngineLoop::checked(EngineCommand&& command) const {
  if (const auto* abort = std::get_if<AbortRequest>(&command)) return *abort;
  if (const auto* shutdown = std::get_if<Shutdown>(&command)) return *shutdown;
  auto& request = std::get<AddRequest>(command);
  const uint64_t id = request.id;
  try {
    request.params.validate();
    if (preparer_.must_compile(request.params)) return std::move(request);
    return preparer_.check(std::move(request));
  } catch (...) {
    return Refusal{id, std::current_exception()};
  }
}

// What was checked for another engine is checked here: the loop's thread has tokens to compute.
EngineLoop::Command EngineLoop::checked(CheckedRequest&& request) const {
  if (request.is_for(preparer_)) return std::move(request);
  return checked(EngineCommand(std::move(request).release()));
}

bool EngineLoop::try_submit(EngineCommand command) {
  return push(checked(std::move(command)), false);
}

bool EngineLoop::try_submit(CheckedRequest request) {
  return push(checked(std::move(request)), false);
}

void EngineLoop::submit(EngineCommand command) { push_or_throw(checked(std::move(command))); }

void EngineLoop::submit(CheckedRequest request) { push_or_throw(checked(std::move(request))); }

bool EngineLoop::push(Command&& command, bool wait) {
  std::unique_lock lock(mutex_);
  const auto is_full = [this] { return commands_.size() >= max_num_commands_; };
  if (wait) room_.wait(lock, [&] { return closed_ || !is_full(); });
  if (closed_) throw_error(ErrorCode::kUnavailable, "The engine was shut down.");
  if (is_full()) return false;
  commands_.push_back(std::move(command));
  work_.notify_one();
  return true;
}

void EngineLoop::push_or_throw(Command&& command) {
  const bool in_sink = std::this_thread::get_id() == thread_.get_id();
  if (push(std::move(command), !in_sink)) return;
  throw_error(ErrorCode::kInvalidArgument,
              "The engine's queue of {} is full and its own thread can't wait for it.",
              counted(static_cast<int64_t>(max_num_commands_), "command"));
}

void EngineLoop::call(const std::function<void(LLMEngine&)>& task) {
  std::packaged_task<void()> call([&] { task(engine_); });
  std::future<void> end = call.get_future();
  {
    const std::lock_guard lock(mutex_);
    if (closed_) throw_error(ErrorCode::kUnavailable, "The engine was shut down.");
    calls_.push_back(std::move(call));
  }
  work_.notify_one();
  end.get();
}

void EngineLoop::wait() {
  std::unique_lock lock(mutex_);
  end_.wait(lock, [this] { return ended_; });
}

void EngineLoop::run() noexcept {
  for (bool goes_on = true; goes_on;) {
    wait_for_work();
    try {
      goes_on = run_once();
    } catch (...) {
      fail_all(std::current_exception());
    }
  }
  close();
}

void EngineLoop::wait_for_work() {
  if ((shutdown_ && requests_.empty()) || !engine_.is_finished()) return;
  std::unique_lock lock(mutex_);
  work_.wait(lock, [this] { return destroyed_ || !commands_.empty() || !calls_.empty(); });
}

// Their errors are their callers'.
void EngineLoop::run_calls() {
  std::vector<std::packaged_task<void()>> calls;
  {
    const std::lock_guard lock(mutex_);
    calls.swap(calls_);
  }
  for (auto& call : calls) call();
}

// Commands that keep coming don't keep the engine from its work.
bool EngineLoop::run_once() {
  for (size_t i = 0; i < max_num_commands_; ++i) {
    auto command = next_command();
    if (!command) break;
    std::visit([this](auto&& c) { handle(std::forward<decltype(c)>(c)); }, *std::move(command));
  }
  run_calls();
  const bool at_once = shutdown_ == false;
  if (!at_once && !engine_.is_finished()) step();
  deliver();
  if (at_once && !requests_.empty()) fail_all(unavailable());
  return !shutdown_ || !requests_.empty();
}

std::optional<EngineLoop::Command> EngineLoop::next_command() {
  const std::lock_guard lock(mutex_);
  if (destroyed_) shutdown_ = false;
  if (commands_.empty() || shutdown_ == false) return std::nullopt;
  std::optional<Command> command(std::move(commands_.front()));
  commands_.pop_front();
  room_.notify_one();
  return command;
}

template <typename Begin>
void EngineLoop::add(uint64_t id, Begin&& begin) {
  const auto [place, is_new] = requests_.try_emplace(id);
  try {
    if (!is_new) {
      throw_error(ErrorCode::kInvalidArgument, "Two requests have the id {} at once.", id);
    }
    if (shutdown_) std::rethrow_exception(unavailable());
    begin(place->second);
  } catch (...) {
    refuse(id, std::current_exception());
  }
}

void EngineLoop::begin(LiveRequest& live, CheckedRequest&& request) {
  const uint64_t id = request->id;
  request.set_output_kind(RequestOutputKind::kDelta);
  if (!request->params.seed) request.set_seed(engine_.seed_of(id));
  live.ended.assign(static_cast<size_t>(request->params.n), false);
  live.engine_id = engine_.add_request(std::move(request));
  ids_.emplace(*live.engine_id, id);
}

void EngineLoop::handle(CheckedRequest&& command) {
  add(command->id, [&](LiveRequest& live) { begin(live, std::move(command)); });
}

void EngineLoop::handle(const Refusal& command) {
  add(command.id, [&](LiveRequest&) { std::rethrow_exception(command.error); });
}

void EngineLoop::handle(AddRequest&& command) {
  add(command.id, [&](LiveRequest& live) {
    live.ended.assign(static_cast<size_t>(command.params.n), false);
    compiling_->add(num_tickets_, std::move(command));
    live.ticket = num_tickets_++;
  });
}

// On the queue's thread.
void EngineLoop::compile(uint64_t ticket, AddRequest&& request) {
  const uint64_t id = request.id;
  std::variant<CheckedRequest, Refusal> result = Refusal{id, nullptr};
  try {
    result = preparer_.check(std::move(request));
  } catch (...) {
    result = Refusal{id, std::current_exception()};
  }
  try {
    push(Compiled{ticket, std::move(result)}, true);
  } catch (const Error&) {
    // The loop has ended, and with it the request.
  }
}

// Of one that has ended meanwhile nobody wants to know.
void EngineLoop::handle(Compiled&& command) {
  auto* const request = std::get_if<CheckedRequest>(&command.result);
  const uint64_t id = request ? (*request)->id : std::get<Refusal>(command.result).id;
  const auto found = requests_.find(id);
  if (found == requests_.end() || found->second.ticket != command.ticket) return;
  found->second.ticket.reset();
  try {
    if (request == nullptr) std::rethrow_exception(std::get<Refusal>(command.result).error);
    begin(found->second, std::move(*request));
  } catch (...) {
    refuse(id, std::current_exception());
  }
}

void EngineLoop::handle(const AbortRequest& command) {
  const auto found = requests_.find(command.id);
  if (found == requests_.end()) return;
  LiveRequest& live = found->second;
  if (live.engine_id) engine_.abort_request(*live.engine_id);
  if (!live.ticket) return;
  discard(live);
  ended_ids_.push_back(command.id);
  const int num_completions = static_cast<int>(live.ended.size());
  for (int i = 0; i < num_completions; ++i) {
    events_.emplace_back(RequestEnd{.id = command.id,
                                    .index = i,
                                    .finish_reason = FinishReason::kAbort,
                                    .last = i + 1 == num_completions});
  }
}

void EngineLoop::handle(const Shutdown& command) {
  shutdown_ = command.drain && shutdown_.value_or(true);
}

void EngineLoop::refuse(uint64_t id, const std::exception_ptr& error) {
  discard(requests_.at(id));
  ended_ids_.push_back(id);
  events_.emplace_back(request_error(id, error));
}

void EngineLoop::discard(LiveRequest& live) noexcept {
  if (live.engine_id) {
    engine_.discard_request(*live.engine_id);
    ids_.erase(*live.engine_id);
  }
  if (live.ticket) compiling_->drop(*live.ticket);
  live.engine_id.reset();
  live.ticket.reset();
}

void EngineLoop::step() {
  std::vector<RequestOutput> outputs;
  try {
    outputs = engine_.step();
  } catch (...) {
    if (++num_failures_ < kMaxNumFailures) return;
    num_failures_ = 0;
    deliver();
    if (!requests_.empty()) fail_all(std::current_exception());
    return;
  }
  if (!outputs.empty()) num_failures_ = 0;
  for (RequestOutput& output : outputs) tell(std::move(output));
  if (!engine_.last_schedule().empty()) events_.emplace_back(engine_.last_step());
}

void EngineLoop::tell(RequestOutput&& output) {
  const auto known = ids_.find(output.request_id);
  NANOVLLM_CHECK(known != ids_.end());
  const uint64_t id = known->second;
  LiveRequest& live = requests_.at(id);
  if (!output.prompt_logprobs.empty()) {
    events_.emplace_back(PromptLogprobs{id, std::move(output.prompt_logprobs)});
  }
  for (size_t i = 0; i < output.outputs.size(); ++i) {
    CompletionOutput& gained = output.outputs[i];
    if (!gained.token_ids.empty() || !gained.text.empty()) {
      events_.emplace_back(RequestDelta{id, gained.index, std::move(gained.text),
                                        std::move(gained.marks), std::move(gained.token_ids),
                                        std::move(gained.logprobs)});
    }
    if (gained.finish_reason == FinishReason::kNone || live.ended[i]) continue;
    live.ended[i] = true;
    const bool last = std::ranges::find(live.ended, false) == live.ended.end();
    events_.emplace_back(RequestEnd{id, gained.index, gained.finish_reason,
                                    std::move(gained.stop_reason), last, output.num_cached_tokens,
                                    output.num_preemptions, output.metrics});
  }
  if (!output.finished) return;
  ended_ids_.push_back(id);
  live.engine_id.reset();
  ids_.erase(known);
}

void EngineLoop::deliver() {
  if (events_.empty()) return;
  sink_(std::exchange(events_, {}));
  for (const uint64_t id : ended_ids_) requests_.erase(id);
  ended_ids_.clear();
}

// Events that were not delivered are lost.
void EngineLoop::fail_all(const std::exception_ptr& error) noexcept {
  for (auto& [id, live] : requests_) discard(live);
  try {
    if (requests_.empty()) std::rethrow_exception(error);
    events_.clear();
    for (const auto& [id, live] : requests_) events_.emplace_back(engine_error(id, error));
    sink_(std::exchange(events_, {}));
  } catch (...) {
    try {
      print_message("nanovllm: events of {} are lost: {}\n",
                    counted(static_cast<int64_t>(requests_.size()), "request"),
                    request_error(0, std::current_exception()).message);
    } catch (...) {
      // There is no memory for a message.
    }
  }
  requests_.clear();
  ids_.clear();
  events_.clear();
  ended_ids_.clear();
}

void EngineLoop::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;  // from here on the queue is this thread's
  }
  room_.notify_all();
  run_calls();
  try {
    for (Command& command : commands_) {
      if (auto* request = std::get_if<CheckedRequest>(&command)) handle(std::move(*request));
      if (auto* refusal = std::get_if<Refusal>(&command)) handle(*refusal);
      if (auto* request = std::get_if<AddRequest>(&command)) handle(std::move(*request));
    }
    deliver();
  } catch (...) {
    fail_all(std::current_exception());
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  end_.notify_all();
}

}  // namespace nanovllm
