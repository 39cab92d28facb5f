// What a request gained and its user has not been sent yet.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "server/fleet/fleet.h"

namespace nanovllm::server {

// Shared by the fleet, which fills it, and the stream, from which it is read. Thread-safe.
class StreamBuffer {
 public:
  // Returns who waits for it, to be called without locks, or null.
  std::function<void()> append(EngineEvent event, bool last);
  std::vector<EngineEvent> take();
  void on_ready(std::function<void()> wake) { await(std::move(wake), false); }
  void on_end(std::function<void()> wake) { await(std::move(wake), true); }
  // Drops what there is and what may come. True where the last event had yet to come.
  bool close() noexcept;

 private:
  bool merge(RequestDelta& delta);
  void await(std::function<void()> wake, bool only_end);

  std::mutex mutex_;
  std::vector<EngineEvent> events_;
  std::vector<size_t> deltas_;  // by completion: 1 + its delta's place in events_, or 0
  std::function<void()> wake_;
  bool only_end_ = false;  // is what wake_ waits for
  bool over_ = false;      // nothing more comes
  bool closed_ = false;
};

class BufferedStream final : public RequestStream {
 public:
  // `end` ends the request; not called when it has ended.
  BufferedStream(std::shared_ptr<StreamBuffer> buffer, std::function<void()> end)
      : buffer_(std::move(buffer)), end_(std::move(end)) {}
  ~BufferedStream() override { BufferedStream::cancel(); }
  std::vector<EngineEvent> take() override { return buffer_->take(); }
  void on_ready(std::function<void()> wake) override { buffer_->on_ready(std::move(wake)); }
  void on_end(std::function<void()> wake) override { buffer_->on_end(std::move(wake)); }
  void cancel() noexcept override {
    if (buffer_->close()) end_();
  }

 private:
  const std::shared_ptr<StreamBuffer> buffer_;
  const std::function<void()> end_;
};

}  // namespace nanovllm::server
