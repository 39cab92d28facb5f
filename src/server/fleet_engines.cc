// Where the fleet's requests run, and what becomes of them and of the engine when it dies.
#include <algorithm>
#include <exception>
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
    submit(requests_.at(*suspects_.begin()), index_of(engine));
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
    submit(next, index);
  }
}

void HealingFleet::submit(Ongoing& ongoing, int index) {
  Engine& engine = engines_[static_cast<size_t>(index)];
  waiting_.erase(ongoing.id());
  suspects_.erase(ongoing.id());
  ongoing.engine = index;
  ongoing.aboard_as = next_id_aboard_++;
  ongoing.num_deltas = 0;
  ongoing.aboard_s = std::chrono::duration<double>(Clock::now() - ongoing.added_at).count();
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
    fail(ongoing, error.code(), error.what());
  }
}

void HealingFleet::bury(Engine& engine, ErrorCode code, const std::string& error) {
  if (!hello_ && !start_error_) start_error_.emplace(code, error);
  engine.dead = true;
  engine.retry_at = Clock::now() + engine.back_off;
  engine.back_off = std::clamp(2 * engine.back_off, kLeastBackOff, kMostBackOff);
  changed_.notify_all();
  if (std::exchange(engine.hung, false)) return;  // it was lost before
  const bool from_outside = code == ErrorCode::kUnavailable;
  lose(engine, from_outside ? kBlameFromOutside : kBlameOfDeath, error);
}

// Those aboard go on elsewhere, or here once it is back.
void HealingFleet::lose(Engine& engine, int blame, const std::string& why) {
  const bool alone = engine.alone;
  set_ready(engine, false);
  if (num_ready_ == 0) why_ = why;
  say(fmt::format("{} It is started again; {} on it will go on.", why,
                  counted(std::ssize(engine.aboard), "request")));
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
  kill_hung(engine, lock);
  return now;
}

void HealingFleet::start(Engine& engine) {
  const int index = index_of(engine);
  engine.dead = false;
  if (engine.num_starts++ > 0) ++num_restarts_;
  try {
    // Its first word waits for the lock, and finds the client in its place.
    engine.client = start_({index, engine.num_kvcache_blocks}, listener(index));
  } catch (const Error& error) {
    bury(engine, error.code(), error.what());
  } catch (const std::exception& error) {
    bury(engine, ErrorCode::kInternal, error.what());
  }
}

void HealingFleet::kill_hung(Engine& engine, std::unique_lock<std::mutex>& lock) {
  engine.hung = true;
  lose(engine, kBlameOfDeath,
       fmt::format("Worker {} gave no sign for {} s.", index_of(engine),
                   std::chrono::duration<double>(options_.worker_timeout).count()));
  engine.client->kill();
  dispatch();
  wake_streams(lock);
  lock.lock();
}

}  // namespace nanovllm::server
