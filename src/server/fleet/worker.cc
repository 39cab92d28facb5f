#include "server/fleet/worker.h"

#include <sys/prctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/message.h"
#include "base/signals.h"
#include "engine/load.h"
#include "server/fleet/engine_client.h"
#include "server/fleet/fleet.h"
#include "server/fleet/frame_buffer.h"

namespace nanovllm::server {

namespace {

constexpr size_t kMaxRead = size_t{1} << 16;  // bytes
constexpr int kWarmUpTokens = 128;

// A fraction of any time that one might wait for a sign of life; few enough to cost nothing.
constexpr std::chrono::milliseconds kProgressInterval{100};

// What any thread tells the front.
class Reporter {
 public:
  explicit Reporter(int socket) : socket_(socket) {}

  // Waits for room; what nobody reads any more is lost.
  void report(const EngineReport& what) {
    const std::lock_guard lock(mutex_);
    send(what);
  }

  // What the step told is dropped with its fault: the next engine computes it again.
  void report_events(std::vector<EngineEvent>&& events) {
    const RequestError* fault = fault_among(events);
    if (fault == nullptr) return report(std::move(events));
    const std::lock_guard lock(mutex_);
    send(EngineFault{fault->code, fault->message});
    // The front, which sees it, kills what hangs in a failed device.
    ::shutdown(socket_, SHUT_RDWR);
  }

 private:
  void send(const EngineReport& what) const {
    std::string bytes;
    append_frame(what, bytes);
    std::string_view rest = bytes;
    while (!rest.empty()) {
      const ssize_t count = ::send(socket_, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return;
      rest.remove_prefix(static_cast<size_t>(count));
    }
  }

  const int socket_;
  std::mutex mutex_;  // one frame at a time, and none behind a fault
};

// As long as it lives, a thread tells the front of progress: a step may take longer than the front
// waits for a sign of life.
class ProgressReports {
 public:
  ProgressReports(Reporter& reporter, const Progress& progress) {
    const SignalsBlocked in_thread;
    thread_ = std::jthread([this, &reporter, &progress](const std::stop_token& stop) {
      for (uint64_t told = 0; !stop.stop_requested(); wait(stop)) {
        const uint64_t count = progress.count();
        if (count != told) reporter.report(EngineProgress{count});
        told = count;
      }
    });
  }

 private:
  void wait(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    stopped_.wait_for(lock, stop, kProgressInterval, [] { return false; });
  }

  std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::jthread thread_;  // the last member: it ends before the others
};

void serve(int socket, Reporter& reporter, LLMEngine engine) {
  EngineLoop loop(std::move(engine), [&reporter](std::vector<EngineEvent> events) {
    reporter.report_events(std::move(events));
  });
  reporter.report(
      EngineHello{loop.info(), loop.default_sampling_params(), loop.preparer().model_dir});
  FrameBuffer frames;
  std::string bytes(kMaxRead, '\0');
  for (;;) {
    const ssize_t count = ::recv(socket, bytes.data(), bytes.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    frames.add({bytes.data(), static_cast<size_t>(count)});
    for (EngineCommand command; frames.next(command);) loop.submit(std::move(command));
  }
}

// What the first request of all waits for, memory that nobody touched and code that nobody ran, is
// waited for before anyone asks. The prompt fills no block, so that the prefix cache keeps nothing.
void warm_up(LLMEngine& engine) {
  const EngineInfo& info = engine.info();
  const int length = std::min({kWarmUpTokens, info.kvcache_block_size - 2, info.max_model_len - 2});
  if (length <= 0) return;
  engine.add_request(std::vector<int32_t>(static_cast<size_t>(length)),
                     {.max_tokens = 2, .ignore_eos = true});
  while (!engine.is_finished()) engine.step();
}

}  // namespace

EngineFault fault_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return {e.code(), e.what()};
  } catch (const std::bad_alloc&) {
    return {ErrorCode::kOutOfMemory, "There was no memory left."};
  } catch (const std::exception& e) {
    return {ErrorCode::kInternal, e.what()};
  }
}

const RequestError* fault_among(const std::vector<EngineEvent>& events) {
  for (const EngineEvent& event : events) {
    const auto* error = std::get_if<RequestError>(&event);
    if (error != nullptr &&
        (error->code == ErrorCode::kInternal || error->code == ErrorCode::kOutOfMemory)) {
      return error;
    }
  }
  return nullptr;
}

bool serve_socket(int socket, const EngineLoader& load) {
  Reporter reporter(socket);
  try {
    Progress progress;
    const ProgressReports reports(reporter, progress);
    serve(socket, reporter, load(progress));
    return true;
  } catch (...) {
    reporter.report(fault_of(std::current_exception()));
    return false;
  }
}

int serve_engine(int socket, const EngineLoader& load) {
  // Who stops a service signals all of its processes: the front decides what becomes of this one.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_IGN);
  return serve_socket(socket, load) ? EXIT_SUCCESS : EXIT_FAILURE;
}

EngineConfig config_of_worker(int index, EngineConfig config) {
  config.first_gpu += index * config.tensor_parallel_size;
  return config;
}

int run_worker(int socket, int index, const std::string& model, const EngineConfig& config) {
  ::prctl(PR_SET_NAME, kWorkerName);
  return serve_engine(socket, [&](Progress& progress) {
    LLMEngine engine(load_engine_core(model, config_of_worker(index, config), &progress));
    warm_up(engine);
    return engine;
  });
}

}  // namespace nanovllm::server
