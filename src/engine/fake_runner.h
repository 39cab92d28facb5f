// A runner for tests: a "model" whose next token is a hash of everything before it, read from where
// the block table, the state and the log lead. Any mix-up of them, of positions or of tokens
// changes what it generates.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/progress.h"
#include "engine/engine_core.h"
#include "engine/fake_states.h"
#include "engine/model_drafter.h"
#include "engine/trace.h"
#include "runner/runner.h"

namespace nanovllm {

// The model itself: the next token of a text, computed directly.
class FakeModel {
 public:
  static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }
  // A text is summed up ("folded") in one number. kv(): the KV of a token after a text that folds
  // to `context`. fold(): the fold of that text and the token.
  static uint64_t kv(int32_t token_id, int position, uint64_t context) {
    return mix(context + 0x9e3779b97f4a7c15 * (static_cast<uint64_t>(token_id) + 1) +
               static_cast<uint64_t>(position) * 0xd1342543de82ef95);
  }
  static uint64_t fold(uint64_t context, uint64_t kv) { return mix(context ^ kv) + 1; }

  static uint64_t fold(std::span<const int32_t> token_ids) {
    uint64_t context = 0;
    for (size_t p = 0; p < token_ids.size(); ++p) {
      context = fold(context, kv(token_ids[p], static_cast<int>(p), context));
    }
    return context;
  }

  static float logprob(uint64_t context, int32_t token_id) {
    return -static_cast<float>(mix(context + static_cast<uint64_t>(token_id)) % 1000) / 100;
  }

  static bool may_draw(const SamplingRow& row, int32_t id) {
    return is_allowed(row, id) && std::ranges::count(row.banned_ids, id) == 0;
  }
  static bool can_draw(const SamplingRow& row, int vocab_size) {
    if (row.allowed.empty()) return true;
    for (int32_t id = 0; id < vocab_size; ++id) {
      if (may_draw(row, id)) return true;
    }
    return false;
  }

  static SamplingResult sample(uint64_t context, const SamplingRow& row, int vocab_size) {
    SamplingResult result;
    if (row.forced_id < 0 && !can_draw(row, vocab_size)) return result;
    if (row.forced_id >= 0) {
      result.token_id = row.forced_id;
    } else {
      uint64_t x = context + (row.temperature > 0 ? mix(row.seed * 31 + row.position + 1) : 0);
      if (row.repetition_penalty != 1) {
        for (const int32_t id : row.prompt_ids) x = mix(x + static_cast<uint64_t>(id));
        for (const int32_t id : row.output_ids) x = mix(x + static_cast<uint64_t>(id) * 7);
      }
      do {
        x = mix(x + 1);
        result.token_id = static_cast<int32_t>(x % static_cast<uint64_t>(vocab_size));
      } while (!may_draw(row, result.token_id));
    }
    if (row.num_logprobs >= 0) {
      for (int32_t i = 0; i <= row.num_logprobs; ++i) {
        const int32_t id = (result.token_id + i) % vocab_size;
        result.logprobs.push_back({id, logprob(context, id), i + 1});
      }
    }
    return result;
  }
};

class FakeRunner : public Runner {
 public:
  // depth: steps that may be submitted ahead of the one that runs. windows: of the groups, each of
  // which has the KV in blocks of its own; see kv_blocks_for. states: {} = no recurrent layers.
  FakeRunner(int num_blocks, int block_size, int vocab_size, int depth,
             std::vector<int> windows = {0}, StatePoolSize states = {})
      : num_blocks_(num_blocks),
        block_size_(block_size),
        vocab_size_(vocab_size),
        depth_(depth),
        windows_(std::move(windows)),
        states_(states),
        kv_(static_cast<size_t>(num_blocks) * block_size) {}

  int num_kvcache_blocks() const override { return num_blocks_; }
  std::span<const int> kv_windows() const override { return windows_; }
  StatePoolSize state_pool() const override { return states_.size(); }
  int max_in_flight() const override { return depth_ + 1; }
  StepCost step_cost() const override { return cost; }

  void submit(const StepInput& input) override {
    NANOVLLM_CHECK(std::ssize(done_) <= depth_ && !undrawn_);
    const int step = num_steps++;
    for (int piece = 1; piece <= pieces_of_step; ++piece) {
      std::this_thread::sleep_for(step_time / pieces_of_step);
      if (progress != nullptr) progress->advance();
    }
    if (fails(step, fail_at_step)) fail();
    for (const SequenceInput& sequence : input.sequences) {
      std::this_thread::sleep_for(time_per_token * sequence.num_new_tokens);
    }
    written_.clear();
    Undrawn undrawn;
    bool prefills = false;
    for (const SequenceInput& sequence : input.sequences) {
      if (std::ranges::count(sequence.token_ids, deadly_id) > 0) std::abort();
      prefills = prefills || sequence.num_new_tokens > 1;
      NANOVLLM_CHECK(prefills == (sequence.num_new_tokens > 1));  // decodes come first
      undrawn.sequences.push_back(forward(sequence, undrawn.prompt_logprobs));
      num_computed_tokens += sequence.num_new_tokens;
    }
    undrawn_ = std::move(undrawn);
  }

  void draw(std::span<const SamplingRow> rows) override {
    NANOVLLM_CHECK(undrawn_);
    const Undrawn undrawn = *std::exchange(undrawn_, std::nullopt);
    const int step = num_steps - 1;
    if (!done_.empty()) ++num_drawn_ahead;
    if (fails(step, fail_at_draw)) fail();
    StepOutput output;
    output.results = undrawn.prompt_logprobs;
    std::vector<size_t> ends;  // in the results, of each sequence's
    std::vector<int32_t> draws;
    for (const UndrawnSequence& sequence : undrawn.sequences) {
      if (sequence.sample) {
        const size_t num_rows = sequence.draft_ids.size() + 1;
        NANOVLLM_CHECK(draws.size() + num_rows <= rows.size());
        sample(sequence, rows.subspan(draws.size(), num_rows), output.results, draws);
      }
      ends.push_back(output.results.size());
    }
    NANOVLLM_CHECK(draws.size() == rows.size());
    if (impossible_at_step == step) output.results.emplace_back().token_id = vocab_size_;
    const std::span<const SamplingResult> results = output.results;
    size_t first_prompt = 0, first = undrawn.prompt_logprobs.size();
    for (size_t i = 0; i < ends.size(); ++i) {
      const size_t num_scored = undrawn.sequences[i].num_scored;
      output.sequences.push_back({.sampled = results.subspan(first, ends[i] - first),
                                  .prompt_logprobs = results.subspan(first_prompt, num_scored)});
      first = ends[i];
      first_prompt += num_scored;
    }
    last_draws_ = std::move(draws);
    done_.push_back(std::move(output));
  }

  StepOutput collect() override {
    NANOVLLM_CHECK(!done_.empty());
    StepOutput output = std::move(done_.front());
    done_.pop_front();
    return output;
  }

  void abandon() noexcept override {
    done_.clear();
    undrawn_.reset();
  }

  int num_steps = 0;
  int num_computed_tokens = 0;
  int num_drawn_ahead = 0;      // steps that were drawn while the one before was in flight
  int fail_at_step = -1;        // from this submit() on,
  int fail_at_draw = -1;        // or from this step's draw() on,
  int num_failures = 1;         // this many throw
  int impossible_at_step = -1;  // this one draws a token outside of the vocabulary
  int32_t deadly_id = -1;       // the process ends if a sequence contains it
  ErrorCode failure = ErrorCode::kInternal;  // what is thrown
  std::chrono::microseconds step_time{};
  std::chrono::microseconds time_per_token{};  // besides
  StepCost cost;
  int pieces_of_step = 1;
  Progress* progress = nullptr;  // advances with each piece
  // With drafts, returns some number of the tokens that it could, perhaps none.
  bool gives_any_number = false;
  std::map<size_t, int> num_times_drawn;  // by the number of tokens, where there were drafts

 private:
  // What a step knows of a sequence between submit() and draw().
  struct UndrawnSequence {
    bool sample = false;
    uint64_t context = 0;  // what its tokens lead to, drafts not counted
    std::vector<int32_t> draft_ids = {};
    uint64_t position = 0;  // of the first draw
    int32_t pending_id = -1;
    size_t num_scored = 0;  // of prompt_logprobs
  };
  struct Undrawn {
    std::vector<UndrawnSequence> sequences;
    std::vector<SamplingResult> prompt_logprobs;
  };

  bool fails(int step, int first) const {
    return first >= 0 && step >= first && step < first + num_failures;
  }
  [[noreturn]] void fail() {
    abandon();
    throw Error(failure, "The device is on fire.");
  }

  size_t slot_of(const SequenceInput& s, int position, size_t group) const {
    const size_t row = position / block_size_;
    const int32_t block = s.block_table[row * windows_.size() + group];
    NANOVLLM_CHECK(block >= 0 && block < num_blocks_);
    return static_cast<size_t>(block) * block_size_ + position % block_size_;
  }
  // What a group has of a token with this KV.
  static uint64_t part_of(uint64_t kv, size_t group) { return FakeModel::mix(kv + group); }
  void store(const SequenceInput& s, int position, uint64_t kv) {
    for (size_t group = 0; group < windows_.size(); ++group) {
      const size_t slot = slot_of(s, position, group);
      // Two tokens never share a slot, unless they are those of equal texts.
      const uint64_t part = part_of(kv, group);
      NANOVLLM_CHECK(written_.insert(slot).second || kv_[slot] == part);
      kv_[slot] = part;
    }
  }
  // The KV of a token, if every group that sees it has its part of that; else nonsense.
  uint64_t load(const SequenceInput& s, int position, uint64_t kv) const {
    uint64_t loaded = kv;
    for (size_t group = 0; group < windows_.size(); ++group) {
      const int window = windows_[group];
      if (window > 0 && position <= s.num_computed_tokens - window) continue;
      loaded ^= kv_[slot_of(s, position, group)] ^ part_of(kv, group);
    }
    return loaded;
  }

  UndrawnSequence forward(const SequenceInput& s, std::vector<SamplingResult>& prompt_logprobs) {
    const int end = s.num_computed_tokens + s.num_new_tokens;
    const auto num_known = static_cast<int>(s.token_ids.size());
    const auto& drafts = s.draft_token_ids;
    const int pending_from = s.pending_from;
    const size_t num_scored = prompt_logprobs.size();
    if (pending_from >= 0) {
      NANOVLLM_CHECK(s.num_new_tokens > 0 && end <= num_known + 1 && drafts.empty());
    } else {
      NANOVLLM_CHECK(s.num_new_tokens > std::ssize(drafts) && (s.sample || drafts.empty()));
      NANOVLLM_CHECK(end <= num_known + std::ssize(drafts));
    }
    const auto num_rows = static_cast<int>(s.block_table.size() / windows_.size());
    NANOVLLM_CHECK(num_rows * block_size_ >= end);
    std::vector<int32_t> ids;
    for (int p = 0; p < end; ++p) {
      ids.push_back(p < num_known       ? s.token_ids[p]
                    : pending_from >= 0 ? std::max(last_draws_.at(pending_from), 0)
                                        : drafts[p - num_known]);
      NANOVLLM_CHECK(ids[p] >= 0 && ids[p] < vocab_size_);
    }
    const uint64_t mistake = states_.compute(s.states, ids, s.num_new_tokens);
    uint64_t context = 0, known_context = 0;
    for (int p = 0; p < end; ++p) {
      const uint64_t value = FakeModel::kv(ids[p], p, context);
      if (p >= s.num_computed_tokens && p >= s.kv_write_begin) store(s, p, value);
      context = FakeModel::fold(context, load(s, p, value) ^ mistake);
      if (p < end - std::ssize(drafts)) known_context = context;
      if (p >= s.num_computed_tokens && p + 1 >= s.prompt_logprobs_begin &&
          p + 1 < s.prompt_logprobs_end) {
        SamplingRow row;
        row.forced_id = s.token_ids[p + 1];
        row.num_logprobs = s.num_prompt_logprobs;
        prompt_logprobs.push_back(FakeModel::sample(context, row, vocab_size_));
      }
    }
    return {.sample = s.sample,
            .context = known_context,
            .draft_ids = {drafts.begin(), drafts.end()},
            .position = static_cast<uint64_t>(end - std::ssize(drafts)),
            .pending_id = pending_from >= 0 ? last_draws_.at(pending_from) : -1,
            .num_scored = prompt_logprobs.size() - num_scored};
  }

  void sample(const UndrawnSequence& s, std::span<const SamplingRow> rows,
              std::vector<SamplingResult>& sampled, std::vector<int32_t>& draws) {
    const size_t num_drafts = s.draft_ids.size();
    uint64_t context = s.context;
    const size_t any_number =
        FakeModel::mix(context + static_cast<uint64_t>(num_steps)) % (num_drafts + 2);
    const size_t num_before = draws.size();
    for (size_t i = 0; i <= num_drafts; ++i) {
      if (i > 0 && draws.back() != s.draft_ids[i - 1]) break;
      if (gives_any_number && num_drafts > 0 && i == any_number) break;
      SamplingRow row = rows[i];
      std::vector<int32_t> output_ids(row.output_ids.begin(), row.output_ids.end());
      if (row.pending_from >= 0) output_ids.push_back(s.pending_id);
      row.output_ids = output_ids;
      // The rows of those that have ended meanwhile have no lists.
      if (!row.prompt_ids.empty()) {
        NANOVLLM_CHECK(row.position == s.position + i);
        NANOVLLM_CHECK(row.prompt_ids.size() + output_ids.size() == row.position);
      }
      sampled.push_back(FakeModel::sample(context, row, vocab_size_));
      const int32_t id = sampled.back().token_id;
      context =
          FakeModel::fold(context, FakeModel::kv(id, static_cast<int>(s.position + i), context));
      draws.push_back(id);
    }
    if (num_drafts == 0) return;
    ++num_times_drawn[draws.size() - num_before];
    draws.resize(num_before);
    draws.resize(num_before + num_drafts + 1, -1);  // nobody may take them as pending
  }

  const int num_blocks_;
  const int block_size_;
  const int vocab_size_;
  const int depth_;
  const std::vector<int> windows_;  // [groups]
  FakeStates states_;
  std::vector<uint64_t> kv_;         // [num_blocks, block_size]
  std::vector<int32_t> last_draws_;  // of the step submitted last
  std::optional<Undrawn> undrawn_;   // the step submitted last
  std::deque<StepOutput> done_;
  std::unordered_set<size_t> written_;  // slots, in the present step
};

// Drafts as a function of each sequence says.
class FunctionDrafter final : public Drafter {
 public:
  using Function = std::function<std::vector<int32_t>(const Sequence&, int most)>;
  explicit FunctionDrafter(Function function) : function_(std::move(function)) {}

  void propose(std::span<DraftRequest> requests) override {
    for (DraftRequest& one : requests) one.draft.ids = function_(*one.sequence, one.most);
  }
  void ended(const Sequence&) noexcept override {}

 private:
  const Function function_;
};

struct FakeEngineOptions {
  int num_blocks = 64;
  int block_size = 4;
  int vocab_size = 50;
  int max_model_len = 200;
  int max_num_batched_tokens = 64;
  int max_num_seqs = 16;
  int pipeline_depth = 0;  // steps submitted ahead of the one that runs
  bool enable_prefix_caching = true;
  std::string scheduling_policy = "fcfs";
  double max_step_seconds = 0;
  StepCost step_cost = {};
  std::vector<int32_t> eos_token_ids = {0};
  int64_t seed = 0;
  std::string trace_file = {};
  std::vector<int> kv_windows = {0};
  StatePoolSize states = {};
  FunctionDrafter::Function drafter = {};
  std::vector<FunctionDrafter::Function> other_drafters = {};
  bool drafts_itself = false;  // by a second runner of the same model
  int most_drafts = kMostDraftTokens;
  int most_draft_blocks = 1 << 16;
  std::optional<DraftPlanner> draft_planner = {};
  double synthetic_acceptance = 0;
  DictatedTexts dictated = {};
};

struct FakeEngine {
  std::unique_ptr<EngineCore> core;
  FakeRunner* runner = nullptr;        // the core's
  FakeRunner* draft_runner = nullptr;  // of one that drafts itself
};

// The model itself guesses.
inline std::unique_ptr<Drafter> make_model_drafter(const FakeEngineOptions& options,
                                                   std::unique_ptr<FakeRunner> runner) {
  const auto group = std::ranges::find(options.kv_windows, 0) - options.kv_windows.begin();
  return std::make_unique<ModelDrafter>(
      std::move(runner),
      ModelDrafterOptions{.max_num_batched_tokens = options.max_num_batched_tokens,
                          .max_model_len = options.max_model_len,
                          .vocab_size = options.vocab_size,
                          .block_size = options.block_size,
                          .num_groups = static_cast<int>(options.kv_windows.size()),
                          .group = static_cast<int>(group),
                          .num_target_blocks = options.num_blocks});
}

inline FakeEngine make_fake_engine(const FakeEngineOptions& options = {},
                                   std::unique_ptr<const Tokenizer> tokenizer = nullptr,
                                   std::unique_ptr<EngineObserver> observer = nullptr) {
  EngineParts parts;
  FakeEngine engine;
  parts.config.max_num_batched_tokens = options.max_num_batched_tokens;
  parts.config.max_num_seqs = options.max_num_seqs;
  parts.config.kvcache_block_size = options.block_size;
  parts.config.enable_prefix_caching = options.enable_prefix_caching;
  parts.config.scheduling_policy = options.scheduling_policy;
  parts.config.max_step_seconds = options.max_step_seconds;
  parts.config.seed = options.seed;
  parts.info.max_model_len = options.max_model_len;
  parts.info.vocab_size = options.vocab_size;
  parts.model_dir = "fake";
  if (!options.trace_file.empty()) {
    parts.observers.push_back(std::make_unique<TraceWriter>(options.trace_file));
  }
  if (observer) parts.observers.push_back(std::move(observer));
  parts.eos_token_ids = options.eos_token_ids;
  parts.tokenizer = std::move(tokenizer);
  if (options.drafts_itself) {
    auto draft_runner =
        std::make_unique<FakeRunner>(std::min(options.num_blocks, options.most_draft_blocks),
                                     options.block_size, options.vocab_size, 1);
    engine.draft_runner = draft_runner.get();
    parts.drafting.drafter = make_model_drafter(options, std::move(draft_runner));
  } else if (options.drafter) {
    parts.drafting.drafter = std::make_unique<FunctionDrafter>(options.drafter);
  }
  for (const auto& other : options.other_drafters) {
    parts.drafting.others.push_back(std::make_unique<FunctionDrafter>(other));
  }
  parts.drafting.planner = options.draft_planner;
  parts.drafting.most_tokens = [most = options.most_drafts](int) { return most; };
  parts.drafting.synthetic_acceptance = options.synthetic_acceptance;
  if (!options.dictated.empty()) {
    parts.dictated = std::make_shared<const DictatedTexts>(options.dictated);
  }
  auto runner =
      std::make_unique<FakeRunner>(options.num_blocks, options.block_size, options.vocab_size,
                                   options.pipeline_depth, options.kv_windows, options.states);
  runner->cost = options.step_cost;
  engine.runner = runner.get();
  parts.runner = std::move(runner);
  engine.core = std::make_unique<EngineCore>(std::move(parts));
  return engine;
}

}  // namespace nanovllm
