// Engines of a fleet that do what a test says.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "server/fleet/fleet_testing.h"

namespace nanovllm::server {

class Stage {
 public:
  explicit Stage(int num_engines) : engines_(static_cast<size_t>(num_engines)) {}

  EngineStarter starter() {
    return [this](const EngineStart& start, EngineListener listener) {
      const std::lock_guard lock(mutex_);
      Actor& engine = engines_[static_cast<size_t>(start.index)];
      if (engine.is_lost) throw_error(ErrorCode::kInternal, "The GPU fell off.");
      engine.listener = std::move(listener);
      engine.aboard.clear();
      ++engine.num_starts;
      engine.num_blocks.push_back(start.num_kvcache_blocks);
      return std::make_unique<Client>(*this, start.index);
    };
  }
  // Waits until an engine was started so often, and lets it be loaded.
  void load(int index, int num_starts = 1, const std::string& device = "cpu (2 threads)",
            int num_blocks = 100, int max_model_len = 1000) {
    wait_started(index, num_starts);
    EngineHello hello;
    hello.info.device = device;
    hello.info.device_type = device.find("cuda") == std::string::npos ? "cpu" : "cuda";
    hello.info.vocab_size = 50;
    hello.info.kvcache_block_size = 4;
    hello.info.num_kvcache_blocks = num_blocks;
    hello.info.max_model_len = max_model_len;
    listener(index).on_ready(hello);
  }
  // It gets on with its loading.
  void advance(int index) { listener(index).on_progress({}); }
  void wait_started(int index, int num_starts) {
    until([&] { return engines_[static_cast<size_t>(index)].num_starts == num_starts; });
  }
  void die(int index, bool for_ever = false, ErrorCode code = ErrorCode::kInternal) {
    {
      const std::lock_guard lock(mutex_);
      engines_[static_cast<size_t>(index)].is_lost = for_ever;
      engines_[static_cast<size_t>(index)].aboard.clear();
    }
    listener(index).on_death(code, "It died.");
  }
  // What runs on an engine with a prompt of this first token ends, or one of its completions.
  void end(int index, int prompt, int completion = 0, bool last = true) {
    RequestEnd end{.index = completion, .finish_reason = FinishReason::kStop, .last = last};
    {
      const std::lock_guard lock(mutex_);
      auto& aboard = engines_[static_cast<size_t>(index)].aboard;
      ASSERT_TRUE(aboard.contains(prompt));
      end.id = aboard.at(prompt);
      if (last) aboard.erase(prompt);
    }
    listener(index).on_events({end});
  }
  // It gains a token, several times.
  void tell(int index, int prompt, int count = 1, int completion = 0) {
    RequestDelta delta{.index = completion, .text = "a", .token_ids = {1}};
    {
      const std::lock_guard lock(mutex_);
      const auto& aboard = engines_[static_cast<size_t>(index)].aboard;
      ASSERT_TRUE(aboard.contains(prompt));
      delta.id = aboard.at(prompt);
    }
    for (int i = 0; i < count; ++i) listener(index).on_events({delta});
  }
  // The first tokens of the prompts of what runs on an engine.
  std::vector<int> aboard(int index) {
    const std::lock_guard lock(mutex_);
    std::vector<int> prompts;
    for (const auto& [prompt, id] : engines_[static_cast<size_t>(index)].aboard) {
      prompts.push_back(prompt);
    }
    return prompts;
  }
  // It computed so much that the next start need not wait.
  void compute(int index) {
    for (int i = 0; i < 4; ++i) listener(index).on_events({StepStats{}});
  }
  // The blocks of KV that each start was to have; -1 = what fits.
  std::vector<int> num_blocks(int index) {
    const std::lock_guard lock(mutex_);
    return engines_[static_cast<size_t>(index)].num_blocks;
  }
  int num_kills(int index) {
    const std::lock_guard lock(mutex_);
    return engines_[static_cast<size_t>(index)].num_kills;
  }

 private:
  struct Actor {
    EngineListener listener;
    std::map<int, uint64_t> aboard;  // ids by the first token of their prompts
    std::vector<int> num_blocks = {};
    int num_starts = 0, num_kills = 0;
    bool is_lost = false;
  };
  class Client final : public EngineClient {
   public:
    Client(Stage& stage, int index) : stage_(stage), index_(static_cast<size_t>(index)) {}
    void submit(const EngineCommand& command) override {
      const std::lock_guard lock(stage_.mutex_);
      auto& aboard = stage_.engines_[index_].aboard;
      if (const auto* add = std::get_if<AddRequest>(&command)) {
        aboard.emplace(add->prompt_token_ids.at(0), add->id);
      } else if (const auto* abort = std::get_if<AbortRequest>(&command)) {
        std::erase_if(aboard, [&](const auto& entry) { return entry.second == abort->id; });
      }
    }
    void kill() noexcept override {
      const std::lock_guard lock(stage_.mutex_);
      ++stage_.engines_[index_].num_kills;
    }

   private:
    Stage& stage_;
    const size_t index_;
  };

  EngineListener listener(int index) {
    const std::lock_guard lock(mutex_);
    return engines_[static_cast<size_t>(index)].listener;
  }
  void until(const std::function<bool()>& condition) {
    for (int i = 0; i < 60'000; ++i) {
      {
        const std::lock_guard lock(mutex_);
        if (condition()) return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "it does not happen";
  }

  std::mutex mutex_;  // guards what follows
  std::vector<Actor> engines_;
};

}  // namespace nanovllm::server
