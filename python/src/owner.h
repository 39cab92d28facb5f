// What holds an engine in the process that loads it, and what Python sees of all kinds of them.
#pragma once

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "convert.h"
#include "engine/speculative_config.h"
#include "nanovllm/hub.h"

namespace nanovllm::python {

// Time of a thread without the GIL. Who came back to an interpreter that has ended would end the
// process: a program's end waits for all, and nobody goes without it from then on.
class Unlocked {
 public:
  explicit Unlocked(bool always = false) {
    if (is_over() && !always) return;
    ++num_;
    release_.emplace();
  }
  ~Unlocked() {
    if (!release_) return;
    release_.reset();
    --num_;
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

  static bool is_over() { return is_over_; }
  // Of all that are.
  static void end() {
    is_over_ = true;
    while (num_ > 0) pause();
  }
  static void pause() {
    const Unlocked unlocked(true);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  static inline std::atomic<bool> is_over_ = false;
  static inline int num_ = 0;  // guarded by the GIL
  static inline const int at_fork_ = pthread_atfork(nullptr, nullptr, [] { num_ = 0; });
  std::optional<nb::gil_scoped_release> release_;
};

// A child of fork() has none of the engine's threads: it can neither use nor destroy it, so that it
// leaves it where it is.
template <typename T>
class Owner {
 public:
  Owner() { check_open(); }
  virtual ~Owner() {
    if (is_elsewhere()) static_cast<void>(value_.release());
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  // Loads a model, which is pulled first where its name is one of the hub and it is not there yet,
  // and returns its path. `progress` is called with the bytes that are there, all of them, and what
  // is waited for.
  std::string load(const std::string& model, const nb::dict& arguments,
                   const nb::object& progress) {
    const std::lock_guard call(*this);
    EngineConfig config = to_config(arguments);  // or what is wrong, before it is pulled
    PullOptions options;
    options.on_progress = [&](const PullProgress& pull) {
      check_open();
      const nb::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      progress(pull.num_bytes, pull.total_bytes, pull.note);
    };
    const Unlocked unlocked;
    const std::string path = resolve_model(model, options);
    config.speculative_config =
        with_draft_model(config.speculative_config,
                         [&](const std::string& draft) { return resolve_model(draft, options); });
    value_ = make(path, lowered_for(path, config));
    check_open();
    return path;
  }
  // A call of another thread ends first, load() with its pull and generate() with its step.
  void close() {
    if (is_elsewhere()) return;
    if (user_ == std::this_thread::get_id()) lock();  // refused: a bar of generate() calls
    is_closing_ = true;
    while (user_ != std::thread::id()) Unlocked::pause();
    std::unique_ptr<T> last = std::move(value_);
    const Unlocked unlocked;
    last.reset();
  }
  // Throws Error(kUnavailable), a RuntimeError, where it can't be used.
  T& get() const {
    check_open(value_ != nullptr);
    return *value_;
  }

  // One call of one thread, as std::lock_guard has it. Throws Error where another one runs, unless
  // that lets it wait.
  void lock() {
    const auto me = std::this_thread::get_id();
    for (check_open(); lets_wait_ && user_ != me; check_open()) Unlocked::pause();
    if (user_ != std::thread::id()) {
      throw_error(ErrorCode::kInternal,
                  "Another call of this engine is running; an AsyncLLM serves many at once.");
    }
    user_ = std::this_thread::get_id();
  }
  void unlock() {
    user_ = std::thread::id();
    lets_wait_ = false;
  }
  // Behind the calls of other threads.
  void wait_and_lock() {
    for (check_open(); user_ != std::thread::id(); check_open()) Unlocked::pause();
    lock();
  }

 protected:
  virtual std::unique_ptr<T> make(const std::string& path, const EngineConfig& config) = 0;

  // Calls of other threads wait for the running one, which ends soon.
  void let_wait() { lets_wait_ = true; }
  bool is_open() const { return value_ != nullptr && !is_elsewhere() && !is_closing_; }
  bool is_elsewhere() const { return process_ != getpid(); }
  void check_open(bool is_loaded = true) const {
    if (is_elsewhere()) {
      throw_error(ErrorCode::kUnavailable,
                  "An engine can't be used in a forked child of its process; load one there, or "
                  "start the child with multiprocessing's \"spawn\".");
    }
    if (is_closing_ || !is_loaded || Unlocked::is_over()) {
      throw_error(ErrorCode::kUnavailable, "The engine was closed.");
    }
  }

 private:
  const pid_t process_ = getpid();
  std::thread::id user_;    // whose call runs; guarded by the GIL
  bool lets_wait_ = false;  // likewise
  std::atomic<bool> is_closing_ = false;
  std::unique_ptr<T> value_;
};

// The class `Core`, whose engine() is one that can be used or throws, with what all have.
template <typename Core>
nb::class_<Core> bind_core(nb::module_& module, const char* name) {
  return nb::class_<Core>(module, name)
      .def(nb::init<>())
      .def("load", &Core::load)
      .def("default_sampling_params",
           [](const Core& self) { return self.engine().default_sampling_params(); })
      .def(
          "encode",
          [](const Core& self, nb::handle text, bool add_special_tokens) {
            return self.engine().encode(to_text(text), add_special_tokens);
          },
          nb::arg("text").none(), nb::arg("add_special_tokens"))
      .def(
          "decode",
          [](const Core& self, nb::handle ids, bool skip_special_tokens) {
            const auto read = to_token_ids(ids);  // which may close it
            return self.engine().decode(read, skip_special_tokens);
          },
          nb::arg("token_ids").none(), nb::arg("skip_special_tokens"))
      .def("info", [](const Core& self) { return to_python(self.engine().info()); })
      .def("close", &Core::close);
}

}  // namespace nanovllm::python
