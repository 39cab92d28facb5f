// What the tests of the fleet share: engines that can be killed, and what streams gave their users.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "engine/engine_test_support.h"
#include "server/fleet/fleet.h"

namespace nanovllm::server {

inline const std::string kWorkerDriver = test::build_path("tests/server_worker_driver");
inline const std::string kDemoModel = test::source_path("models/demo");

// What a completion's user has seen.
struct SeenCompletion {
  std::string text;
  Ids token_ids;
  std::vector<PositionLogprobs> logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason;
  bool operator==(const SeenCompletion&) const = default;
};

struct Seen {
  std::map<int, SeenCompletion> completions;
  std::vector<std::optional<PositionLogprobs>> prompt_logprobs;
  std::string error;
  ErrorCode code = {};
  bool over = false;
  size_t num_events = 0;
  bool operator==(const Seen& other) const {
    return completions == other.completions && prompt_logprobs == other.prompt_logprobs &&
           error == other.error;
  }

  void add(EngineEvent&& event) {
    ++num_events;
    EXPECT_FALSE(over) << "something came behind the last event";
    std::visit([this](auto& what) { take(what); }, event);
  }
  size_t num_tokens() const {
    size_t count = 0;
    for (const auto& [index, completion] : completions) count += completion.token_ids.size();
    return count;
  }

 private:
  void take(PromptLogprobs& event) {
    EXPECT_TRUE(prompt_logprobs.empty()) << "told twice";
    EXPECT_TRUE(completions.empty()) << "told too late";
    prompt_logprobs = std::move(event.positions);
  }
  void take(RequestDelta& event) {
    SeenCompletion& to = completions[event.index];
    EXPECT_EQ(to.finish_reason, FinishReason::kNone) << "a delta came behind its end";
    to.text += event.text;
    to.token_ids.insert(to.token_ids.end(), event.token_ids.begin(), event.token_ids.end());
    to.logprobs.insert(to.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
  }
  void take(RequestEnd& event) {
    SeenCompletion& to = completions[event.index];
    EXPECT_EQ(to.finish_reason, FinishReason::kNone) << "ended twice";
    to.finish_reason = event.finish_reason;
    to.stop_reason = event.stop_reason;
    EXPECT_LE(event.metrics.time_to_first_token, event.metrics.time_to_finish);
    over = event.last;
  }
  void take(RequestError& event) {
    error = event.message;
    code = event.code;
    over = true;
  }
  void take(StepStats&) { ADD_FAILURE() << "no stream's business"; }
};

// Waits until a stream has something; false where nothing comes.
inline bool wait_for_events(RequestStream& stream, std::chrono::milliseconds timeout) {
  struct Bell {
    std::mutex mutex;
    std::condition_variable rung;
    bool ready = false;
  };
  const auto bell = std::make_shared<Bell>();
  stream.on_ready([bell] {
    const std::lock_guard lock(bell->mutex);
    bell->ready = true;
    bell->rung.notify_one();
  });
  std::unique_lock lock(bell->mutex);
  return bell->rung.wait_for(lock, timeout, [&] { return bell->ready; });
}

// Reads on until the stream is over or `enough` of what was seen.
inline void read_until(RequestStream& stream, Seen& seen,
                       const std::function<bool(const Seen&)>& enough) {
  while (!seen.over && !enough(seen)) {
    if (!wait_for_events(stream, std::chrono::seconds(60))) {
      ADD_FAILURE() << "the stream hangs";
      return;
    }
    for (EngineEvent& event : stream.take()) seen.add(std::move(event));
  }
}

inline Seen read(RequestStream& stream, Seen seen = {}) {
  read_until(stream, seen, [](const Seen&) { return false; });
  return seen;
}

// The workers of this process that are alive. Those with a model have the name of the binary's.
inline std::vector<pid_t> worker_pids() {
  std::vector<pid_t> pids;
  DIR* folder = ::opendir("/proc");
  while (const dirent* entry = ::readdir(folder)) {
    std::ifstream file("/proc/" + std::string(entry->d_name) + "/stat");
    std::string pid, name, state, parent;
    if (!(file >> pid >> name >> state >> parent)) continue;
    if (name != "(server_worker_d)" && name != "(nanovllm-worker)") continue;
    if (std::stoi(parent) == ::getpid() && state != "Z") pids.push_back(std::stoi(pid));
  }
  ::closedir(folder);
  return pids;
}

// Sends a signal to the workers that there are. Returns how many there were.
inline int signal_workers(int signal) {
  const auto pids = worker_pids();
  for (const pid_t pid : pids) ::kill(pid, signal);
  return static_cast<int>(pids.size());
}

inline EngineStarter fake_workers(std::vector<std::string> flags = {}) {
  flags.insert(flags.begin(), "fake");
  return worker_starter(std::move(flags), kWorkerDriver);
}

inline AddRequest request_of(const Ids& prompt, const SamplingParams& params) {
  return {.prompt_token_ids = prompt, .params = params};
}

}  // namespace nanovllm::server
