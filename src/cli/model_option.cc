#include "cli/model_option.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/message.h"
#include "cli/terminal.h"
#include "engine/speculative_config.h"
#include "hub/name.h"
#include "nanovllm/error.h"

namespace nanovllm::cli {
std::string shown_bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : value < 10 ? 2 : 1, kUnits[unit]);
}

bool may_be_model(const std::string& text) {
  if (text.ends_with(".gguf") || is_surely_model(text)) return true;
  return hub::parse_name(text.substr(0, text.find_first_of("@:"))).has_value();
}

bool is_surely_model(const std::string& text) {
  std::error_code ignored;  // what can't be looked at is no model
  if (std::filesystem::is_directory(text, ignored)) return true;
  if (text.ends_with(".gguf")) return std::filesystem::exists(text, ignored);
  try {
    return hub::name_of_address(text) != text;
  } catch (const Error&) {  // the address of another page
    return false;
  }
}

void ModelOption::add_to(CLI::App& app, const char* kinds) {
  app.add_option("model", name,
                 fmt::format("{}, or name on the hub such as Qwen/Qwen3-0.6B, which is pulled "
                             "where it is not there yet",
                             kinds))
      ->required();
}

void ModelOption::find(bool quiet) {
  path = pull(name, {}, quiet);
  if (path != name) name = hub::name_of_address(name);  // by which clients will call it
}

void find_draft_model(EngineConfig& config, bool quiet) {
  config.speculative_config =
      with_draft_model(config.speculative_config,
                       [quiet](const std::string& name) { return pull(name, {}, quiet); });
}

std::string pull(const std::string& name, PullOptions options, bool quiet) {
  const InterruptGuard guard;
  PullDisplay display(name, !quiet);
  options.on_progress = [&](const PullProgress& progress) {
    if (InterruptGuard::interrupted()) throw PullInterrupted();
    display.update(progress);
  };
  options.on_warning = [&](const std::string& text) { display.warn(text); };
  std::string path = resolve_model(name, options);
  display.finish();
  return path;
}

LLMEngine load_engine(const std::string& model, const EngineConfig& config) {
  const InterruptGuard guard(InterruptGuard::Again::kIsNotNeeded);
  LLMEngine engine(model, config);
  if (InterruptGuard::interrupted()) throw LoadInterrupted();
  return engine;
}

PullDisplay::PullDisplay(std::string name, bool enabled)
    : name_(std::move(name)), enabled_(enabled), in_place_(is_terminal(stderr)) {}

PullDisplay::~PullDisplay() { clear(); }

void PullDisplay::clear() {
  if (drawn_ && in_place_) print_message("\r\x1b[K");
  drawn_ = false;
}

void PullDisplay::warn(const std::string& text) {
  clear();
  print_message("nanovllm: {}\n", text);
}

void PullDisplay::update(const PullProgress& progress) {
  const auto now = Clock::now();
  progress_ = progress;
  const double seconds = std::chrono::duration<double>(now - last_measure_).count();
  if (seconds >= 0.5) {
    const double speed = static_cast<double>(progress.num_received - last_received_) / seconds;
    speed_ = speed_ == 0 ? speed : 0.7 * speed_ + 0.3 * speed;
    last_measure_ = now;
    last_received_ = progress.num_received;
  }
  // What ends at once needs no line.
  const bool has_begun = progress.total_bytes > progress.num_bytes || !progress.note.empty();
  const auto pause = std::chrono::milliseconds(in_place_ ? 100 : 10000);
  if (!enabled_ || (!drawn_ && !has_begun) || (drawn_ && now - last_draw_ < pause)) return;
  last_draw_ = now;
  if (in_place_) {
    print_message("\r\x1b[K{}", text());
  } else if (drawn_ || !progress.note.empty()) {
    print_message("nanovllm: {}\n", text());
  } else {
    print_message("nanovllm: pulling {}, {} of {} are there\n", name_,
                  shown_bytes(progress.num_bytes), shown_bytes(progress.total_bytes));
  }
  drawn_ = true;
}

void PullDisplay::finish() {
  if (!drawn_) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  print_message("{}{}: {} in {}\n", in_place_ ? "\r\x1b[K" : "nanovllm: ", name_,
                shown_bytes(progress_.total_bytes), shown_time(seconds));
  drawn_ = false;
}

std::string PullDisplay::text() const {
  if (progress_.total_bytes == 0) return fmt::format("{}: {}", name_, progress_.note);
  std::string rest =
      fmt::format("{}/{} [", shown_bytes(progress_.num_bytes), shown_bytes(progress_.total_bytes));
  if (!progress_.note.empty()) {
    rest += progress_.note;
  } else {
    rest += shown_bytes(static_cast<int64_t>(speed_)) + "/s";
    const auto left = static_cast<double>(progress_.total_bytes - progress_.num_bytes);
    if (speed_ > 0) rest += fmt::format(", {} left", shown_time(left / speed_));
  }
  rest += "]";
  const double share =
      static_cast<double>(progress_.num_bytes) / static_cast<double>(progress_.total_bytes);
  return in_place_ ? with_bar(name_, share, rest) : fmt::format("{}: {}", name_, rest);
}

}  // namespace nanovllm::cli
