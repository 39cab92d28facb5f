// Where the fleet's requests run, and what becomes of them and of the engine when it dies.
#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "server/healing_fleet.h"

namespace nanovllm::server {

namespace {

constexpr milliseconds kLeastBackOff{100}, kMostBackOff{10'000};

// How much an engine's death makes those suspect who were aboard. Two deaths and they run alone; a
// SIGKILL from outside (an operator, or the system short of memory) tells little about them.
constexpr int kBlameOfDeath = 8, kBlameFromOutside = 1;
constexpr int kSuspect = 2 * kBlameOfDeath, kGuilty = kSuspect + kBlameOfDeath;

}  // namespace

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

void HealingFleet::dispatch() {
  for (Engine& engine : engines_) {
    if (!engine.ready || !engine.aboard.empty() || suspects_.empty()) continue;
    engine.alone = true;
    submit(requests_.at(*suspects_.begin()), engine);
  }
  while (!waiting_.empty() && router_) {
    std::vector<int> loads;
    const Engine* for_suspects = reserved();
    for (const Engine& engine : engines_) {
      const bool open = engine.ready && !engine.alone && &engine != for_suspects;
      loads.push_back(open ? static_cast<int>(engine.aboard.size()) : -1);
    }
    Ongoing& next = requests_.at(*waiting_.begin());
    const int index = router_->route(next.request.prompt_token_ids,
                                     next.request.params.cache_salt.value_or(""), loads);
    if (index < 0) return;
    submit(next, engines_[static_cast<size_t>(index)]);
  }
}

// Where all engines are busy, the one that is next to be empty takes no more than it has until a
// suspect had its turn: others might keep it busy for ever. One that ended only once is taken to be
// back before.
const Engine* HealingFleet::reserved() const {
  const auto has_room = [](const Engine& engine) {
    return engine.alone || (!engine.ready && engine.back_off <= kLeastBackOff);
  };
  if (suspects_.empty() || std::ranges::any_of(engines_, has_room)) return nullptr;
  return &*std::ranges::min_element(engines_, {}, [](const Engine& engine) {
    return engine.ready ? engine.aboard.size() : std::numeric_limits<size_t>::max();
  });
}

void HealingFleet::submit(Ongoing& ongoing, Engine& engine) {
  waiting_.erase(ongoing.id());
  suspects_.erase(ongoing.id());
  ongoing.engine = &engine;
  ++ongoing.aboard_as;
  ongoing.num_deltas = 0;
  ongoing.aboard_s = std::chrono::duration<double>(Clock::now() - ongoing.added_at).count();
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
    fail(ongoing, error.code(), error.what());
  }
}

// It will say no more, and is started again: on_death follows.
void HealingFleet::give_up(Engine& engine, const std::string& why) {
  engine.given_up = true;
  lose(engine, kBlameOfDeath, why);
  engine.client->kill();
}

void HealingFleet::bury(Engine& engine, const EngineFault& fault) {
  if (!hello_ && !start_error_) start_error_.emplace(fault.code, fault.message);
  engine.has_spoken = engine.dead = true;
  engine.retry_at = Clock::now() + engine.back_off;
  engine.back_off = std::clamp(2 * engine.back_off, kLeastBackOff, kMostBackOff);
  changed_.notify_all();
  if (std::exchange(engine.given_up, false)) return;  // it was lost before
  const bool from_outside = fault.code == ErrorCode::kUnavailable;
  lose(engine, from_outside ? kBlameFromOutside : kBlameOfDeath, fault.message);
}

// Those aboard go on elsewhere, or here once it is back.
void HealingFleet::lose(Engine& engine, int blame, const std::string& why) {
  const bool alone = engine.alone;
  set_ready(engine, false);
  if (num_ready_ == 0) why_ = why;
  if (!start_error_) {  // which wait_ready() tells
    observer_.on_message(fmt::format("{} It is started again; {} on it will go on.", why,
                                     counted(std::ssize(engine.aboard), "request")));
  }
  while (!engine.aboard.empty()) {
    Ongoing& ongoing = requests_.at(*engine.aboard.begin());
    take_off(ongoing, /*abort=*/false);
    ongoing.blame += blame;
    if (alone && ongoing.blame >= kGuilty) {
      fail(ongoing, ErrorCode::kInternal,
           fmt::format("The request was given up because workers end when they run it. {}", why));
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
  give_up(engine, fmt::format("Worker {} gave no sign for {} s.", engine.index,
                              std::chrono::duration<double>(options_.worker_timeout).count()));
  dispatch();
  wake_streams(lock);
  lock.lock();
  return now;
}

void HealingFleet::start(Engine& engine) {
  engine.dead = false;
  if (engine.num_starts++ > 0) ++num_restarts_;
  EngineListener listener = {
      .on_ready = [this, &engine](EngineHello hello) { change([&] { hear(engine, hello); }); },
      .on_events = [this, &engine](
                       std::vector<EngineEvent> events) { change([&] { hear(engine, events); }); },
      .on_death =
          [this, &engine](ErrorCode code, const std::string& error) {
            change([&] { bury(engine, {code, error}); });
          }};
  try {
    // Its first word waits for the lock, and finds the client in its place.
    engine.client = start_({engine.index, engine.num_kvcache_blocks}, std::move(listener));
  } catch (...) {
    bury(engine, fault_of(std::current_exception()));
  }
}

}  // namespace nanovllm::server
