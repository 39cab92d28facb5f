// What AsyncLLM stands on: an engine on a thread of its own, which never waits for Python. It
// leaves its events in a list and says so through a file descriptor that asyncio watches.
#include <nanobind/stl/string.h>
#include <sys/eventfd.h>

#include <iterator>
#include <limits>
#include <mutex>

#include "nanovllm/chat.h"
#include "nanovllm/engine_loop.h"
#include "nanovllm/tokenizer.h"
#include "owner.h"
#include "params.h"

namespace nanovllm::python {
namespace {

// An event as a tuple, and None for the numbers of a step.
struct ToTuple {
  nb::object operator()(const PromptLogprobs& event) const {
    return nb::make_tuple("prompt", event.id, to_python(event.positions));
  }
  nb::object operator()(const RequestDelta& event) const {
    nb::object logprobs = nb::none();
    if (!event.logprobs.empty()) logprobs = to_python(event.logprobs);
    return nb::make_tuple("delta", event.id, event.index, event.text, to_python(event.token_ids),
                          logprobs);
  }
  nb::object operator()(const RequestEnd& event) const {
    return nb::make_tuple("end", event.id, event.index, to_python(event.finish_reason),
                          to_python(event.stop_reason), event.last, event.num_cached_tokens,
                          event.num_preemptions, to_python(event.metrics));
  }
  nb::object operator()(const RequestError& event) const {
    return nb::make_tuple("error", event.id, exception_of(event.code, event.message));
  }
  nb::object operator()(const StepStats&) const { return nb::none(); }
};

class Loop {
 public:
  Loop(const std::string& model, const nb::dict& arguments) {
    const EngineConfig config = to_config(arguments);
    const nb::gil_scoped_release release;
    LLMEngine engine(model, config);
    // Whoever asks waits for an answer: they are bounded, and the queue need not be.
    loop_.set(std::make_unique<EngineLoop>(
        std::move(engine), [this](std::vector<EngineEvent> events) { keep(std::move(events)); },
        std::numeric_limits<size_t>::max()));
    preparer_ = loop_->preparer();
  }
  ~Loop() {
    close();
    ::close(wake_);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  int fileno() const { return wake_; }

  // Queues a request, and returns its prompt's token ids.
  nb::list add(uint64_t id, nb::handle prompt, const SamplingParams& params) {
    EngineLoop& loop = loop_.get();
    AddRequest command = preparer_.prepare(id, to_prompt(prompt), params);
    nb::list ids = to_python(command.prompt_token_ids);
    loop.submit(std::move(command));
    return ids;
  }

  void abort(uint64_t id) {
    EngineLoop& loop = loop_.get();
    const nb::gil_scoped_release release;
    loop.submit(AbortRequest{id});
  }

  // What happened since the last call, as tuples.
  nb::list take() {
    std::vector<EngineEvent> events;
    {
      const std::lock_guard lock(mutex_);
      uint64_t count = 0;
      static_cast<void>(!read(wake_, &count, sizeof count));
      events.swap(events_);
    }
    nb::list tuples;
    for (const EngineEvent& event : events) {
      nb::object tuple = std::visit(ToTuple{}, event);
      if (!tuple.is_none()) tuples.append(std::move(tuple));
    }
    return tuples;
  }

  const SamplingParams& default_sampling_params() { return loop_.get().default_sampling_params(); }

  nb::list encode(const nb::str& text, bool add_special_tokens) {
    return to_python(tokenizer().encode(to_text(text), add_special_tokens));
  }

  std::string decode(nb::handle ids, bool skip_special_tokens) {
    return tokenizer().decode(to_token_ids(ids), skip_special_tokens);
  }

  nb::dict info() { return to_python(loop_.get().info()); }

  void close() {
    if (!loop_.is_open()) return;
    std::unique_ptr<EngineLoop> last = loop_.take();
    const nb::gil_scoped_release release;
    last.reset();
  }

 private:
  void keep(std::vector<EngineEvent>&& events) {
    const std::lock_guard lock(mutex_);
    events_.insert(events_.end(), std::make_move_iterator(events.begin()),
                   std::make_move_iterator(events.end()));
    const uint64_t one = 1;
    static_cast<void>(!write(wake_, &one, sizeof one));
  }

  const Tokenizer& tokenizer() const {
    loop_.get();
    if (preparer_.tokenizer == nullptr) {
      throw_error(ErrorCode::kUnsupported, "{} has no tokenizer; give the prompt as token ids.",
                  preparer_.model_dir);
    }
    return *preparer_.tokenizer;
  }

  const int wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::mutex mutex_;  // guards what follows
  std::vector<EngineEvent> events_;
  Owner<EngineLoop> loop_;
  RequestPreparer preparer_;
};

}  // namespace

void bind_loop(nb::module_& module) {
  nb::class_<Loop>(module, "Loop")
      .def(nb::init<const std::string&, const nb::dict&>())
      .def("fileno", &Loop::fileno)
      .def("add", &Loop::add, nb::arg("id"), nb::arg("prompt").none(), nb::arg("params"))
      .def("abort", &Loop::abort)
      .def("take", &Loop::take)
      .def("default_sampling_params", &Loop::default_sampling_params, nb::rv_policy::copy)
      .def("encode", &Loop::encode)
      .def("decode", &Loop::decode)
      .def("info", &Loop::info)
      .def("close", &Loop::close);
}

}  // namespace nanovllm::python
