#include "server/fleet/socket_client.h"

#include <sys/socket.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/signals.h"
#include "server/fleet/frame_buffer.h"

namespace nanovllm::server {

namespace {

namespace asio = boost::asio;
using EngineSocket = asio::local::stream_protocol::socket;

// An engine that is no longer needed gets time to complete its files.
constexpr std::chrono::seconds kTimeToLeave{2};

// All but the public methods is its thread's.
class SocketClient final : public EngineClient {
 public:
  SocketClient(std::unique_ptr<EngineHost> host, EngineListener listener)
      : host_(std::move(host)), listener_(std::move(listener)) {
    const SignalsBlocked in_thread;
    thread_ = std::thread([this] { run(); });
  }

  ~SocketClient() override {
    asio::post(context_, [this] { leave(); });
    thread_.join();
  }
  SocketClient(const SocketClient&) = delete;
  SocketClient& operator=(const SocketClient&) = delete;

  void submit(const EngineCommand& command) override {
    std::string frame;
    append_frame(command, frame);
    asio::post(context_, [this, frame = std::move(frame)] {
      outbox_ += frame;
      if (sending_.empty()) send();
    });
  }

  void kill() noexcept override { context_.stop(); }

 private:
  void run() noexcept {
    try {
      start();
      context_.run();
      if (leaves_) {
        context_.restart();
        context_.run_for(kTimeToLeave);
      }
    } catch (...) {
      fault_ = fault_of(std::current_exception());
    }
    boost::system::error_code ignored;
    socket_.close(ignored);
    EngineFault end = host_->end();
    if (leaves_) return;
    if (!fault_.message.empty()) end = std::move(fault_);
    listener_.on_death(end.code, std::move(end.message));
  }

  // Neither end is inherited by whatever else the front may start.
  void start() {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw_error(ErrorCode::kIo, "There is no socket for an engine: {}.", std::strerror(errno));
    }
    socket_.assign(asio::local::stream_protocol(), ends[0]);
    const EngineSocket theirs(context_, asio::local::stream_protocol(), ends[1]);
    host_->start(ends[1]);
    receive();
  }

  void leave() {
    leaves_ = true;
    boost::system::error_code ignored;
    socket_.shutdown(asio::socket_base::shutdown_send, ignored);
    context_.stop();
  }

  // What comes meanwhile goes together.
  void send() {
    sending_ = std::exchange(outbox_, {});
    asio::async_write(socket_, asio::buffer(sending_),
                      [this](boost::system::error_code error, size_t /*size*/) {
                        sending_.clear();
                        if (!error && !outbox_.empty()) send();
                      });
  }

  void receive() {
    socket_.async_read_some(asio::buffer(bytes_),
                            [this](boost::system::error_code error, size_t size) {
                              if (error) return context_.stop();
                              frames_.add({bytes_.data(), size});
                              for (EngineReport report; frames_.next(report);) hear(report);
                              receive();
                            });
  }

  void hear(EngineReport& report) {
    if (leaves_) return;
    if (auto* events = std::get_if<std::vector<EngineEvent>>(&report)) {
      listener_.on_events(std::move(*events));
    } else if (auto* hello = std::get_if<EngineHello>(&report)) {
      listener_.on_ready(std::move(*hello));
    } else if (const auto* progress = std::get_if<EngineProgress>(&report)) {
      listener_.on_progress(*progress);
    } else {
      fault_ = std::move(std::get<EngineFault>(report));
    }
  }

  const std::unique_ptr<EngineHost> host_;
  const EngineListener listener_;
  asio::io_context context_{1};
  EngineSocket socket_{context_};
  FrameBuffer frames_;
  std::array<char, size_t{1} << 16> bytes_;
  std::string outbox_, sending_;
  EngineFault fault_;  // its last words
  bool leaves_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<EngineClient> make_socket_client(std::unique_ptr<EngineHost> host,
                                                 EngineListener listener) {
  return std::make_unique<SocketClient>(std::move(host), std::move(listener));
}

}  // namespace nanovllm::server
