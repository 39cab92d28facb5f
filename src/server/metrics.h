// What /metrics tells: vLLM's metrics, with its names, labels and buckets, and a few of our own.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/config.h"
#include "nanovllm/engine_info.h"
#include "server/fleet/fleet.h"

namespace prometheus {
class Counter;
class Registry;
}  // namespace prometheus

namespace nanovllm::server {

class Metrics {
 public:
  Metrics(std::string model_name, int num_engines);
  ~Metrics();

  // Once, when the fleet is ready and before its first request. There are no metrics until then.
  // `info` stands for engines that were never ready.
  void begin(const EngineInfo& info, const EngineConfig& config);
  // For make_fleet; calls this object's on_...().
  FleetObserver observer();

  // As the fleet calls them: one at a time for each engine.
  void on_ready(int engine, const EngineLimits& limits);
  void on_restart(int engine);
  void on_step(int engine, const StepStats& stats);
  void on_idle(int engine);
  void on_tokens(int engine, bool first, double seconds);
  void on_end(int engine, const AddRequest& request, const RequestEnd& end, bool failed);
  // From any thread: Fleet::add threw QueueFull.
  void on_queue_full();

  // In Prometheus' text format. From any thread, at any time.
  std::string text() const;

 private:
  struct Engine;
  struct Front;

  const std::string model_name_;
  std::mutex limits_mutex_;                          // begin() and on_ready() may meet
  std::vector<std::optional<EngineLimits>> limits_;  // of engines that were ready
  const std::unique_ptr<prometheus::Registry> registry_;
  std::vector<prometheus::Counter*> restarts_;  // by engine; they count from the start on
  std::unique_ptr<Front> front_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::atomic<bool> begun_ = false;
};

}  // namespace nanovllm::server
