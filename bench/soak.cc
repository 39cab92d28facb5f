// A soak: the engine under a random load for as long as one likes, with too little memory for it,
// and everything it gives out checked. It ends at the first finding.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/options.h"
#include "cli/terminal.h"
#include "engine/load.h"
#include "soak_ledger.h"

namespace nanovllm {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr const char* kHelp =
    "nanovllm_soak: serves random requests with too little memory for them, and checks it all.\n\n"
    "  nanovllm_soak models/demo                         a minute on the CPU\n"
    "  nanovllm_soak MODEL --seconds 600 --device cuda --num-kvcache-blocks 2048\n"
    "                --max-num-seqs 256 --max-num-batched-tokens 4096 --max-model-len 1024\n\n"
    "Requests come in bursts, with prompts of any length that often share beginnings, and with\n"
    "all sampling parameters; some are aborted, some are wrong and must be refused. The KV cache\n"
    "should hold far less than --max-num-seqs long requests, so that sequences are preempted all\n"
    "the time. A greedy or seeded request that comes again must give the same: always on the\n"
    "CPU, with --deterministic on a GPU. The requests follow from --seed, so what is found on a\n"
    "CPU is found again with the same flags.";

constexpr const char* kFooter =
    "A line every 10 seconds and one at the end. Exit status: 0 all is well, 1 a finding, told in\n"
    "a sentence, 2 wrong usage, 130 interrupted.";

constexpr double kReportEvery = 10;    // seconds
constexpr int kIntegrityEvery = 16;    // steps
constexpr size_t kNumRepeatable = 32;  // first outcomes that are kept
constexpr int kMinModelLen = 16;       // tokens

struct SoakOptions {
  std::string model;
  double seconds = 60;
  int64_t seed = 0;
  EngineConfig engine;
};

// A request whose outcome is known.
struct Repeatable {
  SoakRequest request;
  std::shared_ptr<const RequestOutput> outcome;
};

struct Counts {
  int64_t finished = 0, aborted = 0, refused = 0, repeated = 0, preemptions = 0;
  int64_t computed_tokens = 0, cached_tokens = 0;
};

SoakLimits limits_of(const EngineInfo& info, const EngineConfig& config) {
  if (info.max_model_len < kMinModelLen) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a soak needs a max_model_len of {} or more, and it is {}",
                            kMinModelLen, info.max_model_len));
  }
  return {.vocab_size = info.vocab_size,
          .max_model_len = info.max_model_len,
          .kv_tokens = int64_t{info.num_kvcache_blocks} * info.kvcache_block_size,
          .block_size = info.kvcache_block_size,
          .max_num_seqs = config.max_num_seqs};
}

class Soak {
 public:
  Soak(const SoakOptions& options, std::unique_ptr<EngineCore> core)
      : options_(options),
        core_(*core),
        engine_(std::move(core)),
        limits_(limits_of(engine_.info(), options.engine)),
        exact_(engine_.info().device_type == "cpu" || options.engine.deterministic),
        workload_(limits_, text_prompts(), options.seed),
        ledger_(limits_) {}

  // False when it was interrupted.
  bool run() {
    serve_probes_alone();
    while (seconds() < options_.seconds && !cli::InterruptGuard::interrupted()) {
      for (int i = workload_.arrivals(); i > 0; --i) arrive();
      if (workload_.one_in(16) && aborts_due_ > 0) abort_one();
      step();
    }
    drain();
    check_empty();
    return !cli::InterruptGuard::interrupted();
  }

  void report(const char* label) const {
    const double elapsed = seconds();
    fmt::print("{}{:.0f} s: {} requests finished ({} repeated), {} aborted, {} refused, {} live; ",
               label, elapsed, counts_.finished, counts_.repeated, counts_.aborted, counts_.refused,
               ledger_.live().size());
    fmt::print("{} steps, {} preemptions, {:.0f} tokens/s, {} prompt tokens from the cache; ",
               step_, counts_.preemptions, static_cast<double>(counts_.computed_tokens) / elapsed,
               counts_.cached_tokens);
    fmt::print("the oldest waited {} steps at most\n", ledger_.longest_at_head());
    std::fflush(stdout);
  }

  int64_t num_steps() const { return step_; }

 private:
  double seconds() const {
    return std::chrono::duration<double>(SteadyClock::now() - begin_).count();
  }

  std::vector<SoakRequest> text_prompts() const {
    std::vector<SoakRequest> prompts;
    try {
      for (const char* text :
           {"Once upon a time", "The cat", "She said: \xe2\x80\x9cno\xe2\x80\x9d"}) {
        SoakRequest& prompt = prompts.emplace_back();
        prompt.text = text;
        prompt.ids = engine_.encode(text);
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      prompts.clear();
    }
    return prompts;
  }

  // The outcomes that every repetition under load is compared with.
  void serve_probes_alone() {
    for (const SoakRequest& probe : workload_.probes()) {
      add(probe, nullptr);
      while (!ledger_.live().empty()) step();
    }
    num_probes_ = repeatable_.size();
  }

  void add(SoakRequest request, std::shared_ptr<const RequestOutput> expected) {
    const uint64_t id = engine_.add_request(request.prompt(), request.params);
    SoakEntry entry;
    entry.request = std::move(request);
    entry.expected = std::move(expected);
    entry.added_at = step_;
    ledger_.add(id, std::move(entry));
  }

  void arrive() {
    if (std::ssize(ledger_.live()) >= 4 * limits_.max_num_seqs) return;
    if (workload_.one_in(8)) be_refused();
    if (workload_.one_in(3)) ++aborts_due_;
    if (exact_ && workload_.one_in(6)) {
      const Repeatable& known = repeatable_[workload_.pick(static_cast<int>(repeatable_.size()))];
      SoakRequest request = known.request;
      request.params.output_kind = workload_.output_kind();
      ++counts_.repeated;
      add(std::move(request), known.outcome);
      return;
    }
    SoakRequest request = workload_.request();
    if (workload_.one_in(16)) workload_.remember(request.ids);
    add(std::move(request), nullptr);
  }

  void be_refused() {
    const SoakRequest bad = workload_.bad_request();
    try {
      engine_.add_request(bad.prompt(), bad.params);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      ++counts_.refused;
      return;
    }
    throw SoakFailure("a request that can't be served was not refused");
  }

  void abort(uint64_t id) {
    engine_.abort_request(id);
    ledger_.abort(id);
  }

  // One that waits, that runs, that was sent out, or that has just ended, where nothing may happen.
  void abort_one() {
    --aborts_due_;
    const int kind = workload_.pick(4);
    if (kind == 3 && last_ended_) return engine_.abort_request(*last_ended_);
    std::vector<uint64_t> candidates;
    for (const auto& [id, entry] : ledger_.live()) {
      const int its_kind = entry.scheduled_at < 0 ? 0 : entry.scheduled_at == step_ ? 1 : 2;
      if (its_kind == kind && !entry.aborted) candidates.push_back(id);
    }
    if (candidates.empty()) return;
    abort(candidates[static_cast<size_t>(workload_.pick(static_cast<int>(candidates.size())))]);
  }

  // No more requests come. The user who interrupts need not wait for those that are there.
  void drain() {
    for (bool ended = false; !ledger_.live().empty(); step()) {
      if (!cli::InterruptGuard::interrupted() || std::exchange(ended, true)) continue;
      for (const auto& [id, entry] : ledger_.live()) abort(id);
    }
  }

  void step() {
    if (engine_.is_finished() != ledger_.live().empty()) {
      throw SoakFailure(fmt::format("{} requests are alive but the engine says it is {}finished",
                                    ledger_.live().size(), engine_.is_finished() ? "" : "not "));
    }
    if (ledger_.live().empty()) return;
    std::vector<RequestOutput> outputs = engine_.step();
    ++step_;
    check_step(!outputs.empty());
    ledger_.note_schedule(step_, engine_.last_schedule());
    last_ended_.reset();
    for (SoakEntry& entry : ledger_.receive(step_, std::move(outputs))) retire(std::move(entry));
    if (seconds() >= next_report_) {
      report("");
      next_report_ += kReportEvery;
    }
  }

  void check_step(bool has_outputs) {
    const StepStats& stats = engine_.last_step();
    const EngineConfig& config = options_.engine;
    const int num_tokens = stats.num_prefill_tokens + stats.num_decode_tokens;
    const auto num_sequences = std::ssize(engine_.last_schedule());
    if (num_tokens == 0 && !has_outputs) {
      throw SoakFailure(
          fmt::format("a step did nothing for {} live requests", ledger_.live().size()));
    }
    if (num_tokens > config.max_num_batched_tokens || num_sequences > config.max_num_seqs ||
        stats.num_used_blocks > stats.num_total_blocks) {
      throw SoakFailure(
          fmt::format("a step of {} sequences with {} tokens and {} blocks is too large",
                      num_sequences, num_tokens, stats.num_used_blocks));
    }
    if (step_ % kIntegrityEvery == 0) check_integrity();
    counts_.preemptions += stats.num_preemptions;
    counts_.computed_tokens += num_tokens;
  }

  void check_integrity() const {
    const std::string wrong = core_.check_integrity();
    if (!wrong.empty()) throw SoakFailure("the books of blocks are wrong: " + wrong);
  }

  // The books prove that what no request holds is free; a last request sees it from outside.
  void check_empty() {
    check_integrity();
    SoakRequest last;
    last.ids = {0};
    last.params.max_tokens = 1;
    add(std::move(last), nullptr);
    while (!ledger_.live().empty()) step();
    const int used = engine_.last_step().num_used_blocks;
    if (used != 1) {
      throw SoakFailure(fmt::format("{} blocks are used by a request of one token alone", used));
    }
  }

  void retire(SoakEntry entry) {
    last_ended_ = entry.total.request_id;
    counts_.cached_tokens += entry.total.num_cached_tokens;
    ++(entry.aborted ? counts_.aborted : counts_.finished);
    if (entry.aborted) return;
    const SamplingParams& params = entry.request.params;
    if (workload_.one_in(16)) {  // the next turn of a conversation
      std::vector<int32_t> ids = entry.request.ids;
      const auto& output = entry.total.outputs[0].token_ids;
      ids.insert(ids.end(), output.begin(), output.end());
      workload_.remember(std::move(ids));
    }
    if (!exact_ || entry.expected != nullptr) return;
    if (params.temperature > 0 && !params.seed) return;
    keep({std::move(entry.request), std::make_shared<RequestOutput>(std::move(entry.total))});
  }

  // The probes stay, of the others some.
  void keep(Repeatable known) {
    if (repeatable_.size() < kNumRepeatable) {
      repeatable_.push_back(std::move(known));
      return;
    }
    const auto replaced = static_cast<size_t>(workload_.pick(kNumRepeatable));
    if (replaced >= num_probes_) repeatable_[replaced] = std::move(known);
  }

  const SoakOptions options_;
  EngineCore& core_;  // engine_'s
  LLMEngine engine_;
  const SoakLimits limits_;
  const bool exact_;  // equal requests give equal outcomes
  SoakWorkload workload_;
  SoakLedger ledger_;
  std::vector<Repeatable> repeatable_;  // the probes first
  size_t num_probes_ = 0;
  std::optional<uint64_t> last_ended_;  // in the last step
  int aborts_due_ = 0;
  Counts counts_;
  int64_t step_ = 0;
  double next_report_ = kReportEvery;  // seconds
  const SteadyClock::time_point begin_ = SteadyClock::now();
};

int run_soak(const SoakOptions& options) {
  const cli::InterruptGuard guard;
  Soak soak(options, load_engine_core(options.model, options.engine));
  try {
    const bool whole = soak.run();
    soak.report(whole ? "all is well after " : "interrupted, all was well for ");
    return whole ? cli::kExitOk : cli::kExitInterrupted;
  } catch (const std::exception& error) {
    cli::print_error(fmt::format("soak with --seed {}, step {}: {}", options.seed, soak.num_steps(),
                                 error.what()));
  }
  return cli::kExitError;
}

}  // namespace
}  // namespace nanovllm

int main(int argc, char** argv) {
  using namespace nanovllm;  // NOLINT(google-build-using-namespace)
  SoakOptions options;
  options.engine.max_model_len = 256;
  options.engine.max_num_seqs = 16;
  options.engine.max_num_batched_tokens = 128;
  options.engine.kvcache_block_size = 16;
  options.engine.num_kvcache_blocks = 48;
  CLI::App app(kHelp, "nanovllm_soak");
  app.footer(kFooter);
  app.get_formatter()->column_width(36);
  app.add_option("model", options.model, "model folder")->required();
  app.add_option("--seconds", options.seconds, "until no more requests come")
      ->capture_default_str();
  cli::add_seed(app, "--seed", options.seed, "of the load");
  cli::add_engine_options(app, options.engine);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? cli::kExitOk : cli::kExitUsage;
  }
  try {
    return run_soak(options);
  } catch (const Error& error) {
    cli::print_error(error.what());
    return error.code() == ErrorCode::kInvalidArgument ? cli::kExitUsage : cli::kExitError;
  }
}
