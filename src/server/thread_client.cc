// An engine on threads of this process, behind the interface of one that is a process.
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "base/signals.h"
#include "server/fleet.h"

namespace nanovllm::server {

namespace {

class ThreadClient final : public EngineClient {
 public:
  ThreadClient(std::function<LLMEngine()> load, EngineListener listener)
      : load_(std::move(load)), listener_(std::move(listener)) {
    const SignalsBlocked in_thread;
    thread_ = std::thread([this] { run(); });
  }

  ~ThreadClient() override {
    end(std::nullopt);
    thread_.join();
  }

  void submit(const EngineCommand& command) override {
    const std::lock_guard lock(mutex_);
    if (!ended_ && loop_) loop_->try_submit(command);  // there is always room
  }

  void kill() noexcept override { end(EngineFault{ErrorCode::kUnavailable, "It was ended."}); }

 private:
  // Nothing is told from here on but its death, where there is one.
  void end(std::optional<EngineFault> fault) noexcept {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
    fault_ = std::move(fault);
    changed_.notify_one();
  }

  void run() noexcept {
    try {
      serve();
    } catch (const Error& error) {
      end(EngineFault{error.code(), error.what()});
    } catch (const std::bad_alloc&) {
      end(EngineFault{ErrorCode::kOutOfMemory, "There was no memory left to load the model."});
    } catch (const std::exception& error) {
      end(EngineFault{ErrorCode::kInternal, error.what()});
    }
    if (fault_) listener_.on_death(fault_->code, fault_->message);
  }

  void serve() {
    auto loop = std::make_unique<EngineLoop>(
        load_(), [this](std::vector<EngineEvent> events) { tell(std::move(events)); },
        std::numeric_limits<size_t>::max());
    EngineHello hello = hello_of(*loop);
    {
      const std::lock_guard lock(mutex_);
      if (ended_) return;
      loop_ = std::move(loop);
    }
    listener_.on_ready(std::move(hello));
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ended_; });
      loop = std::move(loop_);
    }
  }

  void tell(std::vector<EngineEvent>&& events) {
    {
      const std::lock_guard lock(mutex_);
      if (ended_) return;
    }
    if (const RequestError* fault = fault_among(events)) {
      end(EngineFault{fault->code, fault->message});
    } else {
      listener_.on_events(std::move(events));
    }
  }

  const std::function<LLMEngine()> load_;
  const EngineListener listener_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::unique_ptr<EngineLoop> loop_;
  bool ended_ = false;
  std::optional<EngineFault> fault_;

  std::thread thread_;
};

}  // namespace

EngineStarter thread_starter(std::function<LLMEngine(const EngineStart& start)> load) {
  return [load = std::move(load)](const EngineStart& start, EngineListener listener) {
    return std::make_unique<ThreadClient>([load, start] { return load(start); },
                                          std::move(listener));
  };
}

}  // namespace nanovllm::server
