#include "runner/parallel_runner.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "backend/registry.h"
#include "base/check.h"
#include "base/message.h"
#include "base/process_limits.h"
#include "base/signals.h"
#include "base/spin_wait.h"
#include "runner/model_runner.h"

namespace nanovllm {

// The threads, and the runners that live on them: everything a rank does, from making its runner to
// destroying it, happens on its own thread, as a device's context belongs to a thread.
class ParallelRunner::Ranks {
 public:
  using Task = std::function<void(int rank)>;

  explicit Ranks(CommunicatorGroup& group);
  ~Ranks();

  Runner& runner(int rank) const { return *runners_[rank]; }
  void make(const MakeRank& make_rank) {
    run([&](int rank) { runners_[rank] = make_rank(rank); });
  }
  // Calls task(rank) on all ranks' threads and waits for all of them. Throws the first
  // error, in time, that any call has ever ended with.
  void run(const Task& task);

 private:
  void work(int rank);
  void fail();
  void stop();
  int num_ranks() const { return static_cast<int>(runners_.size()); }

  CommunicatorGroup& group_;
  std::vector<std::unique_ptr<Runner>> runners_;  // [num_ranks]
  std::vector<std::thread> threads_;              // [num_ranks]
  const Task* task_ = nullptr;                    // of this round; null = the last one
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<uint32_t> num_done_{0};  // ranks that have ended this round
  alignas(64) std::atomic<uint32_t> rounds_done_{0};
  std::mutex mutex_;
  std::exception_ptr failure_;  // the first
};

ParallelRunner::Ranks::Ranks(CommunicatorGroup& group)
    : group_(group), runners_(group.world_size()) {
  try {
    const SignalsBlocked in_ranks;
    for (int rank = 0; rank < num_ranks(); ++rank) {
      threads_.emplace_back([this, rank] { work(rank); });
    }
  } catch (const std::system_error& error) {
    const size_t started = threads_.size();
    stop();
    throw_error(ErrorCode::kOutOfMemory, "the thread of rank {} of {} cannot be started ({}{})",
                started, num_ranks(), error.code().message(), memory_limits());
  }
}

ParallelRunner::Ranks::~Ranks() { stop(); }

void ParallelRunner::Ranks::stop() {
  task_ = nullptr;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void ParallelRunner::Ranks::run(const Task& task) {
  if (!failure_) {
    task_ = &task;
    const uint32_t done = rounds_done_.load(std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    wait_for_change(rounds_done_, done, CommunicatorGroup::kSpinTime);
  }
  if (failure_) std::rethrow_exception(failure_);
}

void ParallelRunner::Ranks::work(int rank) {
  pthread_setname_np(pthread_self(), fmt::format("rank {}", rank).c_str());
  for (uint32_t round = 0;;) {
    round = wait_for_change(round_, round, CommunicatorGroup::kSpinTime);
    if (task_ == nullptr) break;
    try {
      (*task_)(rank);
    } catch (...) {
      fail();
    }
    if (num_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == runners_.size()) {
      num_done_.store(0, std::memory_order_relaxed);
      rounds_done_.fetch_add(1, std::memory_order_release);
      rounds_done_.notify_all();
    }
  }
  runners_[rank].reset();
}

// The errors of the ranks that are released because of the first one say nothing.
void ParallelRunner::Ranks::fail() {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = std::current_exception();
  group_.abort();
}

ParallelRunner::ParallelRunner(std::unique_ptr<CommunicatorGroup> group, const MakeRank& make_rank)
    : group_(std::move(group)), ranks_(std::make_unique<Ranks>(*group_)) {
  ranks_->make(make_rank);
}

ParallelRunner::~ParallelRunner() = default;

int ParallelRunner::num_kvcache_blocks() const { return ranks_->runner(0).num_kvcache_blocks(); }

StatePoolSize ParallelRunner::state_pool() const { return ranks_->runner(0).state_pool(); }

std::span<const int> ParallelRunner::kv_windows() const { return ranks_->runner(0).kv_windows(); }

int ParallelRunner::max_in_flight() const { return ranks_->runner(0).max_in_flight(); }

// Of rank 0: the others have as much to do at the same time.
StepCost ParallelRunner::step_cost() const { return ranks_->runner(0).step_cost(); }

// All ranks have read the input when this returns: none of it is copied.
void ParallelRunner::submit(const StepInput& input) {
  ranks_->run([&](int rank) { ranks_->runner(rank).submit(input); });
}

void ParallelRunner::draw(std::span<const SamplingRow> rows) {
  ranks_->run([&](int rank) { ranks_->runner(rank).draw(rows); });
}

StepOutput ParallelRunner::collect() {
  StepOutput result;
  ranks_->run([&](int rank) {
    StepOutput output = ranks_->runner(rank).collect();
    group_->check();
    if (rank == 0) result = std::move(output);
  });
  return result;
}

void ParallelRunner::abandon() noexcept {
  try {
    ranks_->run([&](int rank) { ranks_->runner(rank).abandon(); });
  } catch (...) {
    // A rank failed before: every later call says so, and no step is collected any more.
  }
}

namespace {

// Which is known once the matrices are packed, and of all ranks: the first one's shares begin where
// a group does.
void tell_of_decoded_matrices(const ModelConfig& model, const EngineInfo& info) {
  int64_t count = 0;
  for (const LayoutOfWeights& layout : info.weight_layouts) count += layout.num_decoded;
  if (count == 0) return;
  print_message(
      "nanovllm: {}: {} quantised {} decoded to {} while loading, because there is no kernel for "
      "codes of their shape\n",
      model.model_dir, count, count == 1 ? "matrix is" : "matrices are", info.dtype);
}

}  // namespace

bool is_on_gpus(const EngineConfig& config) {
  return is_on_gpus(BackendOptions{.device = config.device,
                                   .first_gpu = config.first_gpu,
                                   .num_ranks = config.tensor_parallel_size});
}

std::unique_ptr<Runner> make_runner(const ModelConfig& model, const EngineConfig& config,
                                    EngineInfo& info, Progress* progress,
                                    const std::function<int64_t()>& load_draft) {
  const int num_ranks = config.tensor_parallel_size;
  if (num_ranks == 1) {
    auto runner = make_model_runner(model, config, info, nullptr, 0, progress, load_draft);
    tell_of_decoded_matrices(model, info);
    return runner;
  }
  auto group =
      make_communicator_group(config.device, num_ranks, config.first_gpu, engine_name(model));
  CommunicatorGroup& ranks = *group;
  std::vector<EngineInfo> infos(num_ranks);
  auto runner = std::make_unique<ParallelRunner>(std::move(group), [&](int rank) {
    return make_model_runner(model, config, infos[rank], &ranks, rank, progress, load_draft);
  });
  info = infos[0];
  info.device = fmt::format("{} x {}", num_ranks, info.device);
  for (const EngineInfo& other : std::span(infos).subspan(1)) {
    info.weight_bytes += other.weight_bytes;
    info.mapped_weight_bytes += other.mapped_weight_bytes;
    for (const LayoutOfWeights& layout : other.weight_layouts) {
      const auto same = std::ranges::find(info.weight_layouts, layout.name, &LayoutOfWeights::name);
      if (same == info.weight_layouts.end()) {
        info.weight_layouts.push_back(layout);
      } else {
        same->num_weights += layout.num_weights;
        same->bytes += layout.bytes;
        same->num_decoded += layout.num_decoded;
      }
    }
    info.kv_cache_bytes += other.kv_cache_bytes;
    info.state_cache_bytes += other.state_cache_bytes;
    info.state_slot_bytes += other.state_slot_bytes;
    info.state_log_bytes += other.state_log_bytes;
    info.kv_bytes_per_token += other.kv_bytes_per_token;
    info.load_seconds = std::max(info.load_seconds, other.load_seconds);
  }
  std::ranges::stable_sort(info.weight_layouts, std::greater(), &LayoutOfWeights::bytes);
  tell_of_decoded_matrices(model, info);
  return runner;
}

}  // namespace nanovllm
