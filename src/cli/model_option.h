// MODEL of the commands, and the line that shows how far a pull is.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <string>

#include "nanovllm/hub.h"
#include "nanovllm/llm_engine.h"

namespace nanovllm::cli {

// A folder, a file, or a name of the hub, which is pulled where it is not there yet.
struct ModelOption {
  std::string name;  // as it was given
  std::string path;  // where it is, once it was found

  // `kinds`: of models on disk that are taken, for the help.
  void add_to(CLI::App& app, const char* kinds = "model folder, GGUF file");
  void find(bool quiet = false);
};

// The draft model of a config, where it has one, in the same way: it has its path afterwards.
void find_draft_model(EngineConfig& config, bool quiet = false);

// Whether a word looks like one.
bool may_be_model(const std::string& text);
// Whether it is one that is there, or the address of one: a name of the hub may be another word.
bool is_surely_model(const std::string& text);

// Ctrl-C during a pull.
struct PullInterrupted {};

// resolve_model() for people: with progress on stderr, unless `quiet`. Throws PullInterrupted.
std::string pull(const std::string& name, PullOptions options, bool quiet);

// Ctrl-C while a model is loaded.
struct LoadInterrupted {};

// The engine of a model. Ctrl-C ends the program, or throws LoadInterrupted where that was over
// before: both with a line and status 130.
LLMEngine load_engine(const std::string& model, const EngineConfig& config);

// "1.50 GB", decimal, as the hub's pages have it.
std::string shown_bytes(int64_t bytes);

// Where stderr is a terminal, "NAME ███░░░ 0.40/1.50 GB [52.1 MB/s, 00:21 left]" redrawn in place;
// elsewhere a line at the beginning, at the end, and every ten seconds between.
class PullDisplay {
 public:
  PullDisplay(std::string name, bool enabled);
  ~PullDisplay();
  PullDisplay(const PullDisplay&) = delete;
  PullDisplay& operator=(const PullDisplay&) = delete;
  void update(const PullProgress& progress);
  void warn(const std::string& text);  // in the place of the line, which ends
  void finish();

 private:
  void clear();
  using Clock = std::chrono::steady_clock;
  std::string text() const;

  const std::string name_;
  const bool enabled_, in_place_;
  bool drawn_ = false;
  PullProgress progress_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_draw_, last_measure_ = start_;
  int64_t last_received_ = 0;
  double speed_ = 0;  // bytes/s, of the last seconds
};

}  // namespace nanovllm::cli
