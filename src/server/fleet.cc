#include "server/fleet.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "base/signals.h"
#include "engine/request.h"
#include "server/prefix_router.h"
#include "server/request_stream.h"

namespace nanovllm::server {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLeastBackOff{100}, kMostBackOff{10'000};
constexpr int kNumProvenSteps = 4;  // of an engine that is well, as far as restarts go

// How much an engine's death makes those suspect who were aboard. Two deaths and they run alone; a
// SIGKILL from outside (an operator, or the system short of memory) tells little about them.
constexpr int kBlameOfDeath = 8, kBlameFromOutside = 1;
constexpr int kSuspect = 2 * kBlameOfDeath, kGuilty = kSuspect + kBlameOfDeath;
// A request that got so many deltas from an engine is none that kills it where it stands. What an
// engine had computed beyond what it told is less.
constexpr int kNumProvenDeltas = 4;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// A request that has not ended.
struct Ongoing {
  AddRequest request;  // its `shown` is what the stream was given
  std::shared_ptr<StreamBuffer> buffer;
  std::vector<bool> ended = {};  // [n] completions
  bool prompt_told = false;
  int engine = -1;                        // that it is aboard of; -1 = none
  uint64_t aboard_as = 0;                 // its id there: another one each time
  int num_deltas = 0;                     // there
  int blame = 0;                          // for deaths of engines
  std::vector<double> last_token_s = {};  // [n] seconds after added_at; 0 = there is none
  double first_token_s = 0;               // of all of them
  double aboard_s = 0;                    // when it came aboard
  Clock::time_point added_at = Clock::now();

  uint64_t id() const { return request.id; }
  // Seconds after added_at, whichever engines it was aboard of: `there` is what the last one says.
  RequestMetrics metrics(const RequestMetrics& there) const {
    const double now = seconds_between(added_at, Clock::now());
    const double first_step = engine < 0 ? now : aboard_s + there.time_to_first_step;
    return {
        .time_to_first_step = first_token_s > 0 ? std::min(first_step, first_token_s) : first_step,
        .time_to_first_token = first_token_s,
        .time_to_last_token = *std::ranges::max_element(last_token_s),
        .time_to_finish = now};
  }
};

struct Engine {
  std::unique_ptr<EngineClient> client = {};
  bool dead = true;  // to be started at retry_at
  bool ready = false;
  bool hung = false;   // was killed for it
  bool alone = false;  // what is aboard is suspect: nothing may come beside it
  int num_kvcache_blocks = -1;
  int num_steps = 0;  // since it was ready
  int num_starts = 0;
  Clock::time_point last_sign = {};
  Clock::time_point retry_at = {};
  milliseconds back_off{0};
  std::set<uint64_t> aboard = {};  // request ids
  StepStats last_step = {};
};

using Wakes = std::vector<std::function<void()>>;  // called when no lock is held

void deliver(const Ongoing& ongoing, EngineEvent&& event, bool last, Wakes& wakes) {
  if (auto wake = ongoing.buffer->append(std::move(event), last)) wakes.push_back(std::move(wake));
}

class HealingFleet final : public Fleet {
 public:
  HealingFleet(const FleetOptions& options, EngineStarter start, FleetObserver observer)
      : options_(options),
        start_(std::move(start)),
        observer_(std::move(observer)),
        engines_(static_cast<size_t>(options.num_engines)) {
    const SignalsBlocked in_thread;
    keeper_ = std::thread([this] { keep(); });
  }
  ~HealingFleet() override { HealingFleet::shut_down({}); }

  const EngineHello& wait_ready() override;
  FleetStatus status() const override;
  std::shared_ptr<RequestStream> add(AddRequest request) override;
  void shut_down(milliseconds timeout) override;

 private:
  // What engines and streams say.
  EngineListener listener(int index);
  void on_ready(int index, EngineHello&& hello);
  void on_events(int index, std::vector<EngineEvent>&& events);
  void on_death(int index, ErrorCode code, const std::string& error);
  void cancel(uint64_t id) noexcept;

  // All below with mutex_ held. Functions to wake streams are added to `wakes`.
  void hear(Engine& engine, PromptLogprobs& event, Wakes& wakes);
  void hear(Engine& engine, RequestDelta& event, Wakes& wakes);
  void hear(Engine& engine, RequestEnd& event, Wakes& wakes);
  void hear(Engine& engine, RequestError& event, Wakes& wakes);
  void hear(Engine& engine, StepStats& event, Wakes& wakes);
  Ongoing* aboard(uint64_t id_there);
  void end_probation(Engine& engine);
  void dispatch(Wakes& wakes);
  void submit(Ongoing& ongoing, int index, Wakes& wakes);
  void take_off(Ongoing& ongoing, bool abort);
  void forget(Ongoing& ongoing);
  void fail(Ongoing& ongoing, ErrorCode code, const std::string& why, Wakes& wakes);
  void tell_aborts(const Ongoing& ongoing, bool failed) const;
  void tell_idle(const Engine& engine) const;
  void bury(Engine& engine, ErrorCode code, const std::string& error, Wakes& wakes);
  void lose(Engine& engine, int blame, const std::string& why, Wakes& wakes);
  void set_ready(Engine& engine, bool ready);
  int index_of(const Engine& engine) const { return static_cast<int>(&engine - engines_.data()); }
  void say(const std::string& sentence) const {
    if (observer_.on_message) observer_.on_message(sentence);
  }

  // The keeper's thread: starts engines, and kills those that hang.
  void keep();
  Clock::time_point look_after(Engine& engine, std::unique_lock<std::mutex>& lock);
  void start(Engine& engine);
  void kill_hung(Engine& engine, std::unique_lock<std::mutex>& lock);

  const FleetOptions options_;
  const EngineStarter start_;
  const FleetObserver observer_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Engine> engines_;
  std::map<uint64_t, Ongoing> requests_;              // by id: the oldest first
  std::unordered_map<uint64_t, Ongoing*> aboard_as_;  // by their ids in engines
  std::set<uint64_t> waiting_, suspects_;             // ids, aboard of no engine
  uint64_t next_id_ = 0, next_id_aboard_ = 0;
  int num_queued_ = 0, num_ready_ = 0, num_restarts_ = 0;
  std::optional<EngineHello> hello_;
  std::optional<PrefixRouter> router_;
  std::optional<Error> start_error_;
  std::chrono::system_clock::time_point since_ = std::chrono::system_clock::now();
  std::string why_ = "The model is being loaded.";
  bool closed_ = false, stopping_ = false;
  Clock::time_point deadline_ = Clock::time_point::max();

  std::thread keeper_;
  std::once_flag stopped_;
};

const EngineHello& HealingFleet::wait_ready() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return hello_ || start_error_ || stopping_; });
  if (hello_) return *hello_;
  if (start_error_) throw Error(*start_error_);
  throw_error(ErrorCode::kUnavailable, "The server is shutting down.");
}

FleetStatus HealingFleet::status() const {
  const std::lock_guard lock(mutex_);
  FleetStatus status{.num_ready = num_ready_,
                     .num_engines = options_.num_engines,
                     .since = since_,
                     .why = num_ready_ > 0 ? "" : why_,
                     .num_restarts = num_restarts_,
                     .num_streams = static_cast<int>(requests_.size()),
                     .num_queued = num_queued_,
                     .last_steps = {}};
  for (const Engine& engine : engines_) status.last_steps.push_back(engine.last_step);
  return status;
}

std::shared_ptr<RequestStream> HealingFleet::add(AddRequest request) {
  Wakes wakes;
  auto buffer = std::make_shared<StreamBuffer>();
  std::shared_ptr<RequestStream> stream;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) throw_error(ErrorCode::kUnavailable, "The server is shutting down.");
    if (num_queued_ >= options_.max_num_queued) {
      throw QueueFull(fmt::format("The queue is full: {} of {} wait for their first token.",
                                  counted(num_queued_, "request"), options_.max_num_queued));
    }
    const uint64_t id = next_id_++;
    request.id = id;
    if (!request.params.seed) request.params.seed = default_seed(options_.seed, id);
    stream = std::make_shared<BufferedStream>(buffer, [this, id] { cancel(id); });
    const auto n = static_cast<size_t>(std::max(request.params.n, 1));
    request.shown.resize(n);
    requests_.emplace(id, Ongoing{.request = std::move(request),
                                  .buffer = std::move(buffer),
                                  .ended = std::vector<bool>(n),
                                  .last_token_s = std::vector<double>(n)});
    ++num_queued_;
    waiting_.insert(id);
    dispatch(wakes);
  }
  for (const auto& wake : wakes) wake();
  return stream;
}

void HealingFleet::cancel(uint64_t id) noexcept {
  Wakes wakes;
  {
    const std::lock_guard lock(mutex_);
    const auto found = requests_.find(id);
    if (found == requests_.end()) return;
    tell_aborts(found->second, /*failed=*/false);
    const int engine = found->second.engine;
    take_off(found->second, /*abort=*/true);
    forget(found->second);
    dispatch(wakes);
    if (engine >= 0) tell_idle(engines_[static_cast<size_t>(engine)]);
  }
  for (const auto& wake : wakes) wake();
}

void HealingFleet::shut_down(milliseconds timeout) {
  constexpr milliseconds kMost = std::chrono::hours(24 * 365);
  Wakes wakes;
  {
    std::unique_lock lock(mutex_);
    closed_ = true;
    deadline_ = std::min(deadline_, Clock::now() + std::min(timeout, kMost));
    changed_.notify_all();
    while (!requests_.empty() && Clock::now() < deadline_) changed_.wait_until(lock, deadline_);
    while (!requests_.empty()) {
      fail(requests_.begin()->second, ErrorCode::kUnavailable,
           "The server was shut down before the request could end.", wakes);
    }
    stopping_ = true;
    why_ = "The server is shutting down.";
    changed_.notify_all();
  }
  for (const auto& wake : wakes) wake();
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

EngineListener HealingFleet::listener(int index) {
  return {
      .on_ready = [this, index](EngineHello hello) { on_ready(index, std::move(hello)); },
      .on_events =
          [this, index](std::vector<EngineEvent> events) { on_events(index, std::move(events)); },
      .on_death = [this, index](ErrorCode code,
                                const std::string& error) { on_death(index, code, error); }};
}

void HealingFleet::on_ready(int index, EngineHello&& hello) {
  Wakes wakes;
  {
    const std::lock_guard lock(mutex_);
    Engine& engine = engines_[static_cast<size_t>(index)];
    engine.num_kvcache_blocks = hello.info.num_kvcache_blocks;
    engine.num_steps = 0;
    if (stopping_) return;
    if (!hello_) hello_ = std::move(hello);
    if (!router_) router_.emplace(hello_->info.kvcache_block_size);
    router_->forget(index);
    set_ready(engine, true);
    if (engine.num_starts > 1) say(fmt::format("Worker {} is ready again.", index));
    dispatch(wakes);
  }
  for (const auto& wake : wakes) wake();
}

void HealingFleet::on_events(int index, std::vector<EngineEvent>&& events) {
  Wakes wakes;
  {
    const std::lock_guard lock(mutex_);
    Engine& engine = engines_[static_cast<size_t>(index)];
    engine.last_sign = Clock::now();
    for (EngineEvent& event : events) {
      std::visit([&](auto& what) { hear(engine, what, wakes); }, event);
    }
    if (engine.alone) end_probation(engine);
    dispatch(wakes);
    tell_idle(engine);
  }
  for (const auto& wake : wakes) wake();
}

void HealingFleet::on_death(int index, ErrorCode code, const std::string& error) {
  Wakes wakes;
  {
    const std::lock_guard lock(mutex_);
    bury(engines_[static_cast<size_t>(index)], code, error, wakes);
    dispatch(wakes);
  }
  for (const auto& wake : wakes) wake();
}

// What comes from an engine that has been told to stop with a request, and what its user has, is
// dropped.
Ongoing* HealingFleet::aboard(uint64_t id_there) {
  const auto found = aboard_as_.find(id_there);
  return found == aboard_as_.end() ? nullptr : found->second;
}

void HealingFleet::hear(Engine&, PromptLogprobs& event, Wakes& wakes) {
  Ongoing* ongoing = aboard(event.id);
  if (ongoing == nullptr || std::exchange(ongoing->prompt_told, true)) return;
  event.id = ongoing->id();
  deliver(*ongoing, std::move(event), false, wakes);
}

void HealingFleet::hear(Engine& engine, RequestDelta& event, Wakes& wakes) {
  Ongoing* ongoing = aboard(event.id);
  const auto index = static_cast<size_t>(event.index);
  if (ongoing == nullptr || ongoing->ended.at(index)) return;
  if (!event.token_ids.empty()) {
    const double now = std::max(seconds_between(ongoing->added_at, engine.last_sign), 1e-9);
    const double last = std::exchange(ongoing->last_token_s[index], now);
    if (observer_.on_tokens) observer_.on_tokens(index_of(engine), last == 0, now - last);
    if (ongoing->first_token_s == 0) {
      ongoing->first_token_s = now;
      --num_queued_;
    }
  }
  if (++ongoing->num_deltas >= kNumProvenDeltas * std::ssize(ongoing->ended)) ongoing->blame = 0;
  std::vector<int32_t>& shown = ongoing->request.shown[index];
  shown.insert(shown.end(), event.token_ids.begin(), event.token_ids.end());
  event.id = ongoing->id();
  deliver(*ongoing, std::move(event), false, wakes);
}

void HealingFleet::hear(Engine& engine, RequestEnd& event, Wakes& wakes) {
  Ongoing* ongoing = aboard(event.id);
  const auto index = static_cast<size_t>(event.index);
  if (ongoing == nullptr || ongoing->ended.at(index)) return;
  const bool over_there = event.last;
  ongoing->ended[index] = true;
  event.id = ongoing->id();
  event.last = std::ranges::find(ongoing->ended, false) == ongoing->ended.end();
  event.metrics = ongoing->metrics(event.metrics);
  if (observer_.on_end) observer_.on_end(index_of(engine), ongoing->request, event, false);
  const bool last = event.last;
  deliver(*ongoing, std::move(event), last, wakes);
  if (!last) return;
  take_off(*ongoing, /*abort=*/!over_there);
  forget(*ongoing);
}

void HealingFleet::hear(Engine&, RequestError& event, Wakes& wakes) {
  if (Ongoing* ongoing = aboard(event.id)) fail(*ongoing, event.code, event.message, wakes);
}

void HealingFleet::hear(Engine& engine, StepStats& event, Wakes&) {
  engine.last_step = event;
  if (++engine.num_steps >= kNumProvenSteps) engine.back_off = milliseconds(0);
  if (observer_.on_step) observer_.on_step(index_of(engine), event);
}

// Others are suspect still: whoever is cleared makes room for them, and goes on with the rest.
void HealingFleet::end_probation(Engine& engine) {
  if (!engine.aboard.empty()) {
    Ongoing& ongoing = requests_.at(*engine.aboard.begin());
    if (ongoing.blame > 0) return;
    if (!suspects_.empty()) {
      take_off(ongoing, /*abort=*/true);
      waiting_.insert(ongoing.id());
    }
  }
  engine.alone = false;
}

void HealingFleet::dispatch(Wakes& wakes) {
  for (Engine& engine : engines_) {
    if (!engine.ready || !engine.aboard.empty() || suspects_.empty()) continue;
    engine.alone = true;
    submit(requests_.at(*suspects_.begin()), index_of(engine), wakes);
  }
  while (!waiting_.empty()) {
    std::vector<int> loads;
    for (const Engine& engine : engines_) {
      const bool open = engine.ready && !engine.alone;
      loads.push_back(open ? static_cast<int>(engine.aboard.size()) : -1);
    }
    Ongoing& next = requests_.at(*waiting_.begin());
    const int index = router_ ? router_->route(next.request.prompt_token_ids, loads) : -1;
    if (index < 0) return;
    submit(next, index, wakes);
  }
}

void HealingFleet::submit(Ongoing& ongoing, int index, Wakes& wakes) {
  Engine& engine = engines_[static_cast<size_t>(index)];
  waiting_.erase(ongoing.id());
  suspects_.erase(ongoing.id());
  ongoing.engine = index;
  ongoing.aboard_as = next_id_aboard_++;
  ongoing.num_deltas = 0;
  ongoing.aboard_s = seconds_between(ongoing.added_at, Clock::now());
  aboard_as_.emplace(ongoing.aboard_as, &ongoing);
  if (engine.aboard.empty()) {
    engine.last_sign = Clock::now();
    changed_.notify_all();  // the keeper watches it from now on
  }
  engine.aboard.insert(ongoing.id());
  try {
    AddRequest request = ongoing.request;
    request.id = ongoing.aboard_as;
    engine.client->submit(std::move(request));
  } catch (const Error& error) {
    fail(ongoing, error.code(), error.what(), wakes);
  }
}

void HealingFleet::take_off(Ongoing& ongoing, bool abort) {
  if (ongoing.engine < 0) return;
  Engine& engine = engines_[static_cast<size_t>(ongoing.engine)];
  if (abort && engine.ready) engine.client->submit(AbortRequest{ongoing.aboard_as});
  aboard_as_.erase(ongoing.aboard_as);
  engine.aboard.erase(ongoing.id());
  if (engine.aboard.empty()) engine.alone = false;
  ongoing.engine = -1;
}

void HealingFleet::forget(Ongoing& ongoing) {
  if (ongoing.first_token_s == 0) --num_queued_;
  waiting_.erase(ongoing.id());
  suspects_.erase(ongoing.id());
  requests_.erase(ongoing.id());
  if (closed_ && requests_.empty()) changed_.notify_all();
}

void HealingFleet::fail(Ongoing& ongoing, ErrorCode code, const std::string& why, Wakes& wakes) {
  tell_aborts(ongoing, /*failed=*/true);
  deliver(ongoing, RequestError{ongoing.id(), code, why}, true, wakes);
  take_off(ongoing, /*abort=*/true);
  forget(ongoing);
}

void HealingFleet::tell_aborts(const Ongoing& ongoing, bool failed) const {
  if (!observer_.on_end) return;
  RequestEnd end{.id = ongoing.id(), .finish_reason = FinishReason::kAbort};
  end.metrics = ongoing.metrics({});
  for (auto left = std::ranges::count(ongoing.ended, false); left > 0; ++end.index) {
    if (ongoing.ended[static_cast<size_t>(end.index)]) continue;
    end.last = --left == 0;
    observer_.on_end(ongoing.engine, ongoing.request, end, failed);
  }
}

void HealingFleet::tell_idle(const Engine& engine) const {
  if (engine.aboard.empty() && observer_.on_idle) observer_.on_idle(index_of(engine));
}

void HealingFleet::bury(Engine& engine, ErrorCode code, const std::string& error, Wakes& wakes) {
  if (!hello_ && !start_error_) start_error_.emplace(code, error);
  engine.dead = true;
  engine.retry_at = Clock::now() + engine.back_off;
  engine.back_off = std::clamp(2 * engine.back_off, kLeastBackOff, kMostBackOff);
  changed_.notify_all();
  if (std::exchange(engine.hung, false)) return;  // it was lost before
  const bool from_outside = code == ErrorCode::kUnavailable;
  lose(engine, from_outside ? kBlameFromOutside : kBlameOfDeath, error, wakes);
}

// Those aboard go on elsewhere, or here once it is back.
void HealingFleet::lose(Engine& engine, int blame, const std::string& why, Wakes& wakes) {
  const bool alone = engine.alone;
  set_ready(engine, false);
  if (num_ready_ == 0) why_ = why;
  engine.last_step = {};
  say(fmt::format("{} {} of its go on as soon as a worker is ready.", why,
                  counted(std::ssize(engine.aboard), "request")));
  while (!engine.aboard.empty()) {
    Ongoing& ongoing = requests_.at(*engine.aboard.begin());
    take_off(ongoing, /*abort=*/false);
    ongoing.blame += blame;
    if (alone && ongoing.blame >= kGuilty) {
      fail(ongoing, ErrorCode::kInternal,
           fmt::format("The request was given up because workers end when they run it. {}", why),
           wakes);
    } else {
      (ongoing.blame >= kSuspect ? suspects_ : waiting_).insert(ongoing.id());
    }
  }
  tell_idle(engine);
}

void HealingFleet::set_ready(Engine& engine, bool ready) {
  if (engine.ready == ready) return;
  engine.ready = ready;
  const int before = std::exchange(num_ready_, num_ready_ + (ready ? 1 : -1));
  if (before == 0 || num_ready_ == 0) since_ = std::chrono::system_clock::now();
  changed_.notify_all();
}

void HealingFleet::keep() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    auto next = Clock::time_point::max();
    for (Engine& engine : engines_) next = std::min(next, look_after(engine, lock));
    if (stopping_) return;
    if (next == Clock::time_point::max()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, next);
    }
  }
}

// Returns when to look again; what changes before is announced.
Clock::time_point HealingFleet::look_after(Engine& engine, std::unique_lock<std::mutex>& lock) {
  const auto now = Clock::now();
  if (engine.dead && engine.client) {
    auto client = std::move(engine.client);
    lock.unlock();  // its thread may wait for it
    client.reset();
    lock.lock();
    return now;
  }
  if (engine.dead) {
    if (now < engine.retry_at) return engine.retry_at;
    start(engine);
    return engine.dead ? engine.retry_at : Clock::time_point::max();
  }
  if (!engine.ready || engine.aboard.empty()) return Clock::time_point::max();
  const auto deadline = engine.last_sign + options_.worker_timeout;
  if (now < deadline) return deadline;
  kill_hung(engine, lock);
  return now;
}

void HealingFleet::start(Engine& engine) {
  const int index = index_of(engine);
  Wakes none_aboard;
  engine.dead = false;
  if (engine.num_starts++ > 0) ++num_restarts_;
  try {
    // Its first word waits for the lock, and finds the client in its place.
    engine.client = start_({index, engine.num_kvcache_blocks}, listener(index));
  } catch (const Error& error) {
    bury(engine, error.code(), error.what(), none_aboard);
  } catch (const std::exception& error) {
    bury(engine, ErrorCode::kInternal, error.what(), none_aboard);
  }
}

void HealingFleet::kill_hung(Engine& engine, std::unique_lock<std::mutex>& lock) {
  Wakes wakes;
  engine.hung = true;
  lose(engine, kBlameOfDeath,
       fmt::format("Worker {} gave no sign for {} s.", index_of(engine),
                   std::chrono::duration<double>(options_.worker_timeout).count()),
       wakes);
  engine.client->kill();
  dispatch(wakes);
  lock.unlock();
  for (const auto& wake : wakes) wake();
  lock.lock();
}

}  // namespace

std::unique_ptr<Fleet> make_fleet(const FleetOptions& options, EngineStarter start,
                                  FleetObserver observer) {
  return std::make_unique<HealingFleet>(options, std::move(start), std::move(observer));
}

}  // namespace nanovllm::server
