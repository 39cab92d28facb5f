#include "server/fleet/request_stream.h"

#include "engine/deltas.h"

namespace nanovllm::server {

std::function<void()> StreamBuffer::append(EngineEvent event, bool last) {
  const std::lock_guard lock(mutex_);
  over_ = over_ || last;
  if (closed_) return nullptr;
  auto* delta = std::get_if<RequestDelta>(&event);
  if (delta == nullptr || !merge(*delta)) events_.push_back(std::move(event));
  return only_end_ && !over_ ? nullptr : std::exchange(wake_, nullptr);
}

// A completion's delta comes before its end, so it may grow wherever it stands.
bool StreamBuffer::merge(RequestDelta& delta) {
  const auto index = static_cast<size_t>(delta.index);
  if (deltas_.size() <= index) deltas_.resize(index + 1);
  if (deltas_[index] == 0) {
    deltas_[index] = events_.size() + 1;
    return false;
  }
  append_delta(std::get<RequestDelta>(events_[deltas_[index] - 1]), std::move(delta));
  return true;
}

std::vector<EngineEvent> StreamBuffer::take() {
  const std::lock_guard lock(mutex_);
  deltas_.clear();
  return std::exchange(events_, {});
}

void StreamBuffer::await(std::function<void()> wake, bool only_end) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    only_end_ = only_end;
    if (!over_ && (only_end || events_.empty())) {
      wake_ = std::move(wake);
      return;
    }
  }
  wake();
}

bool StreamBuffer::close() noexcept {
  const std::lock_guard lock(mutex_);
  events_.clear();
  wake_ = nullptr;
  return !std::exchange(closed_, true) && !over_;
}

}  // namespace nanovllm::server
