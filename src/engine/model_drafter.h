// Drafts of a smaller model with the same vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/draft_blocks.h"
#include "engine/drafter.h"
#include "runner/runner.h"

namespace nanovllm {

struct ModelDrafterOptions {
  // Of a step of the draft model.
  int max_num_batched_tokens = 0;
  // Tokens that it sees at most: what would follow them is not guessed.
  int max_model_len = 0;
  // Ids below are known to both models.
  int vocab_size = 0;
  int block_size = 0;
  // Groups in the block tables of sequences, and the one whose tokens the draft model has KV of: it
  // keeps all of them.
  int num_groups = 1;
  int group = 0;
  // Of the target, for all its groups.
  int num_target_blocks = 0;
};

// Its KV of the tokens of a block of the target lies in a block that goes with that one
// (DraftBlocks). So the draft model computes what the target computes, in the same steps, finds
// what a prefix hit brings, and goes back where a guess was wrong. Where it did not compute what
// the target did (guesses paused, or a text ended behind some that were right), blocks hold what
// others left there: then it guesses badly, and no more than that. What gave way to others it
// computes again.
//
// It draws as the request does, with the same random numbers, but without penalties, biases and
// masks: where both models agree, so do the tokens. Its first pass computes what is missing of all
// sequences; each pass behind it takes the tokens that the one before drew, on the device.
class ModelDrafter final : public Drafter {
 public:
  // The runner has all its layers in one group.
  ModelDrafter(std::unique_ptr<Runner> runner, const ModelDrafterOptions& options)
      : runner_(std::move(runner)),
        options_(options),
        blocks_(options.num_target_blocks, runner_->num_kvcache_blocks()) {}

  bool computes() const override { return true; }
  void propose(std::span<DraftRequest> requests) override;
  void ended(const Sequence& sequence) noexcept override { texts_.erase(&sequence); }

 private:
  struct Text {
    std::vector<int32_t> ids = {};  // what is known of it, then what was guessed last
    int num_known = 0;
    int num_computed = 0;  // those whose KV is there
    int num_preemptions = -1;
    bool is_foreign = false;  // it has a token that the draft model does not know
  };
  // A sequence in the present call.
  struct Part {
    DraftRequest* request;
    Text* text;
    int end;   // tokens that are computed before anything is guessed
    int most;  // guesses
    std::vector<int32_t> block_table;
    int draw = 0;  // the number of its draw in the pass submitted last

    int num_missing() const { return end - text->num_computed; }
  };

  void add_part(DraftRequest& request);
  void follow(const Sequence& sequence, Text& text) const;
  int block_of(const Sequence& sequence, int row) const;
  std::vector<int32_t> take_blocks(const Sequence& sequence, int num_tokens);
  void catch_up();
  void begin_first_pass();
  bool begin_pass_behind(int num_passes);
  void begin_pass();
  void add_input(Part& part, int num_new_tokens, int pending_from = -1);
  void add_draw(Part& part, int position);
  void take_guesses();

  const std::unique_ptr<Runner> runner_;
  const ModelDrafterOptions options_;
  DraftBlocks blocks_;
  std::unordered_map<const Sequence*, Text> texts_;
  std::vector<Part> parts_;           // reused, as those below
  std::vector<Part*> pass_, behind_;  // who draws in the pass that runs, and in the one behind it
  StepInput input_;
  std::vector<SamplingRow> rows_;
};

}  // namespace nanovllm
