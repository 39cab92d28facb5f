// A pushdown automaton over bytes, made deterministic as it is used: a state is the number of an
// interned set of stacks, and what was found out once about a state is remembered.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "grammar/syntax.h"

namespace nanovllm::grammar {

using StateId = uint32_t;
inline constexpr StateId kDead = 1;      // no text goes on from here
inline constexpr StateId kOutgrown = 2;  // as kDead, for the automaton has become too large
inline constexpr StateId kStart = 3;

// Rows of things that never move, so that threads may read them while another adds more: blocks
// that double in size.
template <typename T>
class StableRows {
 public:
  explicit StableRows(size_t width) : width_(width) {}
  // The first of row i's things.
  T* operator[](size_t i) const {
    const size_t block = std::bit_width(i / kFirst + 1) - size_t{1};
    T* const begin = blocks_[block].load(std::memory_order_acquire);
    return begin + (i + kFirst - (kFirst << block)) * width_;
  }
  // Room for `size` rows in all, each thing of them zero. One thread at a time.
  void grow(size_t size) {
    while (capacity_ < size) {
      const size_t count = kFirst << owned_.size();
      owned_.push_back(std::make_unique<T[]>(count * width_));
      blocks_[owned_.size() - 1].store(owned_.back().get(), std::memory_order_release);
      capacity_ += count;
    }
  }
  // Of memory, when there is room for `size` rows.
  size_t bytes_with(size_t size) const {
    size_t capacity = capacity_;
    for (size_t block = owned_.size(); capacity < size; ++block) capacity += kFirst << block;
    return capacity * width_ * sizeof(T);
  }

 private:
  static constexpr size_t kFirst = 32;
  const size_t width_;
  std::array<std::atomic<T*>, 26> blocks_ = {};
  std::vector<std::unique_ptr<T[]>> owned_;
  size_t capacity_ = 0;
};

// Interns things that are kept elsewhere by their number.
class IdTable {
 public:
  // The number of what has this hash and satisfies `equals(number)`, or kUnbounded.
  template <typename Equals>
  uint32_t find(uint64_t hash, Equals&& equals) const {
    if (slots_.empty()) return kUnbounded;
    const size_t mask = slots_.size() - 1;
    for (size_t i = hash & mask; slots_[i].id != kUnbounded; i = (i + 1) & mask) {
      if (slots_[i].hash == static_cast<uint32_t>(hash) && equals(slots_[i].id)) {
        return slots_[i].id;
      }
    }
    return kUnbounded;
  }
  // What find() did not find.
  void add(uint64_t hash, uint32_t id);
  // Of memory at most: a table that has just grown is a quarter full.
  size_t bytes() const { return 4 * (size_ + 1) * sizeof(Slot); }

 private:
  struct Slot {
    uint32_t hash, id;  // the lower half of the hash
  };
  std::vector<Slot> slots_;  // a power of two, at most half full
  size_t size_ = 0;
};

// Thread-safe: transitions that are known are read without a lock, others are found under one.
//
// What follows a guess at a text may be asked for as well (is_guess). No guess outgrows an
// automaton: the memory that guesses take is counted by itself, and where it would be more than a
// quarter of max_bytes, or where a text would outgrow it, a guess leads to kOutgrown, and that is
// not remembered.
class Automaton {
 public:
  // `syntax` is finished, outlives it, and does not change. Where the states of texts would need
  // more than `max_bytes` of memory, they are outgrown.
  Automaton(const Syntax& syntax, NodeId start, size_t max_bytes);

  StateId next(StateId state, uint8_t byte) {
    return next_of_class(state, syntax_.classes()[byte]);
  }
  StateId next_of_class(StateId state, uint8_t byte_class) {
    size_t work = 0;
    return next_of_class(state, byte_class, work);
  }
  // Adds to `work` how many stacks were looked at, and frames behind them that were not known yet;
  // none where the transition is known.
  StateId next_of_class(StateId state, uint8_t byte_class, size_t& work, bool is_guess = false) {
    const StateId known = rows_[state][byte_class].load(std::memory_order_acquire);
    return known != 0 ? known : find_next(state, byte_class, work, is_guess);
  }
  StateId advance(StateId state, std::string_view bytes, bool is_guess = false) {
    size_t work = 0;
    for (const char byte : bytes) {
      const uint8_t byte_class = syntax_.classes()[static_cast<uint8_t>(byte)];
      state = next_of_class(state, byte_class, work, is_guess);
    }
    return state;
  }
  bool is_accepting(StateId state) const { return infos_[state]->is_accepting; }
  // The byte that must follow, where there is one way to go on and the text can't end; -1 = it is
  // not so, or a guess takes too much. Asked for as a guess.
  int forced_byte(StateId state);
  // Characters: any run of so many plain ones is the beginning of an accepted text from here.
  uint32_t covers(StateId state) const {
    return infos_[state]->covers.load(std::memory_order_relaxed);
  }
  // A state that any text of up to `most` bytes takes where it takes this one: counts that it can't
  // reach are alike. `most` is the same in all calls.
  StateId nearby(StateId state, uint32_t most, bool is_guess = false);
  // Work that guesses have done to find out what follows a state: it is part of what a text would
  // have to do there.
  size_t guessed_work(StateId state) const {
    return infos_[state]->guessed_work.load(std::memory_order_relaxed);
  }
  void set_guessed_work(StateId state, size_t work) {
    infos_[state]->guessed_work = static_cast<uint32_t>(std::min<size_t>(work, kUnbounded));
  }

  const Syntax& syntax() const { return syntax_; }
  size_t num_states() const;
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }  // of memory, at most
  size_t max_bytes() const { return max_bytes_; }
  // Whether any state was outgrown; those that are known are as they were.
  bool is_outgrown() const { return is_outgrown_.load(std::memory_order_relaxed); }
  // From now on all states that are not known are.
  void outgrow() { is_outgrown_ = true; }

 private:
  // What is to be read next, and behind it `parent`'s. Frame 0 is the end of the text.
  struct Frame {
    NodeId node;
    // kLiteral: bytes read. kDfa: its state. kExcept: state of canonical_string(), and above 16
    // bits the bytes read while low < high.
    uint32_t position;
    // kRepeat, and kDfa that is counted: rounds that must and may follow. kExcept: the names that
    // begin as what was read does.
    uint32_t low, high;
    uint32_t parent;
    bool operator==(const Frame&) const = default;
  };
  // What is to be read behind a frame's beginning: frames of literals and automata.
  struct Closure {
    uint32_t offset = 0, count = kUnbounded;  // in closure_frames_; not known yet
    uint32_t covers = 0;
    bool is_accepting = false;
  };
  static constexpr int16_t kNoByte = -1, kUnknownByte = -2;
  struct Info {
    uint32_t offset = 0, count = 0;  // in state_frames_
    std::atomic<uint32_t> covers = 0;
    std::atomic<StateId> nearby = 0;
    std::atomic<uint32_t> guessed_work = 0;
    std::atomic<int16_t> forced_byte = kUnknownByte;
    bool is_accepting = false;
  };
  // A set of stacks that is being put together.
  struct Gathered {
    std::vector<uint32_t> frames;
    uint32_t covers = 0;
    bool is_accepting = false;
    bool is_cut = false;  // they were too many
  };

  StateId find_next(StateId state, uint8_t byte_class, size_t& work, bool is_guess);
  // Around what may take memory.
  void begin_growing(bool is_guess);
  void end_growing();
  // Before anything of the node is read.
  Frame begin(NodeId node, uint32_t parent) const;
  uint32_t intern(const Frame& frame);
  StateId intern(Gathered& gathered);
  void sort(std::vector<uint32_t>& frames);
  int next_literal_byte(uint32_t frame) const;
  Closure closure(uint32_t frame);
  void expand(uint32_t frame, Closure& closure);
  void add(uint32_t frame, Gathered& out);
  void add_terminal(const Frame& frame, Gathered& out);
  void step(const Frame& frame, uint8_t byte, Gathered& out);
  void step_dfa(const Frame& frame, uint8_t byte, Gathered& out);
  void step_except(const Frame& frame, uint8_t byte, Gathered& out);
  bool treats_alike(const Frame& frame, uint8_t a, uint8_t b) const;
  uint32_t covers_of(const Frame& frame) const;
  uint32_t nearby_frame(uint32_t frame, uint32_t most);
  // When there is room for so many states.
  size_t bytes_with(size_t num_states) const;
  bool is_full(size_t num_stacks);

  const Syntax& syntax_;
  const size_t max_bytes_;
  const uint32_t num_classes_;
  std::array<uint8_t, 256> bytes_of_classes_ = {};  // one of each
  std::array<bool, 256> has_one_byte_ = {};         // by class

  std::atomic<bool> is_outgrown_ = false;
  std::atomic<size_t> bytes_ = 0;
  mutable std::mutex mutex_;               // of all below but what is read without it
  StableRows<std::atomic<StateId>> rows_;  // [states, num_classes_], 0: not known
  StableRows<Info> infos_{1};
  std::vector<Frame> frames_;
  std::vector<Closure> closures_;  // by frame
  std::vector<uint32_t> nearby_;   // by frame, kUnbounded: not known
  std::vector<uint32_t> marks_;    // by frame: the closure that has been there last
  std::vector<uint32_t> closure_frames_, state_frames_;
  std::vector<uint32_t> todo_;
  std::vector<uint64_t> sort_keys_;
  Gathered scratch_;
  IdTable frame_ids_, state_ids_;
  uint32_t mark_ = 0;
  size_t num_expanded_ = 0;   // frames, by all calls of expand()
  size_t guessed_bytes_ = 0;  // of bytes_, those that guesses took
  size_t growing_limit_;      // of bytes, for who asks now
  bool is_guess_ = false,
       is_refused_ = false;  // who asks now is a guess, and one that takes too much
  uint32_t num_states_ = 0;
};

}  // namespace nanovllm::grammar
