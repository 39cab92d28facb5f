// Where the fleet's requests run, and what becomes of them and of the engine when it dies.
#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "server/fleet/healing_fleet.h"

namespace nanovllm::server {

namespace {

constexpr milliseconds kLeastBackOff{100}, kMostBackOff{10'000};

// Deaths of engines under a request that is not proven there: with so many it runs alone, and with
// so many, the last two alone, it is given up. What the system kills for want of memory and what
// somebody else kills look the same, so all deaths count alike.
constexpr int kSuspect = 2, kGuilty = kSuspect + 2;

// An engine that could not be loaded so often as large as it was takes what memory there is.
constexpr int kNumTries = 3;

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
  if (num_ready_ == 0) return;
  dispatch_suspects();
  int most = 0;  // tokens that a request may have where an engine is ready
  for (const Engine& engine : engines_) {
    if (engine.ready) most = std::max(most, engine.limits->max_num_tokens());
  }
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    Ongoing& ongoing = requests_.at(*next++);
    if (!find_room(ongoing)) continue;
    // It would end early on an engine that takes less, and nobody would know why.
    const bool is_open_ended = ongoing.request.params.max_tokens == kAsManyAsFit;
    std::vector<int> loads;
    bool any_open = false;
    const Engine* for_suspects = reserved();
    for (const Engine& engine : engines_) {
      const bool open = engine.ready && !engine.alone && &engine != for_suspects;
      any_open = any_open || open;
      const bool takes_it = open && ongoing.fits(*engine.limits) &&
                            (!is_open_ended || engine.limits->max_num_tokens() == most);
      loads.push_back(takes_it ? static_cast<int>(engine.aboard.size()) : -1);
    }
    if (!any_open) return;
    const AddRequest& request = ongoing.request;
    const int index =
        router_->route(request.prompt_token_ids, request.params.cache_salt.value_or(""), loads);
    if (index >= 0) submit(ongoing, engines_[static_cast<size_t>(index)]);
  }
}

// Those with the fewest deaths come first: somebody who kills again and again from outside does not
// meet the same one each time.
void HealingFleet::dispatch_suspects() {
  for (Engine& engine : engines_) {
    if (!engine.ready || !engine.aboard.empty()) continue;
    Ongoing* least = nullptr;
    for (auto next = suspects_.begin(); next != suspects_.end();) {
      Ongoing& ongoing = requests_.at(*next++);
      if (!find_room(ongoing) || !ongoing.fits(*engine.limits)) continue;
      if (least == nullptr || ongoing.blame < least->blame) least = &ongoing;
    }
    if (least == nullptr) continue;
    engine.alone = true;
    submit(*least, engine);
  }
}

// Fails a request that no engine takes any more; returns whether there is one that does. Some may
// come back with less than they had.
bool HealingFleet::find_room(Ongoing& ongoing) {
  const SamplingParams& params = ongoing.request.params;
  if (ongoing.max_num_tokens == 0) {  // an engine ends the output there, or refuses the prompt
    const int64_t wanted = params.max_tokens == kAsManyAsFit ? 1 : params.max_tokens;
    const auto num_prompt_tokens = static_cast<int64_t>(ongoing.request.prompt_token_ids.size());
    ongoing.max_num_tokens =
        std::min<int64_t>(num_prompt_tokens + wanted, limits_.max_num_tokens());
    return true;
  }
  const auto takes_it = [&](const Engine& engine) {
    return engine.limits && ongoing.fits(*engine.limits);
  };
  if (std::ranges::any_of(engines_, takes_it)) return true;
  fail(ongoing, ErrorCode::kInvalidArgument,
       fmt::format("The request can't fit any more: it may come to {} tokens, prompt and output "
                   "together, but workers came back with less memory and take {}; ask for fewer.",
                   ongoing.num_tokens(), limits_.max_num_tokens()));
  return false;
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
  std::ranges::fill(ongoing.num_deltas, 0);
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
  lose(engine, why);
  engine.client->kill();
}

void HealingFleet::bury(Engine& engine, const EngineFault& fault) {
  const bool starting = !std::ranges::all_of(engines_, &Engine::has_spoken);
  // A GPU that is not there will not come, however many others have one.
  const bool is_hopeless = !hello_ || (starting && fault.code == ErrorCode::kUnsupported);
  if (is_hopeless && !start_error_) start_error_.emplace(fault.code, fault.message);
  engine.has_spoken = engine.dead = true;
  if (engine.num_tries > 0 && fault.code != ErrorCode::kUnavailable) ++engine.num_failures;
  engine.retry_at = Clock::now() + engine.back_off;
  engine.back_off = std::clamp(2 * engine.back_off, kLeastBackOff, kMostBackOff);
  changed_.notify_all();
  if (std::exchange(engine.given_up, false)) return;  // it was lost before
  lose(engine, fault.message);
}

// Those aboard go on elsewhere, or here once it is back.
void HealingFleet::lose(Engine& engine, const std::string& why) {
  set_ready(engine, false);
  if (num_ready_ == 0) why_ = why;
  if (!start_error_) {  // which wait_ready() tells
    observer_.on_message(fmt::format("{} It is started again; {} on it will go on.", why,
                                     counted(std::ssize(engine.aboard), "request")));
  }
  while (!engine.aboard.empty()) {
    Ongoing& ongoing = requests_.at(*engine.aboard.begin());
    if (!ongoing.is_proven()) ++ongoing.blame;
    take_off(ongoing, /*abort=*/false);
    if (ongoing.blame >= kGuilty) {
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
  if (before == 0 || num_ready_ == 0) {
    since_ = std::chrono::system_clock::now();
    unready_since_ = Clock::now();
  }
  changed_.notify_all();
}

void HealingFleet::keep() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    auto next = look_after_unready(lock);
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
    return engine.dead ? engine.retry_at : now;
  }
  if (engine.given_up) return Clock::time_point::max();
  // Where no other is ready, look_after_unready() has the patience.
  if (engine.ready ? engine.aboard.empty() : num_ready_ == 0) return Clock::time_point::max();
  const auto patience = engine.ready ? options_.worker_timeout : options_.worker_start_timeout;
  const auto deadline = std::max(engine.started_at, engine.last_sign) + patience;
  if (now < deadline) return deadline;
  give_up(engine, fmt::format("Worker {} made no progress{} for {} s.", engine.index,
                              engine.ready ? "" : " with its loading",
                              std::chrono::duration<double>(patience).count()));
  dispatch();
  wake_streams(lock);
  lock.lock();
  return now;
}

// Nobody that was shown something is sent away, as nobody else can go on with it; the others wait
// for an engine that is soon back. Returns when to look again.
Clock::time_point HealingFleet::look_after_unready(std::unique_lock<std::mutex>& lock) {
  if (num_ready_ > 0 || told_unready_) return Clock::time_point::max();
  const auto now = Clock::now();
  auto next = Clock::time_point::max();
  const bool has_failed = std::ranges::all_of(
      engines_, [](const Engine& engine) { return engine.num_failures > kNumTries; });
  if (hello_ && !has_failed && now < unready_since_ + options_.unready_patience) {
    next = unready_since_ + options_.unready_patience;
  } else if (hello_) {
    for (auto one = requests_.begin(); one != requests_.end();) {
      Ongoing& ongoing = (one++)->second;
      if (ongoing.is_shown()) continue;
      fail(ongoing, ErrorCode::kUnavailable,
           fmt::format("No worker is ready; try again later. {}", why_));
    }
    wake_streams(lock);
    lock.lock();
  }
  Clock::duration advanced{0};  // time that does not count: of a load that has not ended in a death
  for (const Engine& engine : engines_) {
    const auto begin = std::max(engine.started_at, unready_since_);
    if (!engine.dead) advanced = std::max(advanced, engine.last_sign - begin);
  }
  const auto deadline = unready_since_ + advanced + options_.worker_start_timeout;
  if (now < deadline) return std::min(next, deadline);
  told_unready_ = true;
  observer_.on_unready(
      fmt::format("No worker was ready for {} s: {} Where loading takes longer, raise "
                  "--worker-start-timeout.",
                  std::chrono::duration<double>(options_.worker_start_timeout).count(), why_));
  return Clock::time_point::max();
}

void HealingFleet::start(Engine& engine) {
  if (engine.num_tries++ == kNumTries) engine.limits.reset();
  engine.dead = false;
  engine.started_at = Clock::now();
  if (engine.num_starts++ > 0) {
    ++num_restarts_;
    observer_.on_restart(engine.index);
  }
  EngineListener listener = {
      .on_ready = [this, &engine](EngineHello hello) { change([&] { hear(engine, hello); }); },
      .on_events = [this, &engine](
                       std::vector<EngineEvent> events) { change([&] { hear(engine, events); }); },
      .on_progress =
          [this, &engine](EngineProgress) {
            const std::lock_guard lock(mutex_);
            engine.last_sign = Clock::now();
          },
      .on_death =
          [this, &engine](ErrorCode code, const std::string& error) {
            change([&] { bury(engine, {code, error}); });
          }};
  try {
    // Its first word waits for the lock, and finds the client in its place.
    const int num_blocks = engine.limits ? engine.limits->num_kvcache_blocks : -1;
    engine.client = start_({engine.index, num_blocks}, std::move(listener));
  } catch (...) {
    bury(engine, fault_of(std::current_exception()));
  }
}

}  // namespace nanovllm::server
