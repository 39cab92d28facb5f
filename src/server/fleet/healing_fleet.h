// The fleet's books: which requests there are, where they run, and how the engines are.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/signals.h"
#include "engine/request.h"
#include "server/fleet/fleet.h"
#include "server/fleet/prefix_router.h"
#include "server/fleet/request_stream.h"

namespace nanovllm::server {

using std::chrono::milliseconds;

struct Engine;

// A request that has not ended.
struct Ongoing {
  AddRequest request;  // its previous_output_ids are what the stream was given
  std::shared_ptr<StreamBuffer> buffer;
  std::vector<bool> ended = {};  // [n] completions
  bool prompt_told = false;
  Engine* engine = nullptr;               // that it is aboard of
  uint64_t aboard_as = 0;                 // its id there: another one each time
  std::vector<int> num_deltas = {};       // [n] there
  int blame = 0;                          // deaths that it may have caused
  int64_t max_num_tokens = 0;             // that were promised to it; 0 = it was not looked at yet
  std::vector<double> last_token_s = {};  // [n] seconds after added_at; 0 = there is none
  double first_token_s = 0;               // of all of them
  double aboard_s = 0;                    // when it came aboard
  Clock::time_point added_at = Clock::now();

  uint64_t id() const { return request.id; }
  // Each completion came so far there that it is none that ends engines where it stands.
  bool is_proven() const;
  bool is_shown() const { return first_token_s > 0 || prompt_told; }
  bool fits(const EngineLimits& limits) const { return num_tokens() <= limits.max_num_tokens(); }
  int64_t num_tokens() const;  // that there must be room for
  // Seconds after added_at, whichever engines it was aboard of: `there` is what the last one says.
  RequestMetrics metrics(const RequestMetrics& there) const;
};

struct Engine {
  int index = 0;
  std::unique_ptr<EngineClient> client = {};
  bool dead = true;  // to be started at retry_at
  bool ready = false;
  bool has_spoken = false;                  // it was ready or dead
  bool given_up = false;                    // was killed, and its requests are elsewhere
  bool alone = false;                       // what is aboard is suspect: nothing may come beside it
  std::optional<EngineLimits> limits = {};  // that it has, or had and is to have again
  int num_steps = 0;                        // since it was ready
  int num_starts = 0;
  int num_tries = 0;     // starts since it was ready
  int num_failures = 0;  // of these, without a SIGKILL
  Clock::time_point started_at = {};
  Clock::time_point last_sign = {};  // that it gets on: events or progress
  Clock::time_point retry_at = {};
  milliseconds back_off{0};
  std::set<uint64_t> aboard = {};  // request ids
};

class HealingFleet final : public Fleet {
 public:
  HealingFleet(const FleetOptions& options, EngineStarter start, FleetObserver observer)
      : options_(options),
        start_(std::move(start)),
        observer_(std::move(observer)),
        engines_(static_cast<size_t>(options.num_engines)) {
    for (int i = 0; i < options.num_engines; ++i) engines_[static_cast<size_t>(i)].index = i;
    const SignalsBlocked in_thread;
    keeper_ = std::thread([this] { keep(); });
  }
  ~HealingFleet() override { HealingFleet::shut_down({}); }

  const EngineHello& wait_ready() override;
  FleetStatus status() const override;
  std::shared_ptr<RequestStream> add(AddRequest request) override;
  void shut_down(milliseconds timeout) override;

 private:
  void cancel(uint64_t id) noexcept;

  // With mutex_ held, and afterwards what it gave streams is announced.
  template <typename Act>
  void change(Act act) {
    std::unique_lock lock(mutex_);
    act();
    dispatch();
    wake_streams(lock);
  }
  void wake_streams(std::unique_lock<std::mutex>& lock);  // releases it

  // All below with mutex_ held.
  void hear(Engine& engine, EngineHello& hello);
  void hear(Engine& engine, std::vector<EngineEvent>& events);
  void hear(Engine& engine, PromptLogprobs& event);
  void hear(Engine& engine, RequestDelta& event);
  void hear(Engine& engine, RequestEnd& event);
  void hear(Engine& engine, RequestError& event);
  void hear(Engine& engine, StepStats& event);
  Ongoing* aboard(uint64_t id_there);
  void end_probation(Engine& engine);
  void dispatch();
  void dispatch_suspects();
  const Engine* reserved() const;
  bool find_room(Ongoing& ongoing);
  void submit(Ongoing& ongoing, Engine& engine);
  void deliver(const Ongoing& ongoing, EngineEvent&& event, bool last);
  void take_off(Ongoing& ongoing, bool abort);
  void forget(Ongoing& ongoing);
  void fail(Ongoing& ongoing, ErrorCode code, const std::string& why);
  void tell_aborts(const Ongoing& ongoing, bool failed) const;
  void tell_idle(const Engine& engine) const;
  void give_up(Engine& engine, const std::string& why);
  void bury(Engine& engine, const EngineFault& fault);
  void lose(Engine& engine, const std::string& why);
  void set_ready(Engine& engine, bool ready);

  // The keeper's thread: starts engines, and kills those that hang.
  void keep();
  Clock::time_point look_after(Engine& engine, std::unique_lock<std::mutex>& lock);
  Clock::time_point look_after_unready(std::unique_lock<std::mutex>& lock);
  void start(Engine& engine);

  const FleetOptions options_;
  const EngineStarter start_;
  const FleetObserver observer_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Engine> engines_;
  std::map<uint64_t, Ongoing> requests_;   // by id: the oldest first
  std::set<uint64_t> waiting_, suspects_;  // ids, aboard of no engine
  uint64_t next_id_ = 0;
  std::vector<std::function<void()>> wakes_;  // to be called when nobody holds mutex_
  int num_queued_ = 0, num_ready_ = 0, num_restarts_ = 0;
  std::optional<EngineHello> hello_;  // the first one
  EngineLimits limits_ = {};          // of the engine that takes the longest requests
  std::optional<PrefixRouter> router_;
  std::optional<Error> start_error_;
  std::chrono::system_clock::time_point since_ = std::chrono::system_clock::now();
  Clock::time_point unready_since_ = Clock::now();
  std::string why_ = "The model is being loaded.";
  bool told_unready_ = false;
  bool closed_ = false, stopping_ = false;
  Clock::time_point deadline_ = Clock::time_point::max();

  std::thread keeper_;
  std::once_flag stopped_;
};

}  // namespace nanovllm::server
