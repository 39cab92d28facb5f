// What users of a fleet ask of it, and what its engines tell.
#include "server/fleet/fleet.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "server/fleet/healing_fleet.h"

namespace nanovllm::server {

namespace {

constexpr int kNumProvenSteps = 4;  // of an engine that is well, as far as restarts go
// A completion that got so many deltas from an engine is none that kills it where it stands. What
// an engine had computed beyond what it told is less.
constexpr int kNumProvenDeltas = 4;
// A request's id in an engine is its own with the number of times that it came aboard behind it.
constexpr int kAboardBits = 16;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Of the engine that takes the longest requests is what the fleet tells, here and in hello_.
bool takes_more(const EngineLimits& one, const EngineLimits& other) {
  return std::pair(one.max_num_tokens(), one.num_kvcache_blocks) >
         std::pair(other.max_num_tokens(), other.num_kvcache_blocks);
}

}  // namespace

bool Ongoing::is_proven() const {
  for (size_t i = 0; i < ended.size(); ++i) {
    if (!ended[i] && num_deltas[i] < kNumProvenDeltas) return false;
  }
  return true;
}

int64_t Ongoing::num_tokens() const {
  size_t shown = 0;
  for (const auto& ids : request.previous_output_ids) shown = std::max(shown, ids.size());
  const auto now = static_cast<int64_t>(request.prompt_token_ids.size() + shown + 1);
  return std::max(now, max_num_tokens);
}

RequestMetrics Ongoing::metrics(const RequestMetrics& there) const {
  const double now = seconds_between(added_at, Clock::now());
  const double first_step = engine == nullptr ? now : aboard_s + there.time_to_first_step;
  return {
      .time_to_first_step = first_token_s > 0 ? std::min(first_step, first_token_s) : first_step,
      .time_to_first_token = first_token_s,
      .time_to_last_token = *std::ranges::max_element(last_token_s),
      .time_to_finish = now};
}

const EngineHello& HealingFleet::wait_ready() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] {
    return start_error_ || stopping_ || std::ranges::all_of(engines_, &Engine::has_spoken);
  });
  if (start_error_) throw Error(*start_error_);
  if (hello_) return *hello_;
  throw_error(ErrorCode::kUnavailable, "The server is shutting down.");
}

FleetStatus HealingFleet::status() const {
  const std::lock_guard lock(mutex_);
  return {.num_ready = num_ready_,
          .num_engines = options_.num_engines,
          .since = since_,
          .why = num_ready_ > 0 ? "" : why_,
          .num_restarts = num_restarts_,
          .num_streams = static_cast<int>(requests_.size()),
          .num_queued = num_queued_,
          .limits = limits_};
}

std::shared_ptr<RequestStream> HealingFleet::add(AddRequest request) {
  auto buffer = std::make_shared<StreamBuffer>();
  std::shared_ptr<RequestStream> stream;
  change([&] {
    if (closed_) throw_error(ErrorCode::kUnavailable, "The server is shutting down.");
    if (hello_ && num_ready_ == 0) {
      throw_error(ErrorCode::kUnavailable, "No worker is ready; try again later. {}", why_);
    }
    if (num_queued_ >= options_.max_num_queued) {
      throw QueueFull(fmt::format("The queue is full: {} of {} wait for their first token.",
                                  counted(num_queued_, "request"), options_.max_num_queued));
    }
    const uint64_t id = next_id_++;
    request.id = id;
    if (!request.params.seed) request.params.seed = default_seed(options_.seed, id);
    stream = std::make_shared<BufferedStream>(buffer, [this, id] { cancel(id); });
    const auto n = static_cast<size_t>(std::max(request.params.n, 1));
    request.previous_output_ids.resize(n);
    requests_.emplace(id, Ongoing{.request = std::move(request),
                                  .buffer = std::move(buffer),
                                  .ended = std::vector<bool>(n),
                                  .aboard_as = id << kAboardBits,
                                  .num_deltas = std::vector<int>(n),
                                  .last_token_s = std::vector<double>(n)});
    ++num_queued_;
    waiting_.insert(id);
  });
  return stream;
}

void HealingFleet::cancel(uint64_t id) noexcept {
  change([&] {
    const auto found = requests_.find(id);
    if (found == requests_.end()) return;
    tell_aborts(found->second, /*failed=*/false);
    const Engine* engine = found->second.engine;
    take_off(found->second, /*abort=*/true);
    forget(found->second);
    if (engine != nullptr) tell_idle(*engine);
  });
}

void HealingFleet::shut_down(milliseconds timeout) {
  constexpr milliseconds kMost = std::chrono::hours(24 * 365);
  {
    std::unique_lock lock(mutex_);
    closed_ = true;
    deadline_ = std::min(deadline_, Clock::now() + std::min(timeout, kMost));
    changed_.notify_all();
    while (!requests_.empty() && Clock::now() < deadline_) changed_.wait_until(lock, deadline_);
    while (!requests_.empty()) {
      fail(requests_.begin()->second, ErrorCode::kUnavailable,
           "The server was shut down before the request could end.");
    }
    stopping_ = true;
    why_ = "The server is shutting down.";
    changed_.notify_all();
    wake_streams(lock);
  }
  std::call_once(stopped_, [this] {
    keeper_.join();
    std::vector<std::unique_ptr<EngineClient>> clients;
    {
      const std::lock_guard lock(mutex_);
      for (Engine& engine : engines_) {
        set_ready(engine, false);
        clients.push_back(std::move(engine.client));
      }
    }
  });
}

// An engine that found no GPU must not pass for one, be it at the start or when it comes back.
void HealingFleet::hear(Engine& engine, EngineHello& hello) {
  const bool starting = !std::ranges::all_of(engines_, &Engine::has_spoken);
  engine.has_spoken = true;
  engine.num_steps = 0;
  changed_.notify_all();
  if (stopping_) return;
  if (!hello_) hello_ = hello;
  if (hello.info.device_type != hello_->info.device_type) {
    const std::string why = fmt::format(
        "Worker {} would compute on {}, but others on {}: there is no GPU for each of them; take a "
        "smaller --data-parallel-size, or --device cpu.",
        engine.index, hello.info.device, hello_->info.device);
    if (starting) start_error_.emplace(ErrorCode::kUnsupported, why);
    return give_up(engine, why);
  }
  if (!router_) router_.emplace(hello_->info.kvcache_block_size);
  router_->forget(engine.index);
  engine.limits = static_cast<const EngineLimits&>(hello.info);
  observer_.on_ready(engine.index, *engine.limits);
  engine.num_tries = engine.num_failures = 0;
  const int before = limits_.max_num_tokens();
  limits_ = {};
  for (const Engine& one : engines_) {
    if (one.limits && takes_more(*one.limits, limits_)) limits_ = *one.limits;
  }
  if (starting && takes_more(hello.info, hello_->info)) hello_ = hello;
  set_ready(engine, true);
  if (engine.num_starts == 1) return;
  const int now = limits_.max_num_tokens();
  observer_.on_message(
      fmt::format("Worker {} is ready again{}.", engine.index,
                  now == before ? ""
                                : fmt::format("; requests may have {} tokens now, prompt and "
                                              "output together, not {}",
                                              now, before)));
}

void HealingFleet::hear(Engine& engine, std::vector<EngineEvent>& events) {
  engine.last_sign = Clock::now();
  for (EngineEvent& event : events) {
    std::visit([&](auto& what) { hear(engine, what); }, event);
  }
  if (engine.alone) end_probation(engine);
  tell_idle(engine);
}

void HealingFleet::wake_streams(std::unique_lock<std::mutex>& lock) {
  const auto wakes = std::exchange(wakes_, {});
  lock.unlock();
  for (const auto& wake : wakes) wake();
}

void HealingFleet::deliver(const Ongoing& ongoing, EngineEvent&& event, bool last) {
  if (auto wake = ongoing.buffer->append(std::move(event), last)) wakes_.push_back(std::move(wake));
}

// What comes from an engine that has been told to stop with a request, and what its user has, is
// dropped.
Ongoing* HealingFleet::aboard(uint64_t id_there) {
  const auto found = requests_.find(id_there >> kAboardBits);
  const bool is_aboard = found != requests_.end() && found->second.engine != nullptr &&
                         found->second.aboard_as == id_there;
  return is_aboard ? &found->second : nullptr;
}

void HealingFleet::hear(Engine&, PromptLogprobs& event) {
  Ongoing* ongoing = aboard(event.id);
  if (ongoing == nullptr || std::exchange(ongoing->prompt_told, true)) return;
  event.id = ongoing->id();
  deliver(*ongoing, std::move(event), false);
}

void HealingFleet::hear(Engine& engine, RequestDelta& event) {
  Ongoing* ongoing = aboard(event.id);
  const auto index = static_cast<size_t>(event.index);
  if (ongoing == nullptr || ongoing->ended.at(index)) return;
  if (!event.token_ids.empty()) {
    const double now = std::max(seconds_between(ongoing->added_at, engine.last_sign), 1e-9);
    const double last = std::exchange(ongoing->last_token_s[index], now);
    observer_.on_tokens(engine.index, last == 0, now - last);
    if (ongoing->first_token_s == 0) {
      ongoing->first_token_s = now;
      --num_queued_;
    }
  }
  ++ongoing->num_deltas[index];
  if (ongoing->is_proven()) ongoing->blame = 0;
  std::vector<int32_t>& ids = ongoing->request.previous_output_ids[index];
  ids.insert(ids.end(), event.token_ids.begin(), event.token_ids.end());
  event.id = ongoing->id();
  deliver(*ongoing, std::move(event), false);
}

void HealingFleet::hear(Engine& engine, RequestEnd& event) {
  Ongoing* ongoing = aboard(event.id);
  const auto index = static_cast<size_t>(event.index);
  if (ongoing == nullptr || ongoing->ended.at(index)) return;
  const bool over_there = event.last;
  ongoing->ended[index] = true;
  if (ongoing->is_proven()) ongoing->blame = 0;
  event.id = ongoing->id();
  event.last = std::ranges::find(ongoing->ended, false) == ongoing->ended.end();
  event.metrics = ongoing->metrics(event.metrics);
  observer_.on_end(engine.index, ongoing->request, event, false);
  const bool last = event.last;
  deliver(*ongoing, std::move(event), last);
  if (!last) return;
  take_off(*ongoing, /*abort=*/!over_there);
  forget(*ongoing);
}

void HealingFleet::hear(Engine&, RequestError& event) {
  if (Ongoing* ongoing = aboard(event.id)) fail(*ongoing, event.code, event.message);
}

void HealingFleet::hear(Engine& engine, StepStats& event) {
  if (++engine.num_steps >= kNumProvenSteps) engine.back_off = milliseconds(0);
  observer_.on_step(engine.index, event);
}

void HealingFleet::take_off(Ongoing& ongoing, bool abort) {
  Engine* engine = std::exchange(ongoing.engine, nullptr);
  if (engine == nullptr) return;
  if (abort && engine->ready) engine->client->submit(AbortRequest{ongoing.aboard_as});
  engine->aboard.erase(ongoing.id());
  if (engine->aboard.empty()) engine->alone = false;
}

void HealingFleet::forget(Ongoing& ongoing) {
  if (ongoing.first_token_s == 0) --num_queued_;
  waiting_.erase(ongoing.id());
  suspects_.erase(ongoing.id());
  requests_.erase(ongoing.id());
  if (closed_ && requests_.empty()) changed_.notify_all();
}

void HealingFleet::fail(Ongoing& ongoing, ErrorCode code, const std::string& why) {
  tell_aborts(ongoing, /*failed=*/true);
  deliver(ongoing, RequestError{ongoing.id(), code, why}, true);
  take_off(ongoing, /*abort=*/true);
  forget(ongoing);
}

void HealingFleet::tell_aborts(const Ongoing& ongoing, bool failed) const {
  RequestEnd end{.id = ongoing.id(), .finish_reason = FinishReason::kAbort};
  end.metrics = ongoing.metrics({});
  const int engine = ongoing.engine == nullptr ? -1 : ongoing.engine->index;
  for (auto left = std::ranges::count(ongoing.ended, false); left > 0; ++end.index) {
    if (ongoing.ended[static_cast<size_t>(end.index)]) continue;
    end.last = --left == 0;
    observer_.on_end(engine, ongoing.request, end, failed);
  }
}

void HealingFleet::tell_idle(const Engine& engine) const {
  if (engine.aboard.empty()) observer_.on_idle(engine.index);
}

std::unique_ptr<Fleet> make_fleet(const FleetOptions& options, EngineStarter start,
                                  FleetObserver observer) {
  if (options.num_engines < 1 || options.num_engines > kMaxNumEngines) {
    throw_error(ErrorCode::kInvalidArgument, "data_parallel_size must be from 1 to {}, got {}.",
                kMaxNumEngines, options.num_engines);
  }
  return std::make_unique<HealingFleet>(options, std::move(start), std::move(observer));
}

}  // namespace nanovllm::server
