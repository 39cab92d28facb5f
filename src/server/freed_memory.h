// Memory that was freed goes back to the system soon after much of it was used.
#pragma once

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <cstddef>

namespace nanovllm::server {

namespace asio = boost::asio;

// For the whole process, before it has threads: large blocks go back to the system when they are
// freed, and so does what lies at the end of a thread's memory, which nothing else gives back. By
// default, glibc comes to keep 64 MB for each thread.
void keep_little_freed_memory();

// The allocator keeps what is freed between blocks that live, be it gigabytes, until it is told
// otherwise, which takes milliseconds: this does so once for what ends within some time.
class FreedMemory {
 public:
  // So many bytes are worth it.
  static constexpr size_t kMuch = size_t{1} << 20;

  // `lane` has one thread and outlives this, and is joined before.
  explicit FreedMemory(asio::thread_pool& lane) : lane_(lane), timer_(lane.get_executor()) {}

  // What made and freed so many bytes, or several times as many, is over. From any thread.
  void add(size_t bytes);

 private:
  void give_back();

  asio::thread_pool& lane_;
  asio::steady_timer timer_;  // touched on the lane's thread only, and so is pause_
  std::chrono::steady_clock::duration pause_ = std::chrono::milliseconds(500);
  std::atomic<size_t> bytes_ = 0;
  std::atomic<bool> is_waiting_ = false;
};

}  // namespace nanovllm::server
