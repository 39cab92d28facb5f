#include "server/freed_memory.h"

#include <malloc.h>

#include <algorithm>
#include <boost/asio/post.hpp>

namespace nanovllm::server {

void keep_little_freed_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 4 << 20);
}

void FreedMemory::add(size_t bytes) {
  if (bytes_.fetch_add(bytes) + bytes < kMuch || is_waiting_.exchange(true)) return;
  asio::post(lane_, [this] {
    timer_.expires_after(pause_);
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) give_back();
    });
  });
}

// What is added from here on finds that nobody waits, and is given back the next time.
void FreedMemory::give_back() {
  using Clock = std::chrono::steady_clock;
  constexpr int kShare = 20;  // of the time; threads that allocate wait for it
  is_waiting_ = false;
  bytes_ = 0;
  const auto start = Clock::now();
  ::malloc_trim(0);
  pause_ =
      std::max<Clock::duration>(std::chrono::milliseconds(500), kShare * (Clock::now() - start));
}

}  // namespace nanovllm::server
