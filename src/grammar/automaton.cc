#include "grammar/automaton.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace nanovllm::grammar {
namespace {

constexpr size_t kFewStacks = 8;
constexpr size_t kMaxStacks = 1 << 14;    // of one state
constexpr size_t kMaxGathered = 1 << 18;  // before equal ones are one
constexpr size_t kMaxExpanded = 1 << 18;  // frames that one transition looks behind
constexpr size_t kShareOfGuesses = 4;     // of memory

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 32;
}

uint32_t less_one(uint32_t count) { return count == 0 || count == kUnbounded ? count : count - 1; }

}  // namespace

void IdTable::add(uint64_t hash, uint32_t id) {
  const auto put = [this](Slot slot) {
    const size_t mask = slots_.size() - 1;
    size_t i = slot.hash & mask;
    while (slots_[i].id != kUnbounded) i = (i + 1) & mask;
    slots_[i] = slot;
  };
  if (2 * (size_ + 1) > slots_.size()) {
    std::vector<Slot> old = std::move(slots_);
    slots_.assign(std::max<size_t>(4, 2 * old.size()), {0, kUnbounded});
    for (const Slot slot : old) {
      if (slot.id != kUnbounded) put(slot);
    }
  }
  put({static_cast<uint32_t>(hash), id});
  ++size_;
}

Automaton::Automaton(const Syntax& syntax, NodeId start, size_t max_bytes)
    : syntax_(syntax),
      max_bytes_(max_bytes),
      num_classes_(syntax.num_classes()),
      rows_(num_classes_),
      growing_limit_(max_bytes) {
  std::array<int, 256> sizes = {};
  for (int byte = 255; byte >= 0; --byte) {
    const uint8_t byte_class = syntax.classes()[byte];
    bytes_of_classes_[byte_class] = static_cast<uint8_t>(byte);
    has_one_byte_[byte_class] = ++sizes[byte_class] == 1;
  }
  const std::lock_guard lock(mutex_);
  frames_.push_back({syntax.empty(), 0, 0, 0, 0});  // the end
  closures_.emplace_back();
  nearby_.push_back(0);
  marks_.push_back(0);
  // Nothing, dead and outgrown lead to themselves.
  num_states_ = kStart;
  rows_.grow(kStart);
  infos_.grow(kStart);
  for (StateId state = 0; state < kStart; ++state) {
    for (uint32_t c = 0; c < num_classes_; ++c) {
      rows_[state][c].store(state, std::memory_order_relaxed);
    }
    infos_[state]->nearby = state;
  }
  Gathered first;
  add(intern(begin(start, 0)), first);
  const StateId found = intern(first);
  bytes_ = bytes_with(num_states_);
  if (found == kStart) return;
  // There is a start, which leads nowhere.
  if (found == kOutgrown) outgrow();
  num_states_ = kStart + 1;
  rows_.grow(num_states_);
  infos_.grow(num_states_);
  bytes_ = bytes_with(num_states_);
}

// A vector that grows doubles.
size_t Automaton::bytes_with(size_t num_states) const {
  constexpr size_t kFrameBytes = sizeof(Frame) + sizeof(Closure) + 2 * sizeof(uint32_t);
  return 2 * frames_.size() * kFrameBytes +
         2 * (closure_frames_.size() + state_frames_.size()) * sizeof(uint32_t) +
         rows_.bytes_with(num_states) + infos_.bytes_with(num_states) + frame_ids_.bytes() +
         state_ids_.bytes();
}

// Whether there is no room for one more state of so many stacks.
bool Automaton::is_full(size_t num_stacks) {
  constexpr size_t kStateBytes = 64;  // beside its row and its stacks
  const size_t more = 2 * num_stacks * sizeof(uint32_t) + kStateBytes;
  if (bytes_with(num_states_ + 1) + more > growing_limit_) {
    if (is_guess_) {
      is_refused_ = true;
    } else {
      outgrow();
    }
  }
  return is_refused_ || is_outgrown();
}

void Automaton::begin_growing(bool is_guess) {
  is_guess_ = is_guess;
  is_refused_ = false;
  const size_t most_of_guesses = max_bytes_ / kShareOfGuesses;
  growing_limit_ = is_guess ? bytes_ + most_of_guesses - std::min(most_of_guesses, guessed_bytes_)
                            : max_bytes_ + guessed_bytes_;
}

void Automaton::end_growing() {
  const size_t bytes = bytes_with(num_states_);
  if (is_guess_) guessed_bytes_ += bytes - bytes_;
  bytes_ = bytes;
}

size_t Automaton::num_states() const {
  const std::lock_guard lock(mutex_);
  return num_states_ - kStart;
}

Automaton::Frame Automaton::begin(NodeId id, uint32_t parent) const {
  const Node& node = syntax_.node(id);
  Frame frame{id, 0, 0, 0, parent};
  if (node.kind == Node::Kind::kRepeat) {
    frame.low = node.min;
    frame.high = node.max;
  } else if (node.kind == Node::Kind::kExcept) {
    frame.high = static_cast<uint32_t>(syntax_.names_of(node).size());
  } else if (node.kind == Node::Kind::kDfa && syntax_.dfa_of(node).is_counted) {
    frame.low = syntax_.dfa_of(node).min;
    frame.high = syntax_.dfa_of(node).max;
  }
  return frame;
}

uint32_t Automaton::intern(const Frame& frame) {
  uint64_t hash = mixed(frame.node, frame.position);
  hash = mixed(mixed(hash, uint64_t{frame.low} << 32 | frame.high), frame.parent);
  const uint32_t known = frame_ids_.find(hash, [&](uint32_t id) { return frames_[id] == frame; });
  if (known != kUnbounded) return known;
  const auto id = static_cast<uint32_t>(frames_.size());
  frames_.push_back(frame);
  closures_.emplace_back();
  nearby_.push_back(kUnbounded);
  marks_.push_back(0);
  frame_ids_.add(hash, id);
  return id;
}

// Of a literal; -1: it is none.
int Automaton::next_literal_byte(uint32_t frame) const {
  const Node& node = syntax_.node(frames_[frame].node);
  if (node.kind != Node::Kind::kLiteral) return -1;
  return static_cast<uint8_t>(syntax_.text(node)[frames_[frame].position]);
}

// Literals stand behind all others, by their next bytes: where there are many, few of them are
// looked at for a byte.
void Automaton::sort(std::vector<uint32_t>& frames) {
  sort_keys_.clear();
  for (const uint32_t frame : frames) {
    sort_keys_.push_back(static_cast<uint64_t>(next_literal_byte(frame) + 1) << 32 | frame);
  }
  std::ranges::sort(sort_keys_);
  sort_keys_.erase(std::unique(sort_keys_.begin(), sort_keys_.end()), sort_keys_.end());
  frames.assign(sort_keys_.begin(), sort_keys_.end());  // the lower halves
}

StateId Automaton::intern(Gathered& gathered) {
  std::vector<uint32_t>& set = gathered.frames;
  sort(set);
  const bool is_cut = gathered.is_cut || set.size() > kMaxStacks;
  if (is_cut || is_refused_ || is_outgrown()) return kOutgrown;
  if (set.empty() && !gathered.is_accepting) return kDead;
  uint64_t hash = gathered.is_accepting ? 1 : 0;
  for (const uint32_t frame : set) hash = mixed(hash, frame);
  const StateId known = state_ids_.find(hash, [&](StateId id) {
    const Info& info = *infos_[id];
    return info.is_accepting == gathered.is_accepting && info.count == set.size() &&
           std::equal(set.begin(), set.end(), state_frames_.begin() + info.offset);
  });
  if (known != kUnbounded) {
    // Equal stacks, equal texts: whichever way told of more, it holds for both.
    auto& covers = infos_[known]->covers;
    if (gathered.covers > covers.load(std::memory_order_relaxed)) covers = gathered.covers;
    return known;
  }
  if (is_full(set.size())) return kOutgrown;
  const StateId id = num_states_++;
  rows_.grow(num_states_);
  infos_.grow(num_states_);
  Info& info = *infos_[id];
  info.offset = static_cast<uint32_t>(state_frames_.size());
  info.count = static_cast<uint32_t>(set.size());
  info.covers = gathered.covers;
  info.is_accepting = gathered.is_accepting;
  state_frames_.insert(state_frames_.end(), set.begin(), set.end());
  state_ids_.add(hash, id);
  return id;
}

Automaton::Closure Automaton::closure(uint32_t frame) {
  if (closures_[frame].count == kUnbounded) {
    Closure found;
    found.offset = static_cast<uint32_t>(closure_frames_.size());
    found.count = 0;
    expand(frame, found);
    found.count = static_cast<uint32_t>(closure_frames_.size()) - found.offset;
    if (is_refused_) return found;  // it is not whole
    closures_[frame] = found;
  }
  return closures_[frame];
}

void Automaton::expand(uint32_t root, Closure& found) {
  ++mark_;
  const auto visit = [this](uint32_t frame) {
    if (marks_[frame] == mark_) return;
    marks_[frame] = mark_;
    todo_.push_back(frame);
  };
  const auto enter = [&](NodeId id, uint32_t parent) {
    visit(id == syntax_.empty() ? parent : intern(begin(id, parent)));
  };
  todo_.clear();
  visit(root);
  while (!todo_.empty()) {
    const uint32_t id = todo_.back();
    todo_.pop_back();
    ++num_expanded_;
    if (id == 0) {
      found.is_accepting = true;
      continue;
    }
    const Frame frame = frames_[id];
    const Node& node = syntax_.node(frame.node);
    switch (node.kind) {
      case Node::Kind::kNever:
        break;
      case Node::Kind::kEmpty:
        visit(frame.parent);
        break;
      case Node::Kind::kDfa:
        if (frame.low == 0 && syntax_.dfa_of(node).ends(frame.position)) visit(frame.parent);
        [[fallthrough]];
      case Node::Kind::kLiteral:
      case Node::Kind::kExcept:
        closure_frames_.push_back(id);
        found.covers = std::max(found.covers, covers_of(frame));
        break;
      case Node::Kind::kSequence:
        enter(node.first, intern(begin(node.second, frame.parent)));
        break;
      case Node::Kind::kChoice:
        for (const NodeId part : syntax_.alternatives(node)) enter(part, frame.parent);
        break;
      case Node::Kind::kRepeat: {
        if (frame.low == 0) visit(frame.parent);
        if (frame.high == 0) break;
        if (syntax_.node(node.first).covers) found.covers = std::max(found.covers, frame.high);
        const uint32_t high = less_one(frame.high);
        enter(node.first,
              high == 0 ? frame.parent
                        : intern(Frame{frame.node, 0, less_one(frame.low), high, frame.parent}));
        break;
      }
      case Node::Kind::kRule:
        enter(syntax_.body(node.first), frame.parent);
        break;
    }
    if (closure_frames_.size() - found.offset > kMaxStacks || is_full(0)) break;
  }
}

uint32_t Automaton::covers_of(const Frame& frame) const {
  const Node& node = syntax_.node(frame.node);
  if (node.kind == Node::Kind::kExcept) return (frame.position & 0xFFFF) == 0 ? kUnbounded : 0;
  if (node.kind != Node::Kind::kDfa) return 0;
  const ByteDfa& dfa = syntax_.dfa_of(node);
  if (dfa.covers.empty() || dfa.covers[frame.position] == 0) return 0;
  if (!dfa.is_counted || (frame.low == 0 && frame.high == kUnbounded)) return kUnbounded;
  // As many as leave room for an end.
  return frame.low > 0 || frame.high < dfa.most_needed ? 0 : frame.high - dfa.most_needed;
}

void Automaton::add(uint32_t frame, Gathered& out) {
  const Closure found = closure(frame);
  const auto begin = closure_frames_.begin() + found.offset;
  out.frames.insert(out.frames.end(), begin, begin + found.count);
  out.covers = std::max(out.covers, found.covers);
  out.is_accepting = out.is_accepting || found.is_accepting;
  out.is_cut = out.is_cut || found.count > kMaxStacks;
}

void Automaton::add_terminal(const Frame& frame, Gathered& out) {
  out.frames.push_back(intern(frame));
  out.covers = std::max(out.covers, covers_of(frame));
}

void Automaton::step(const Frame& frame, uint8_t byte, Gathered& out) {
  const Node& node = syntax_.node(frame.node);
  if (node.kind == Node::Kind::kDfa) return step_dfa(frame, byte, out);
  if (node.kind == Node::Kind::kExcept) return step_except(frame, byte, out);
  const std::string_view text = syntax_.text(node);
  if (static_cast<uint8_t>(text[frame.position]) != byte) return;
  Frame rest = frame;
  ++rest.position;
  if (rest.position == text.size()) {
    add(frame.parent, out);
  } else {
    add_terminal(rest, out);
  }
}

void Automaton::step_dfa(const Frame& frame, uint8_t byte, Gathered& out) {
  const ByteDfa& dfa = syntax_.dfa_of(syntax_.node(frame.node));
  const uint16_t next = dfa.step(static_cast<uint16_t>(frame.position), byte);
  if (next == ByteDfa::kDead) return;
  if (next == ByteDfa::kAccept) {
    if (!dfa.is_counted || frame.low == 0) add(frame.parent, out);
    return;
  }
  Frame rest = frame;
  rest.position = next;
  if (dfa.is_counted) {
    if (dfa.is_between[next] != 0) {
      if (rest.high == 0) return;
      rest.low = less_one(rest.low);
      rest.high = less_one(rest.high);
    }
    // Within a character it counts among those that follow.
    const uint32_t needed = dfa.shortest[next * (size_t{dfa.min} + 1) + rest.low];
    if (needed == kUnbounded || needed > rest.high) return;
  }
  if (rest.low == 0 && dfa.ends(next)) add(frame.parent, out);
  add_terminal(rest, out);
}

void Automaton::step_except(const Frame& frame, uint8_t byte, Gathered& out) {
  const Names& names = syntax_.names_of(syntax_.node(frame.node));
  const uint32_t read = frame.position >> 16;
  const uint16_t next =
      canonical_string().step(static_cast<uint16_t>(frame.position & 0xFFFF), byte);
  if (next == ByteDfa::kDead) return;
  const auto begin = names.begin() + frame.low, end = names.begin() + frame.high;
  if (next == ByteDfa::kAccept) {
    if (begin == end || begin->size() != read) add(frame.parent, out);
    return;
  }
  const auto byte_at = [read](const std::string& name) {
    return name.size() == read ? -1 : static_cast<int>(static_cast<uint8_t>(name[read]));
  };
  const auto same_begin = std::partition_point(
      begin, end, [&](const std::string& name) { return byte_at(name) < byte; });
  const auto same_end = std::partition_point(
      same_begin, end, [&](const std::string& name) { return byte_at(name) == byte; });
  Frame rest = frame;
  rest.position = next;
  rest.low = rest.high = 0;
  if (same_begin != same_end) {
    rest.position |= (read + 1) << 16;
    rest.low = static_cast<uint32_t>(same_begin - names.begin());
    rest.high = static_cast<uint32_t>(same_end - names.begin());
  }
  add_terminal(rest, out);
}

StateId Automaton::find_next(StateId state, uint8_t byte_class, size_t& work, bool is_guess) {
  const std::lock_guard lock(mutex_);
  auto& entry = rows_[state][byte_class];
  const StateId known = entry.load(std::memory_order_relaxed);
  if (known != 0) return known;
  if (is_outgrown()) return kOutgrown;
  begin_growing(is_guess);
  scratch_.frames.clear();
  scratch_.covers = 0;
  scratch_.is_accepting = false;
  scratch_.is_cut = false;
  const Info& info = *infos_[state];
  const auto stacks = [&] { return std::span(state_frames_).subspan(info.offset, info.count); };
  const uint8_t byte = bytes_of_classes_[byte_class];
  const auto next_byte = [this](uint32_t frame) { return next_literal_byte(frame); };
  const auto end = stacks().end();
  const auto first_of = [&](int literal_byte) {
    return std::ranges::lower_bound(stacks().begin(), end, literal_byte, {}, next_byte);
  };
  const auto literals = first_of(0);
  const size_t num_before = num_expanded_;
  const auto take = [&](std::span<const uint32_t> some) {
    for (const uint32_t id : some) {
      const Frame frame = frames_[id];
      step(frame, byte, scratch_);
      ++work;
      scratch_.is_cut = scratch_.is_cut || scratch_.frames.size() > kMaxGathered ||
                        num_expanded_ - num_before > kMaxExpanded;
      if (scratch_.is_cut) return;
    }
  };
  take({stacks().begin(), literals});
  take({first_of(byte), first_of(byte + 1)});
  work += num_expanded_ - num_before;
  const StateId found = intern(scratch_);
  end_growing();
  if (is_refused_) return kOutgrown;
  entry.store(found, std::memory_order_release);
  // Where few stacks say so at once, other bytes lead there too.
  if (info.count > kFewStacks) return found;
  for (uint32_t c = 0; c < num_classes_; ++c) {
    const auto is_alike = [&](uint32_t frame) {
      return treats_alike(frames_[frame], byte, bytes_of_classes_[c]);
    };
    if (std::ranges::all_of(stacks(), is_alike)) {
      rows_[state][c].store(found, std::memory_order_release);
    }
  }
  return found;
}

int Automaton::forced_byte(StateId state) {
  auto& entry = infos_[state]->forced_byte;
  const int16_t known = entry.load(std::memory_order_relaxed);
  if (known != kUnknownByte) return known;
  int16_t only = kNoByte;
  size_t work = 0;
  for (uint32_t c = 0; c < num_classes_ && !is_accepting(state); ++c) {
    const StateId next = next_of_class(state, static_cast<uint8_t>(c), work, true);
    if (next == kOutgrown) return kNoByte;
    if (next == kDead) continue;
    const bool is_second = only != kNoByte;
    only = is_second || !has_one_byte_[c] ? kNoByte : bytes_of_classes_[c];
    if (only == kNoByte) break;
  }
  entry.store(only, std::memory_order_relaxed);
  return only;
}

// False when that is not plain.
bool Automaton::treats_alike(const Frame& frame, uint8_t a, uint8_t b) const {
  const Node& node = syntax_.node(frame.node);
  if (node.kind == Node::Kind::kDfa) {
    const ByteDfa& dfa = syntax_.dfa_of(node);
    return dfa.classes[a] == dfa.classes[b];
  }
  if (node.kind != Node::Kind::kLiteral) return a == b;
  const auto next = static_cast<uint8_t>(syntax_.text(node)[frame.position]);
  return (a == next) == (b == next);
}

// The same stacks, but that counts are without end where so few bytes do not reach theirs.
uint32_t Automaton::nearby_frame(uint32_t root, uint32_t most) {
  std::vector<uint32_t> path;
  for (uint32_t id = root; nearby_[id] == kUnbounded; id = frames_[id].parent) path.push_back(id);
  for (size_t i = path.size(); i-- > 0;) {
    Frame frame = frames_[path[i]];
    const Node& node = syntax_.node(frame.node);
    frame.parent = nearby_[frame.parent];
    // What `most` rounds or characters do not use up does not end.
    if (node.kind == Node::Kind::kRepeat) {
      if (frame.low > most) frame.low = kUnbounded;
      if (frame.high > most) frame.high = kUnbounded;
    } else if (node.kind == Node::Kind::kDfa && frame.low == 0) {
      const uint32_t needed = syntax_.dfa_of(node).most_needed;
      if (frame.high > most && frame.high - most > needed) frame.high = kUnbounded;
    }
    const uint32_t found = intern(frame);
    nearby_[path[i]] = found;
  }
  return nearby_[root];
}

StateId Automaton::nearby(StateId state, uint32_t most, bool is_guess) {
  auto& entry = infos_[state]->nearby;
  const StateId known = entry.load(std::memory_order_acquire);
  if (known != 0) return known;
  const std::lock_guard lock(mutex_);
  begin_growing(is_guess);
  const Info& info = *infos_[state];
  Gathered near;
  near.is_accepting = info.is_accepting;
  near.covers = std::min(info.covers.load(), info.covers == kUnbounded ? kUnbounded : most + 1);
  bool is_same = true;
  for (uint32_t i = 0; i < info.count; ++i) {
    const uint32_t frame = state_frames_[info.offset + i];
    near.frames.push_back(nearby_frame(frame, most));
    is_same = is_same && near.frames.back() == frame;
  }
  StateId found = is_same ? state : intern(near);
  if (found == kOutgrown) found = state;
  end_growing();
  if (is_refused_) return state;
  entry.store(found, std::memory_order_release);
  return found;
}

}  // namespace nanovllm::grammar
