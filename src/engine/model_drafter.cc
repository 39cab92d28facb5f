#include "engine/model_drafter.h"

#include <algorithm>

namespace nanovllm {

void ModelDrafter::propose(std::span<DraftRequest> requests) {
  parts_.clear();
  blocks_.begin_step();
  for (DraftRequest& request : requests) add_part(request);
  if (parts_.empty()) return;
  try {
    catch_up();
    begin_first_pass();
    for (int num_passes = 1; begin_pass_behind(num_passes); ++num_passes) {
      take_guesses();
      pass_.swap(behind_);
    }
    take_guesses();
  } catch (...) {
    runner_->abandon();  // a pass may be under way, which nobody will collect
    throw;
  }
}

void ModelDrafter::add_part(DraftRequest& request) {
  const Sequence& sequence = *request.sequence;
  Text& text = texts_[&sequence];
  follow(sequence, text);
  const int end = sequence.num_computed_tokens + request.num_new_tokens;
  const int most = std::min(request.most, options_.max_model_len - end + 1);
  if (text.is_foreign || end > options_.max_model_len) return;
  if (most > 0) text.num_computed = std::min(text.num_computed, end - 1);
  if (text.num_computed >= end) return;
  auto blocks = take_blocks(sequence, end + std::max(0, most - 1));
  if (!blocks.empty()) parts_.push_back({&request, &text, end, most, std::move(blocks)});
}

// Takes over what is known, and forgets guesses behind the first wrong one.
void ModelDrafter::follow(const Sequence& sequence, Text& text) const {
  if (text.num_preemptions != sequence.num_preemptions) {
    text.num_preemptions = sequence.num_preemptions;
    // The last block of a prefix hit may be where a text ended behind right guesses.
    text.num_computed = std::max(0, sequence.num_computed_tokens - options_.block_size);
  }
  const auto known = std::span(sequence.token_ids).subspan(text.num_known);
  const auto guessed = std::span(text.ids).subspan(text.num_known);
  const auto differs = std::ranges::mismatch(known, guessed).in1;
  text.ids.resize(text.num_known + (differs - known.begin()));
  text.num_computed = std::min(text.num_computed, static_cast<int>(text.ids.size()));
  const auto is_unknown = [&](int32_t id) { return id >= options_.vocab_size; };
  text.is_foreign = text.is_foreign || std::any_of(differs, known.end(), is_unknown);
  text.ids.insert(text.ids.end(), differs, known.end());
  text.num_known = static_cast<int>(text.ids.size());
  int row = 0;
  while (row * options_.block_size < text.num_computed && blocks_.has(block_of(sequence, row))) {
    ++row;
  }
  text.num_computed = std::min(text.num_computed, row * options_.block_size);
}

// Of the target's, that of the tokens from row * block_size on.
int ModelDrafter::block_of(const Sequence& sequence, int row) const {
  return sequence.block_table[static_cast<size_t>(row) * options_.num_groups + options_.group];
}

// Those of the first num_tokens tokens; none where there are not so many.
std::vector<int32_t> ModelDrafter::take_blocks(const Sequence& sequence, int num_tokens) {
  const int num_blocks = (num_tokens + options_.block_size - 1) / options_.block_size;
  std::vector<int32_t> blocks(num_blocks);
  for (int row = 0; row < num_blocks; ++row) {
    blocks[row] = blocks_.take(block_of(sequence, row));
    if (blocks[row] < 0) return {};
  }
  return blocks;
}

// Computes what has no room in the first pass.
void ModelDrafter::catch_up() {
  int64_t num_rows = 0;
  for (const Part& part : parts_) num_rows += part.num_missing();
  while (num_rows > options_.max_num_batched_tokens) {
    input_.sequences.clear();
    rows_.clear();
    int room = options_.max_num_batched_tokens;
    for (Part& part : parts_) {
      const int count = std::min(part.num_missing() - 1, room);
      if (count <= 0) continue;
      add_input(part, count);
      room -= count;
      num_rows -= count;
    }
    std::partition(input_.sequences.begin(), input_.sequences.end(),
                   [](const SequenceInput& one) { return one.num_new_tokens == 1; });
    begin_pass();
    runner_->collect();
  }
}

void ModelDrafter::begin_first_pass() {
  std::partition(parts_.begin(), parts_.end(),
                 [](const Part& part) { return part.num_missing() == 1; });
  input_.sequences.clear();
  rows_.clear();
  pass_.clear();
  for (Part& part : parts_) {
    add_input(part, part.num_missing());
    if (part.most <= 0) continue;
    add_draw(part, part.end);
    pass_.push_back(&part);
  }
  begin_pass();
}

// False where nobody wants more than num_passes guesses.
bool ModelDrafter::begin_pass_behind(int num_passes) {
  input_.sequences.clear();
  rows_.clear();
  behind_.clear();
  for (Part* part : pass_) {
    if (part->most <= num_passes) continue;
    add_input(*part, 1, part->draw);
    add_draw(*part, part->end + num_passes);
    behind_.push_back(part);
  }
  if (behind_.empty()) return false;
  begin_pass();
  return true;
}

void ModelDrafter::begin_pass() {
  runner_->submit(input_);
  runner_->draw(rows_);
}

// Blocks that others share are written as well: what is there has the same KV, or none.
void ModelDrafter::add_input(Part& part, int num_new_tokens, int pending_from) {
  input_.sequences.push_back({.token_ids = part.text->ids,
                              .num_computed_tokens = part.text->num_computed,
                              .num_new_tokens = num_new_tokens,
                              .block_table = part.block_table,
                              .pending_from = pending_from});
  part.text->num_computed += num_new_tokens;
}

// Of the input added last: what stands at `position`.
void ModelDrafter::add_draw(Part& part, int position) {
  input_.sequences.back().sample = true;
  part.draw = static_cast<int>(rows_.size());
  rows_.push_back(part.request->row);
  rows_.back().position = static_cast<uint64_t>(position);
}

// A draw without a distribution, or of an id that the target does not know, is the end of a draft.
void ModelDrafter::take_guesses() {
  const StepOutput output = runner_->collect();
  for (size_t i = 0; i < pass_.size(); ++i) {
    Part& part = *pass_[i];
    const int32_t id = output.results.at(i).token_id;
    if (part.most == 0) continue;
    if (id < 0 || id >= options_.vocab_size) {
      part.most = 0;
      continue;
    }
    part.text->ids.push_back(id);
    part.request->draft.ids.push_back(id);
    part.request->draft.evidence = 1;
  }
}

}  // namespace nanovllm
