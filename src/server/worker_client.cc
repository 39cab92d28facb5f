// A worker process and the thread that looks after it.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/signals.h"
#include "server/fleet.h"
#include "server/frame_socket.h"

namespace nanovllm::server {

namespace {

constexpr int kWorkerSocket = 3;  // its number in the worker, behind the standard streams
constexpr std::chrono::milliseconds kTimeToLeave{2'000};

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {
    if (number < 0) {
      throw_error(ErrorCode::kIo, "There is no descriptor for a worker: {}.", std::strerror(errno));
    }
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  int number() const { return number_; }

 private:
  int number_ = -1;
};

// The front's end and the worker's. Neither is inherited by whatever else the front may start.
std::pair<Descriptor, Descriptor> make_sockets() {
  int ends[2] = {-1, -1};
  const int status = ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
  return {Descriptor(status == 0 ? ends[0] : -1), Descriptor(ends[1])};
}

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

std::string words_for(int index, int status) {
  if (WIFSIGNALED(status)) {
    const char* name = ::sigabbrev_np(WTERMSIG(status));
    return fmt::format("Worker {} was ended by SIG{}.", index, name == nullptr ? "?" : name);
  }
  return fmt::format("Worker {} ended with status {}.", index, WEXITSTATUS(status));
}

class WorkerClient final : public EngineClient {
 public:
  WorkerClient(std::string binary, std::vector<std::string> arguments, int index,
               EngineListener listener)
      : binary_(std::move(binary)),
        arguments_(std::move(arguments)),
        index_(index),
        listener_(std::move(listener)),
        bell_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    const SignalsBlocked in_thread;
    thread_ = std::thread([this] { run(); });
  }

  ~WorkerClient() override {
    {
      const std::lock_guard lock(mutex_);
      leave_ = true;
    }
    ring();
    thread_.join();
  }

  void submit(const EngineCommand& command) override {
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      first = outbox_.empty();
      append_frame(command, outbox_);
    }
    if (first) ring();
  }

  void kill() noexcept override {
    const std::lock_guard lock(mutex_);
    killed_ = true;
    if (pid_ > 0) ::kill(pid_, SIGKILL);
  }

 private:
  void ring() const {
    const uint64_t once = 1;
    (void)!::write(bell_.number(), &once, sizeof once);  // full: it rings already
  }

  void run() noexcept {
    EngineFault fault{ErrorCode::kInternal, ""};
    bool leaves = false;
    try {
      start();
      leaves = talk(fault);
    } catch (const Error& error) {
      fault = {error.code(), error.what()};
    } catch (const std::exception& error) {
      fault = {ErrorCode::kInternal, error.what()};
    }
    if (leaves) see_off();
    const int status = reap();
    if (leaves) return;
    if (fault.message.empty()) {
      const bool from_outside = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      fault = {from_outside ? ErrorCode::kUnavailable : ErrorCode::kInternal,
               words_for(index_, status)};
    }
    listener_.on_death(fault.code, std::move(fault.message));
  }

  void start() {
    auto [ours, theirs] = make_sockets();
    socket_ = std::move(ours);
    std::vector<char*> arguments = {binary_.data()};
    for (std::string& argument : arguments_) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    const std::lock_guard lock(mutex_);
    const pid_t front = ::getpid();
    const pid_t pid = ::fork();
    if (pid == 0) {
      become_worker(binary_.c_str(), arguments.data(), theirs.number(), front);
    }
    if (pid < 0) {
      throw_error(ErrorCode::kIo, "Worker {} can't be started: {}.", index_, std::strerror(errno));
    }
    pid_ = pid;
    if (killed_) ::kill(pid_, SIGKILL);
  }

  // Until the worker is gone, or true when it is no longer needed.
  bool talk(EngineFault& fault) {
    FrameReader reader(socket_.number());
    std::string pending;
    size_t sent = 0;  // of pending
    for (;;) {
      const int room = pending.empty() ? 0 : POLLOUT;
      pollfd polled[] = {{bell_.number(), POLLIN, 0},
                         {socket_.number(), static_cast<short>(POLLIN | room), 0}};
      ::poll(polled, 2, -1);
      if (polled[0].revents != 0) {
        uint64_t count = 0;
        (void)!::read(bell_.number(), &count, sizeof count);
        const std::lock_guard lock(mutex_);
        if (leave_) return true;
        pending += std::exchange(outbox_, {});
      }
      sent += send_bytes(socket_.number(), std::string_view(pending).substr(sent), /*wait=*/false);
      if (sent == pending.size()) {
        pending.clear();
        sent = 0;
      }
      if ((polled[1].revents & ~POLLOUT) == 0) continue;
      if (!reader.fill()) return false;
      for (EngineReport report; reader.next(report);) hear(std::move(report), fault);
    }
  }

  void hear(EngineReport&& report, EngineFault& fault) const {
    if (auto* events = std::get_if<std::vector<EngineEvent>>(&report)) {
      listener_.on_events(std::move(*events));
    } else if (auto* hello = std::get_if<EngineHello>(&report)) {
      listener_.on_ready(std::move(*hello));
    } else {
      fault = std::move(std::get<EngineFault>(report));
    }
  }

  // A worker that is no longer needed gets time to complete its files.
  void see_off() const {
    const auto end = std::chrono::steady_clock::now() + kTimeToLeave;
    ::shutdown(socket_.number(), SHUT_WR);
    FrameReader rest(socket_.number());
    for (;;) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      pollfd polled = {socket_.number(), POLLIN, 0};
      if (left.count() <= 0 || ::poll(&polled, 1, static_cast<int>(left.count())) <= 0) return;
      if (!rest.fill()) return;
    }
  }

  int reap() {
    pid_t pid = 0;
    {
      const std::lock_guard lock(mutex_);
      pid = std::exchange(pid_, 0);
    }
    int status = 0;
    if (pid > 0) {
      ::kill(pid, SIGKILL);
      while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
      }
    }
    return status;
  }

  std::string binary_;
  std::vector<std::string> arguments_;
  const int index_;
  const EngineListener listener_;
  const Descriptor bell_;
  Descriptor socket_;

  std::mutex mutex_;  // guards what follows
  pid_t pid_ = 0;     // 0 = none that may be signalled
  bool killed_ = false;
  bool leave_ = false;
  std::string outbox_;

  std::thread thread_;
};

}  // namespace

EngineStarter worker_starter(std::vector<std::string> arguments, std::string binary) {
  return [arguments = std::move(arguments), binary = std::move(binary)](
             const EngineStart& start, EngineListener listener) -> std::unique_ptr<EngineClient> {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--worker-fd", std::to_string(kWorkerSocket), "--worker-index",
                           std::to_string(start.index)});
    if (start.num_kvcache_blocks > 0) {
      all.insert(all.end(), {"--num-kvcache-blocks", std::to_string(start.num_kvcache_blocks)});
    }
    return std::make_unique<WorkerClient>(binary, std::move(all), start.index, std::move(listener));
  };
}

}  // namespace nanovllm::server
