// What AsyncLLM stands on: an engine on a thread of its own, which never waits for Python. What it
// says of a request is added up until the caller takes it; a file descriptor that asyncio watches
// tells that there is something.
#include <nanobind/stl/set.h>
#include <sys/eventfd.h>

#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "engine/deltas.h"
#include "nanovllm/engine_loop.h"
#include "owner.h"

namespace nanovllm::python {
namespace {

// What came of a request since its caller last took it.
struct News {
  bool waits_for_end = false;  // nothing is told before
  RequestOutput output = {};
  std::optional<RequestError> error = {};

  void add(PromptLogprobs& event) { output.prompt_logprobs = std::move(event.positions); }
  void add(RequestDelta& event) {
    append_delta(output.outputs[static_cast<size_t>(event.index)], std::move(event));
  }
  void add(RequestEnd& event) {
    CompletionOutput& to = output.outputs[static_cast<size_t>(event.index)];
    to.finish_reason = event.finish_reason;
    to.stop_reason = std::move(event.stop_reason);
    output.finished = event.last;
    output.num_cached_tokens = event.num_cached_tokens;
    output.num_preemptions = event.num_preemptions;
    output.metrics = event.metrics;
  }
  void add(RequestError& event) { error = std::move(event); }

  // Leaves what stays true of the request.
  RequestOutput take() {
    RequestOutput taken = output;
    output.prompt_logprobs.clear();
    for (CompletionOutput& completion : output.outputs) {
      completion.text.clear();
      completion.marks.clear();
      completion.token_ids.clear();
      completion.logprobs.clear();
    }
    return taken;
  }
};

class Loop : public Owner<EngineLoop> {
 public:
  ~Loop() override {
    close();
    ::close(wake_);
  }

  const EngineLoop& engine() const { return get(); }
  int fileno() const { return wake_; }

  // Queues a request, and returns its prompt's token ids.
  std::vector<int32_t> add(uint64_t id, nb::handle prompt, const SamplingParams& params) {
    Prompt asked = to_prompt(prompt);  // which may close it
    RequestPreparer preparer = get().preparer();
    preparer.grammars = nullptr;  // the loop compiles, while Python goes on
    CheckedRequest request = preparer.check({.id = id, .params = params}, std::move(asked));
    std::vector<int32_t> ids = request->prompt_token_ids;
    News news{.waits_for_end = params.output_kind == RequestOutputKind::kFinalOnly};
    for (int i = 0; i < params.n; ++i) news.output.outputs.emplace_back().index = i;
    {
      const std::lock_guard lock(mutex_);
      news_.emplace(id, std::move(news));
    }
    get().submit(std::move(request));
    return ids;
  }

  void abort(uint64_t id) {
    if (is_open()) get().submit(AbortRequest{id});
  }

  void reset_prefix_cache() {
    between_steps([](LLMEngine& engine) { engine.reset_prefix_cache(); });
  }
  void start_trace(const std::string& path) {
    between_steps([&](LLMEngine& engine) { engine.start_trace(path); });
  }
  void finish_trace() {
    between_steps([](LLMEngine& engine) { engine.finish_trace(); });
  }

  // The requests that have something new since the last call.
  std::set<uint64_t> take() {
    const std::lock_guard lock(mutex_);
    uint64_t count = 0;
    static_cast<void>(!read(wake_, &count, sizeof count));
    return std::exchange(changed_, {});
  }

  // What is new of one. Throws what it ended with.
  nb::object output(uint64_t id) {
    std::unique_lock lock(mutex_);
    News& news = news_.at(id);
    if (news.error) throw Error(news.error->code, news.error->message);
    changed_.erase(id);
    const RequestOutput output = news.take();
    lock.unlock();
    return to_python(output);
  }

  // Nobody listens any more.
  void forget(uint64_t id) {
    bool is_over = false;
    {
      const std::lock_guard lock(mutex_);
      is_over = news_.extract(id).mapped().output.finished;
    }
    if (!is_over) abort(id);
  }

 private:
  std::unique_ptr<EngineLoop> make(const std::string& path, const EngineConfig& config) override {
    // Whoever asks waits for an answer: they are bounded, and the queue need not be.
    return std::make_unique<EngineLoop>(
        LLMEngine(path, config),
        [this](std::vector<EngineEvent> events) { keep(std::move(events)); },
        std::numeric_limits<size_t>::max());
  }

  // Waits for the running step, and for other tasks.
  void between_steps(const std::function<void(LLMEngine&)>& task) {
    wait_and_lock();
    const std::lock_guard call(*this, std::adopt_lock);
    EngineLoop& loop = get();
    const Unlocked unlocked;
    loop.call(task);
  }

  void keep(std::vector<EngineEvent>&& events) {
    const std::lock_guard lock(mutex_);
    for (EngineEvent& event : events) {
      std::visit([this](auto& one) { note(one); }, event);
    }
    const uint64_t one = 1;
    if (!changed_.empty()) static_cast<void>(!write(wake_, &one, sizeof one));
  }

  void note(StepStats& /*stats*/) {}
  template <typename Event>
  void note(Event& event) {
    const auto found = news_.find(event.id);
    if (found == news_.end()) return;
    News& news = found->second;
    news.add(event);
    if (!news.waits_for_end || news.output.finished || news.error) changed_.insert(event.id);
  }

  const int wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::mutex mutex_;                         // guards what follows
  std::unordered_map<uint64_t, News> news_;  // of requests that somebody listens to
  std::set<uint64_t> changed_;               // since the last take()
};

}  // namespace

void bind_loop(nb::module_& module) {
  bind_core<Loop>(module, "Loop")
      .def("fileno", &Loop::fileno)
      .def("add", &Loop::add, nb::arg("id"), nb::arg("prompt").none(), nb::arg("params"))
      .def("abort", &Loop::abort)
      .def("reset_prefix_cache", &Loop::reset_prefix_cache)
      .def("start_trace", &Loop::start_trace)
      .def("finish_trace", &Loop::finish_trace)
      .def("take", &Loop::take)
      .def("output", &Loop::output)
      .def("forget", &Loop::forget);
}

}  // namespace nanovllm::python
