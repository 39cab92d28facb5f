// Worker processes, and engines on threads of this one.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "base/check.h"
#include "server/fleet/fleet.h"
#include "server/fleet/socket_client.h"
#include "server/fleet/worker.h"

namespace nanovllm::server {

namespace {

constexpr int kWorkerSocket = 3;  // its number in the worker, behind the standard streams

// In the child: nothing but system calls, as other threads may have held locks when it was forked.
[[noreturn]] void become_worker(const char* binary, char* const* arguments, int socket,
                                pid_t front) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != front) ::_exit(127);  // it died before
  ::setpgid(0, 0);                         // what the terminal sends is for the front
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (socket == kWorkerSocket) {
    ::fcntl(socket, F_SETFD, 0);
  } else {
    ::dup2(socket, kWorkerSocket);
  }
  ::close_range(kWorkerSocket + 1, ~0U, 0);
  ::execv(binary, arguments);
  ::_exit(127);
}

class ProcessHost final : public EngineHost {
 public:
  ProcessHost(int index, std::string binary, std::vector<std::string> arguments)
      : index_(index), binary_(std::move(binary)), arguments_(std::move(arguments)) {}

  // Its thread must outlive the worker, which the system ends with it.
  void start(int socket) override {
    std::string name = kWorkerName;
    std::vector<char*> arguments = {name.data()};
    for (std::string& argument : arguments_) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    const pid_t front = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) become_worker(binary_.c_str(), arguments.data(), socket, front);
    if (pid_ < 0) {
      throw_error(ErrorCode::kIo, "Worker {} can't be started: {}.", index_, std::strerror(errno));
    }
  }

  EngineFault end() override {
    if (pid_ <= 0) return {};
    ::kill(pid_, SIGKILL);
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    if (!WIFSIGNALED(status)) {
      return {ErrorCode::kInternal,
              fmt::format("Worker {} ended with status {}.", index_, WEXITSTATUS(status))};
    }
    const int signal = WTERMSIG(status);
    const char* name = ::sigabbrev_np(signal);
    return {signal == SIGKILL ? ErrorCode::kUnavailable : ErrorCode::kInternal,
            fmt::format("Worker {} was ended by SIG{}.", index_, name == nullptr ? "?" : name)};
  }

 private:
  const int index_;
  std::string binary_;
  std::vector<std::string> arguments_;
  pid_t pid_ = 0;
};

class ThreadHost final : public EngineHost {
 public:
  explicit ThreadHost(EngineLoader load) : load_(std::move(load)) {}
  ~ThreadHost() override { ThreadHost::end(); }
  ThreadHost(const ThreadHost&) = delete;
  ThreadHost& operator=(const ThreadHost&) = delete;

  void start(int socket) override {
    const int own = ::fcntl(socket, F_DUPFD_CLOEXEC, 0);
    thread_ = std::thread([this, own] {
      serve_socket(own, load_);
      ::close(own);
    });
  }

  EngineFault end() override {
    if (thread_.joinable()) thread_.join();
    return {ErrorCode::kUnavailable, "It was ended."};
  }

 private:
  const EngineLoader load_;
  std::thread thread_;
};

}  // namespace

EngineStarter worker_starter(std::vector<std::string> arguments, std::string binary) {
  return [arguments = std::move(arguments), binary = std::move(binary)](const EngineStart& start,
                                                                        EngineListener listener) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--worker-fd", std::to_string(kWorkerSocket), "--worker-index",
                           std::to_string(start.index)});
    if (start.num_kvcache_blocks > 0) {
      all.insert(all.end(), {"--num-kvcache-blocks", std::to_string(start.num_kvcache_blocks)});
    }
    return make_socket_client(std::make_unique<ProcessHost>(start.index, binary, std::move(all)),
                              std::move(listener));
  };
}

EngineStarter thread_starter(std::function<LLMEngine(const EngineStart& start)> load) {
  return [load = std::move(load)](const EngineStart& start, EngineListener listener) {
    return make_socket_client(
        std::make_unique<ThreadHost>([load, start](Progress&) { return load(start); }),
        std::move(listener));
  };
}

}  // namespace nanovllm::server
