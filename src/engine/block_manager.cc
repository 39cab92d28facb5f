#include "engine/block_manager.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "nanovllm/engine_info.h"

namespace nanovllm {

namespace {

constexpr int32_t kNoBlock = -1;

uint64_t xxhash(uint64_t parent, std::span<const int32_t> token_ids) {
  return XXH3_64bits_withSeed(token_ids.data(), token_ids.size_bytes(), parent);
}

}  // namespace

BlockManager::BlockManager(int num_blocks, int block_size, std::vector<int> windows,
                           StatePoolSize states)
    : BlockManager(num_blocks, block_size, xxhash, std::move(windows), states) {}

BlockManager::BlockManager(int num_blocks, int block_size, TextChain::HashFunction hash,
                           std::vector<int> windows, StatePoolSize states)
    : block_size_(block_size),
      windows_(std::move(windows)),
      num_groups_(static_cast<int>(windows_.size())),
      num_windows_(static_cast<int>(std::ranges::count_if(windows_, [](int w) { return w > 0; }))),
      pool_(num_blocks),
      chain_(num_blocks, block_size, num_groups_ + (states.num_slots > 0 ? 1 : 0), std::move(hash)),
      states_(states, block_size, chain_, num_groups_),
      runs_(num_groups_) {}

int64_t BlockManager::blocks_for(int num_tokens) const {
  return kv_blocks_for(num_tokens, windows_, block_size_);
}

bool BlockManager::allocate(Sequence& sequence) {
  NANOVLLM_CHECK(sequence.block_table.empty());
  if (!states_.has_room()) return false;
  const int num_rows_needed = rows_for(sequence.num_tokens());
  sequence.block_table.reserve(place(num_rows_needed, 0));  // nothing below can throw
  sequence.num_known_elsewhere = 0;
  const PrefixChain prefix = sequence.reads_prefix_cache ? find_prefix(sequence) : PrefixChain();
  const bool is_alone = prefix.node == TextChain::kNone || chain_.is_end(prefix.node);
  sequence.num_taken_by_others = is_alone ? 0 : prefix.num_blocks * block_size_;
  if (!take_over(sequence, prefix)) {
    sequence.block_table.clear();
    return false;
  }
  states_.allocate(sequence, prefix);
  while (num_rows(sequence) < num_rows_needed) add_row(sequence);
  return true;
}

// The longest beginning of the sequence that ends at a block boundary and of which every group has
// what is seen behind it. The state behind the last token is of no use: that one is computed again.
PrefixChain BlockManager::find_prefix(Sequence& sequence) {
  const int num_full = num_shareable_tokens(sequence) / block_size_;
  PrefixChain chain, longest;
  int num_blocks_known = 0;     // to those who see everything
  std::ranges::fill(runs_, 0);  // how many blocks each group has in a row, up to chain.node
  while (chain.num_blocks < num_full) {
    const int node = chain_.find(
        chain_.text(chain.node, sequence.cache_salt, tokens_of_row(sequence, chain.num_blocks)));
    if (node == TextChain::kNone) break;
    chain = {chain.num_blocks + 1, node};
    const int next = first_to_compute(sequence, chain);
    bool all_have_it = states_.has_state(node), is_known = true;
    for (int group = 0; group < num_groups_; ++group) {
      runs_[group] = chain_.block(node, group) == TextChain::kNone ? 0 : runs_[group] + 1;
      if (runs_[group] < chain.num_blocks - first_row(group, next)) all_have_it = false;
      if (windows_[group] == 0 && runs_[group] < chain.num_blocks) is_known = false;
    }
    if (!is_known) break;
    num_blocks_known = chain.num_blocks;
    if (all_have_it) longest = chain;
  }
  const int known = states_.boundary_within(num_blocks_known * block_size_);
  if (known > longest.num_blocks * block_size_) sequence.num_known_elsewhere = known;
  return longest;
}

int BlockManager::num_tokens_found(Sequence& sequence) {
  if (!sequence.reads_prefix_cache) return 0;
  return find_prefix(sequence).num_blocks * block_size_;
}

int BlockManager::num_tokens_to_come(const Sequence& sequence, const Sequence& running) const {
  if (!sequence.reads_prefix_cache || sequence.cache_salt != running.cache_salt) return 0;
  const int most = std::min(num_shareable_tokens(sequence), num_shareable_tokens(running));
  // A state is there once the next token is computed.
  const int there = running.num_settled_tokens - (has_states() ? 1 : 0);
  if (states_.boundary_within(most) <= there) return 0;
  const auto text = std::span(sequence.token_ids).first(most);
  const auto parted = std::ranges::mismatch(text, running.token_ids).in1;
  const int common = states_.boundary_within(static_cast<int>(parted - text.begin()));
  return common > there ? common : 0;
}

// Holds what the cache has of `prefix`, if the rest of the sequence fits besides. The table has
// memory for it.
bool BlockManager::take_over(Sequence& sequence, const PrefixChain& prefix) {
  std::vector<int32_t>& table = sequence.block_table;
  table.assign(place(prefix.num_blocks, 0), kNoBlock);
  const int next = first_to_compute(sequence, prefix);
  int64_t num_hits = 0, num_free_hits = 0;
  int node = prefix.node;
  for (int row = prefix.num_blocks - 1; row >= 0; --row) {
    for (int group = 0; group < num_groups_; ++group) {
      if (row < first_row(group, next)) continue;
      const int block = table[place(row, group)] = chain_.block(node, group);
      ++num_hits;
      if (pool_.is_free(block)) ++num_free_hits;
    }
    node = chain_.parent(node);
  }
  const int64_t num_new = blocks_for(sequence.num_tokens()) - num_hits;
  if (pool_.num_free() - num_free_hits < num_new) return false;
  for (const int block : table) {
    if (block != kNoBlock) pool_.hold(block);
  }
  chain_.hold(prefix.node);
  sequence.chain = prefix;
  sequence.num_window_rows = prefix.num_blocks;
  sequence.num_computed_tokens = sequence.num_settled_tokens = next;
  return true;
}

bool BlockManager::reserve(Sequence& sequence, int num_tokens) {
  const int64_t in_table = std::ssize(sequence.block_table) * block_size_;
  const int64_t in_windows = int64_t{sequence.num_window_rows} * block_size_;
  if (int64_t{num_tokens} * num_groups_ <= in_table &&
      (num_windows_ == 0 || num_tokens <= in_windows)) {
    return true;  // mostly: spares divisions
  }
  if (num_tokens_with_room(sequence, num_tokens) < num_tokens) return false;
  const int num_rows_needed = rows_for(num_tokens);
  while (num_rows(sequence) < num_rows_needed) add_row(sequence);
  for (int& row = sequence.num_window_rows; num_windows_ > 0 && row < num_rows_needed; ++row) {
    for (int group = 0; group < num_groups_; ++group) {
      if (windows_[group] > 0) sequence.block_table[place(row, group)] = take_block();
    }
  }
  return true;
}

void BlockManager::shrink(Sequence& sequence, int num_tokens) {
  const int num_rows_needed = rows_for(num_tokens);
  NANOVLLM_CHECK(num_rows_needed >= sequence.chain.num_blocks);
  std::vector<int32_t>& table = sequence.block_table;
  for (; table.size() > place(num_rows_needed, 0); table.pop_back()) {
    if (table.back() != kNoBlock) pool_.drop(table.back());
  }
  sequence.num_window_rows = std::min(sequence.num_window_rows, num_rows_needed);
}

// Where there are so many free blocks.
int BlockManager::num_tokens_in(const Sequence& sequence, int num_tokens, int num_free) const {
  const int rows = num_rows(sequence);
  // Rows in which only the groups with a window lack blocks come first.
  const int lacking = num_windows_ == 0 ? 0 : (rows - sequence.num_window_rows) * num_windows_;
  const int with_room = num_free < lacking ? sequence.num_window_rows + num_free / num_windows_
                                           : rows + (num_free - lacking) / num_groups_;
  return static_cast<int>(std::min<int64_t>(num_tokens, int64_t{with_room} * block_size_));
}

// With blocks of the groups without a window.
void BlockManager::add_row(Sequence& sequence) {
  std::vector<int32_t>& table = sequence.block_table;
  const size_t begin = table.size();
  table.resize(begin + num_groups_, kNoBlock);  // throws before a block is held
  for (int group = 0; group < num_groups_; ++group) {
    if (windows_[group] == 0) table[begin + group] = take_block();
  }
}

int BlockManager::take_block() {
  const int block = pool_.next_free();
  const BlockPool::Content lost = pool_.content(block);
  if (lost.node != TextChain::kNone) {
    states_.forget(lost.node);
    pool_.clear_content(block);
    chain_.clear_block(lost.node, lost.group);
  }
  return pool_.take();
}

void BlockManager::deallocate(Sequence& sequence) {
  std::vector<int32_t>& table = sequence.block_table;
  for (; !table.empty(); table.pop_back()) {
    if (table.back() != kNoBlock) pool_.drop(table.back());
  }
  states_.deallocate(sequence);
  chain_.drop(sequence.chain.node);
  sequence.chain = {};
  sequence.num_window_rows = sequence.num_computed_tokens = sequence.num_settled_tokens = 0;
}

void BlockManager::register_computed(Sequence& sequence, int num_tokens) {
  register_full_rows(sequence, std::min(num_tokens, sequence.num_cacheable_tokens));
  states_.keep(sequence, num_tokens);
  if (num_windows_ > 0) give_back_unseen(sequence, num_tokens);
  sequence.num_settled_tokens = num_tokens;
}

void BlockManager::register_full_rows(Sequence& sequence, int num_tokens) {
  PrefixChain& chain = sequence.chain;
  if (num_tokens < (chain.num_blocks + int64_t{1}) * block_size_) return;
  const int num_full = num_tokens / block_size_;
  while (chain.num_blocks < num_full) {
    const TextChain::Text text =
        chain_.text(chain.node, sequence.cache_salt, tokens_of_row(sequence, chain.num_blocks));
    int node = chain_.find(text);
    if (node == TextChain::kNone) {
      node = chain_.add(text);
    } else {
      chain_.hold(node);
    }
    register_row(sequence, chain.num_blocks, node);
    chain_.drop(chain.node);  // its child holds it
    chain = {chain.num_blocks + 1, node};
  }
}

void BlockManager::register_row(Sequence& sequence, int row, int node) {
  for (int group = 0; group < num_groups_; ++group) {
    int32_t& block = sequence.block_table[place(row, group)];
    NANOVLLM_CHECK(block != kNoBlock);
    const int found = chain_.block(node, group);
    if (found == TextChain::kNone) {
      pool_.set_content(block, {node, group});
      chain_.set_block(node, group, block);
    } else {
      // Another sequence computed the same text first. Held as its own, that block outlives all
      // that will be registered after it.
      pool_.hold(found);
      pool_.drop(std::exchange(block, found));
    }
  }
}

bool BlockManager::may_give_back(const Sequence& sequence) const {
  for (int group = 0; group < num_groups_; ++group) {
    if (first_row(group, sequence.num_settled_tokens) <
        first_row(group, sequence.num_computed_tokens)) {
      return true;
    }
  }
  return false;
}

// Whether a text is likely to be continued where a group sees the row: where this one and others
// went on from what was cached, where it parted from a text that others had computed, or at its
// prompt's end. But where it alone goes on, as a chat does from its last answer, nobody will.
bool BlockManager::is_seen_at_parting(const Sequence& sequence, int group, int row) const {
  for (const int num_tokens : {sequence.num_taken_by_others, sequence.num_known_elsewhere,
                               sequence.num_prompt_tokens - 1}) {
    const int end = num_tokens / block_size_;
    if (first_row(group, end * block_size_) <= row && row < end) return true;
  }
  return false;
}

void BlockManager::give_back_unseen(Sequence& sequence, int num_tokens) {
  for (int group = 0; group < num_groups_; ++group) {
    const int end = first_row(group, num_tokens);
    for (int row = first_row(group, sequence.num_settled_tokens); row < end; ++row) {
      pool_.drop(std::exchange(sequence.block_table[place(row, group)], kNoBlock),
                 is_seen_at_parting(sequence, group, row));
    }
  }
}

std::string BlockManager::check_integrity(std::span<const Sequence* const> sequences) const {
  std::vector<int> block_holders(num_blocks(), 0);
  std::vector<int> node_holders(chain_.max_node() + 1, 0);
  for (const Sequence* sequence : sequences) {
    if (std::string wrong = check_sequence(*sequence); !wrong.empty()) return wrong;
    for (const int block : sequence->block_table) {
      if (block != kNoBlock) ++block_holders[block];
    }
    if (sequence->chain.node != TextChain::kNone) ++node_holders[sequence->chain.node];
  }
  if (std::string wrong = check_contents(); !wrong.empty()) return wrong;
  if (std::string wrong = pool_.check(block_holders); !wrong.empty()) return wrong;
  if (std::string wrong = states_.check_integrity(sequences); !wrong.empty()) return wrong;
  return chain_.check(node_holders);
}

std::string BlockManager::check_contents() const {
  for (int block = 0; block < num_blocks(); ++block) {
    const auto [node, group] = pool_.content(block);
    if (node != TextChain::kNone && chain_.block(node, group) != block) {
      return fmt::format("block {} has the KV of a text that has another block", block);
    }
  }
  if (chain_.num_blocks() != pool_.num_cached() + states_.num_kept()) {
    return "a text has a block or a state of another text";
  }
  return "";
}

std::string BlockManager::check_sequence(const Sequence& sequence) const {
  const PrefixChain& chain = sequence.chain;
  if (chain.num_blocks > num_rows(sequence) || sequence.num_window_rows > num_rows(sequence)) {
    return "a sequence has less blocks than it accounts for";
  }
  if (place(num_rows(sequence), 0) != sequence.block_table.size()) {
    return "a block table ends within a row";
  }
  int node = chain.node;
  for (int row = num_rows(sequence) - 1; row >= 0; --row) {
    const bool is_registered = row < chain.num_blocks;
    if (is_registered && node == TextChain::kNone) return "a sequence's text begins too late";
    for (int group = 0; group < num_groups_; ++group) {
      const int expected = is_registered ? node : TextChain::kNone;
      if (auto wrong = check_entry(sequence, row, group, expected); !wrong.empty()) return wrong;
    }
    if (!is_registered) continue;
    if ((row + 1) * block_size_ > static_cast<int>(sequence.token_ids.size()) ||
        !std::ranges::equal(chain_.token_ids(node), tokens_of_row(sequence, row)) ||
        chain_.salt(node) != sequence.cache_salt) {
      return fmt::format("node {} is another text than its sequence's", node);
    }
    node = chain_.parent(node);
  }
  return node == TextChain::kNone ? "" : "a sequence's text is longer than its blocks";
}

std::string BlockManager::check_entry(const Sequence& sequence, int row, int group,
                                      int node) const {
  const int block = sequence.block_table[place(row, group)];
  const bool is_needed =
      windows_[group] == 0 ||
      (row >= first_row(group, sequence.num_settled_tokens) && row < sequence.num_window_rows);
  if ((block != kNoBlock) != is_needed) {
    return fmt::format("a sequence has block {} in row {} of group {}", block, row, group);
  }
  if (block == kNoBlock) return "";
  if (pool_.content(block).node != node) {
    return fmt::format("block {} is registered or not, unlike its sequence", block);
  }
  if (node != TextChain::kNone && pool_.content(block).group != group) {
    return fmt::format("block {} is in the table of another group", block);
  }
  return "";
}

}  // namespace nanovllm
