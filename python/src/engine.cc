// LLM and LLMEngine: one engine, one thread at a time.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/signals.h"
#include "engine/deltas.h"
#include "nanovllm/llm.h"
#include "owner.h"

namespace nanovllm::python {
namespace {

constexpr std::chrono::milliseconds kPause{50};  // between two words with Python

// An LLM, and a thread that computes with it: one for all calls, as starting one may take longer
// than a small model's step. What it computes ends before it does.
class Computer {
 public:
  using Outputs = std::vector<RequestOutput>;

  explicit Computer(LLM model) : llm(std::move(model)) {
    const SignalsBlocked in_thread;
    thread_ = std::thread([this] { run(); });
  }
  ~Computer() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Computer(const Computer&) = delete;
  Computer& operator=(const Computer&) = delete;

  // What ran before was waited for.
  void start(std::packaged_task<Outputs()> work) {
    running = work.get_future();
    {
      const std::lock_guard lock(mutex_);
      work_ = std::move(work);
    }
    changed_.notify_one();
  }

  LLM llm;
  std::future<Outputs> running;  // by start()

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return is_over_ || work_.valid(); });
      if (!work_.valid()) return;
      auto work = std::exchange(work_, {});
      lock.unlock();
      work();
      work = {};  // with what it holds of its caller's
      lock.lock();
    }
  }

  std::thread thread_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool is_over_ = false;
  std::packaged_task<Outputs()> work_;
};

// What a call of generate() has done, for who waits for it.
struct Done {
  std::atomic<int64_t> num_finished = 0, num_prefilled = 0, num_decoded = 0;
};

class Engine : public Owner<Computer> {
 public:
  ~Engine() override { close(); }

  LLMEngine& engine() const { return get().llm.engine(); }

  // As std::lock_guard has it. The step that a Ctrl-C left running ends first.
  void lock() {
    Owner::lock();
    try {
      end_what_was_left();
    } catch (...) {
      unlock();
      throw;
    }
  }

  nb::list generate(const nb::list& prompts, std::vector<SamplingParams> params,
                    const nb::object& progress) {
    const std::lock_guard call(*this);
    std::vector<Prompt> asked = to_prompts(prompts);
    for (SamplingParams& one : params) one.output_kind = RequestOutputKind::kFinalOnly;
    const auto done = std::make_shared<Done>();
    const auto tell = [&] {
      if (progress.is_none()) return;
      progress(done->num_finished.load(), done->num_prefilled.load(), done->num_decoded.load());
    };
    const auto after_step = [this, done](const std::vector<RequestOutput>& changed,
                                         const StepStats& step) {
      check_open();
      keep_others(changed);
      done->num_finished += std::ranges::count(changed, true, &RequestOutput::finished);
      done->num_prefilled += step.num_prefill_tokens;
      done->num_decoded += step.num_decode_tokens;
      return !is_left_;
    };
    std::vector<RequestOutput> outputs =
        compute([&llm = get().llm, asked = std::move(asked), params = std::move(params),
                 after_step] { return llm.generate(asked, params, after_step); },
                tell);
    tell();
    nb::list results;
    for (RequestOutput& output : outputs) {
      results.append(to_python(output));
      output = {};  // two copies of all are too many
    }
    return results;
  }

  uint64_t add_request(nb::handle prompt, const SamplingParams& params) {
    const std::lock_guard call(*this);
    Prompt asked = to_prompt(prompt);  // which may close it
    LLMEngine& one = engine();
    const SamplingParams own = params;  // Python may change them meanwhile
    let_wait();
    const uint64_t id = [&] {
      const Unlocked unlocked;  // a grammar may have to be compiled
      return one.add_request(std::move(asked), own);
    }();
    added_[id] = own.output_kind;
    return id;
  }

  void abort_request(uint64_t id) {
    const std::lock_guard call(*this);
    engine().abort_request(id);
  }

  nb::list step() {
    const std::lock_guard call(*this);
    std::vector<RequestOutput> outputs;
    for (auto& [id, output] : std::exchange(kept_, {})) outputs.push_back(std::move(output));
    if (outputs.empty()) outputs = compute([&one = engine()] { return one.step(); }, [] {});
    nb::list results;
    for (const RequestOutput& output : outputs) {
      if (output.finished) added_.erase(output.request_id);
      results.append(to_python(output));
    }
    return results;
  }

  bool is_finished() {
    const std::lock_guard call(*this);
    return engine().is_finished() && kept_.empty();
  }

  void reset_prefix_cache() {
    const std::lock_guard call(*this);
    engine().reset_prefix_cache();
  }

  void start_trace(const std::string& path) {
    const std::lock_guard call(*this);
    engine().start_trace(path);
  }

  void finish_trace() {
    const std::lock_guard call(*this);
    engine().finish_trace();
  }

  nb::object last_step() {
    const std::lock_guard call(*this);
    return to_python(engine().last_step());
  }

 private:
  std::unique_ptr<Computer> make(const std::string& path, const EngineConfig& config) override {
    return std::make_unique<Computer>(LLM(path, config));
  }

  // `work` runs on another thread, so that Python hears of Ctrl-C while a step runs, and leaves it:
  // the running step ends behind it. `tell` is called now and then.
  template <typename Work, typename Tell>
  std::vector<RequestOutput> compute(Work&& work, const Tell& tell) {
    Computer& computer = get();
    is_left_ = false;
    computer.start(std::packaged_task<Computer::Outputs()>(std::forward<Work>(work)));
    try {
      wait_for(computer.running, tell);
    } catch (...) {
      is_left_ = true;
      throw;
    }
    return computer.running.get();
  }

  template <typename Tell>
  void wait_for(const std::future<std::vector<RequestOutput>>& running, const Tell& tell) {
    while (true) {
      {
        const Unlocked unlocked;
        if (running.wait_for(kPause) == std::future_status::ready) return;
      }
      check_open();
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      tell();
    }
  }

  void end_what_was_left() {
    auto& running = get().running;
    if (!running.valid()) return;
    wait_for(running, [] {});
    try {
      keep_others(running.get());
    } catch (const std::exception&) {
      // Whom it concerned is gone; where the engine can't go on, the next step says so.
    }
  }

  // What came of requests that were added one by one: the next step() gives it.
  void keep_others(const std::vector<RequestOutput>& changed) {
    for (const RequestOutput& output : changed) {
      const auto added = added_.find(output.request_id);
      if (added == added_.end()) continue;
      RequestOutput& kept = kept_[output.request_id];
      if (added->second == RequestOutputKind::kDelta) {
        append_delta(kept, RequestOutput(output));
      } else {
        kept = output;
      }
    }
  }

  std::unordered_map<uint64_t, RequestOutputKind> added_;  // by add_request, and not finished
  std::map<uint64_t, RequestOutput> kept_;                 // by their ids
  std::atomic<bool> is_left_ = false;                      // nobody waits for what runs any more
};

}  // namespace

void bind_engine(nb::module_& module) {
  bind_core<Engine>(module, "Engine")
      .def("generate", &Engine::generate, nb::arg("prompts"), nb::arg("params"),
           nb::arg("progress").none())
      .def("add_request", &Engine::add_request, nb::arg("prompt").none(), nb::arg("params"))
      .def("abort_request", &Engine::abort_request)
      .def("step", &Engine::step)
      .def("is_finished", &Engine::is_finished)
      .def("reset_prefix_cache", &Engine::reset_prefix_cache)
      .def("start_trace", &Engine::start_trace)
      .def("finish_trace", &Engine::finish_trace)
      .def("last_step", &Engine::last_step);
}

}  // namespace nanovllm::python
