// LLM and LLMEngine: one engine, one thread at a time.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "nanovllm/llm.h"
#include "owner.h"

namespace nanovllm::python {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPause{50};  // between two words with Python

// Of two outputs that hold what was new, one that holds both.
void put_before(RequestOutput& output, const RequestOutput& before) {
  if (output.prompt_logprobs.empty()) output.prompt_logprobs = before.prompt_logprobs;
  for (CompletionOutput both : before.outputs) {
    CompletionOutput& to = output.outputs[static_cast<size_t>(both.index)];
    append(both, to);
    to.text = std::move(both.text);
    to.token_ids = std::move(both.token_ids);
    to.logprobs = std::move(both.logprobs);
  }
}

class Engine : public Owner<LLM> {
 public:
  LLMEngine& engine() const { return get().engine(); }

  // Between its steps it hears of Ctrl-C, which Python tells only when asked, and tells `progress`;
  // seldom, for a step may take 50 us.
  nb::list generate(const nb::list& prompts, std::vector<SamplingParams> params,
                    const nb::object& progress) {
    const std::lock_guard call(*this);
    const std::vector<Prompt> asked = to_prompts(prompts);
    for (SamplingParams& one : params) one.output_kind = RequestOutputKind::kFinalOnly;
    int64_t num_finished = 0, num_prefilled = 0, num_decoded = 0;
    const auto tell = [&] {
      if (!progress.is_none()) progress(num_finished, num_prefilled, num_decoded);
    };
    auto next = Clock::now();
    const auto after_step = [&](const std::vector<RequestOutput>& changed, const StepStats& step) {
      check_open();
      keep_others(changed);
      num_finished += std::ranges::count(changed, true, &RequestOutput::finished);
      num_prefilled += step.num_prefill_tokens;
      num_decoded += step.num_decode_tokens;
      if (Clock::now() < next) return true;
      next = Clock::now() + kPause;
      const nb::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      tell();
      return true;
    };
    std::vector<RequestOutput> outputs;
    {
      const Unlocked unlocked;
      outputs = get().generate(asked, params, after_step);
    }
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
    const uint64_t id = engine().add_request(to_prompt(prompt), params);
    added_[id] = params.output_kind;
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
    if (outputs.empty()) {
      const Unlocked unlocked;
      outputs = engine().step();
    }
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
  std::unique_ptr<LLM> make(const std::string& path, const EngineConfig& config) override {
    return std::make_unique<LLM>(path, config);
  }

  // What came of requests that were added one by one: the next step() gives it.
  void keep_others(const std::vector<RequestOutput>& changed) {
    for (const RequestOutput& output : changed) {
      const auto added = added_.find(output.request_id);
      if (added == added_.end()) continue;
      RequestOutput& kept = kept_[output.request_id];
      const RequestOutput before = std::exchange(kept, output);
      if (added->second == RequestOutputKind::kDelta) put_before(kept, before);
    }
  }

  std::unordered_map<uint64_t, RequestOutputKind> added_;  // by add_request, and not finished
  std::map<uint64_t, RequestOutput> kept_;                 // by their ids
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
