#include "grammar/syntax.h"

#include <algorithm>
#include <optional>

#include "base/check.h"

namespace nanovllm::grammar {
namespace {

constexpr size_t kNodeBytes = 96;        // with its place in the table, about
constexpr size_t kMaxSteps = 2'000'000;  // some tenths of a microsecond each

// None: it can't be told from no bound.
std::optional<uint32_t> product(uint32_t a, uint32_t b) {
  if (a == 0 || b == 0) return 0;
  if (a == kUnbounded || b == kUnbounded) return kUnbounded;
  const uint64_t product = uint64_t{a} * b;
  return product < kUnbounded ? std::optional(static_cast<uint32_t>(product)) : std::nullopt;
}

template <typename T>
std::string bytes_of(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

}  // namespace

TooManyRules::TooManyRules()
    : Error(ErrorCode::kInvalidArgument,
            fmt::format("the grammar needs more than {} MiB of rules; make it smaller",
                        kMaxSyntaxBytes >> 20)) {}

size_t Syntax::Hash::operator()(const Node& node) const {
  uint64_t hash = static_cast<uint64_t>(node.kind) << 1 | (node.covers ? 1 : 0);
  for (const uint32_t field : {node.first, node.second, node.min, node.max}) {
    hash = (hash ^ field) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return hash;
}

Syntax::Syntax() {
  intern({.kind = Node::Kind::kNever});
  intern({.kind = Node::Kind::kEmpty});
}

bool Syntax::is_nullable(const Node& node) const {
  switch (node.kind) {
    case Node::Kind::kEmpty:
      return true;
    case Node::Kind::kSequence:
      return nodes_[node.first].is_nullable && nodes_[node.second].is_nullable;
    case Node::Kind::kChoice:
      return std::ranges::any_of(alternatives(node),
                                 [this](NodeId id) { return nodes_[id].is_nullable; });
    case Node::Kind::kRepeat:
      return node.min == 0 || nodes_[node.first].is_nullable;
    case Node::Kind::kDfa:
      return dfas_[node.first].ends(0) && dfas_[node.first].min == 0;
    case Node::Kind::kNever:
    case Node::Kind::kLiteral:
    case Node::Kind::kExcept:
    case Node::Kind::kRule:
      break;
  }
  return false;
}

void Syntax::grow(size_t bytes) {
  bytes_ += bytes;
  if (bytes_ > kMaxSyntaxBytes) throw TooManyRules();
}

bool Syntax::take_steps(size_t steps) {
  num_steps_ += steps;
  return num_steps_ <= kMaxSteps;
}

NodeId Syntax::intern(Node node) {
  node.is_nullable = is_nullable(node);
  const auto [found, is_new] = ids_.try_emplace(node, static_cast<NodeId>(nodes_.size()));
  if (is_new) {
    nodes_.push_back(node);
    grow(kNodeBytes);
  }
  return found->second;
}

NodeId Syntax::literal(std::string_view bytes) {
  if (bytes.empty()) return empty();
  const auto [found, is_new] =
      text_offsets_.try_emplace(std::string(bytes), static_cast<uint32_t>(texts_.size()));
  if (is_new) {
    texts_.append(bytes);
    grow(2 * bytes.size() + kNodeBytes);
  }
  return intern({.kind = Node::Kind::kLiteral,
                 .first = found->second,
                 .second = static_cast<uint32_t>(bytes.size())});
}

NodeId Syntax::characters(const CharRanges& set, Spelling spelling) {
  const auto& ranges = set.ranges();
  if (spelling != Spelling::kJson && ranges.size() == 1 && ranges[0].first == ranges[0].last &&
      (ranges[0].first < 0xD800 || ranges[0].first > 0xDFFF)) {
    std::string bytes;
    append_character(bytes, ranges[0].first, spelling);
    return literal(bytes);
  }
  std::string key = bytes_of(std::span(ranges)) + static_cast<char>(spelling);
  const auto known = classes_of_characters_.find(key);
  if (known != classes_of_characters_.end()) return known->second;
  const bool is_any_json =
      spelling == Spelling::kJson && ranges.size() == 1 && set.contains(CharRanges::all());
  const std::vector<ByteSequence> sequences =
      is_any_json ? std::vector<ByteSequence>() : spell(set, spelling);
  NodeId id = never();
  if (is_any_json || !sequences.empty()) {
    dfas_.push_back(is_any_json ? any_json_character() : make_byte_dfa(sequences));
    grow(dfas_.back().bytes());
    id = intern({.kind = Node::Kind::kDfa,
                 .covers = set.contains(plain_characters()),
                 .first = static_cast<uint32_t>(dfas_.size() - 1)});
  }
  classes_of_characters_.emplace(std::move(key), id);
  return id;
}

NodeId Syntax::dfa(ByteDfa dfa) {
  grow(dfa.bytes());
  dfas_.push_back(std::move(dfa));
  return intern({.kind = Node::Kind::kDfa, .first = static_cast<uint32_t>(dfas_.size() - 1)});
}

NodeId Syntax::except(Names names) {
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (const std::string& name : names) grow(name.size() + sizeof(std::string));
  const auto known = std::ranges::find(names_, names);
  const auto index = static_cast<uint32_t>(known - names_.begin());
  if (known == names_.end()) names_.push_back(std::move(names));
  return intern({.kind = Node::Kind::kExcept, .first = index});
}

NodeId Syntax::sequence(NodeId first, NodeId second) {
  if (first == never() || second == never()) return never();
  if (second == empty()) return first;
  std::vector<NodeId> heads;
  for (; nodes_[first].kind == Node::Kind::kSequence; first = nodes_[first].second) {
    heads.push_back(nodes_[first].first);
  }
  NodeId all = pair(first, second);
  for (size_t i = heads.size(); i-- > 0;) all = pair(heads[i], all);
  return all;
}

// `first` is no sequence.
NodeId Syntax::pair(NodeId first, NodeId second) {
  if (first == empty()) return second;
  if (second == empty()) return first;
  const Node a = nodes_[first];
  const Node b = nodes_[second];
  if (a.kind == Node::Kind::kLiteral) {
    const std::string before(text(a));
    if (b.kind == Node::Kind::kLiteral) return literal(before + std::string(text(b)));
    if (b.kind == Node::Kind::kSequence && nodes_[b.first].kind == Node::Kind::kLiteral) {
      return pair(literal(before + std::string(text(nodes_[b.first]))), b.second);
    }
  }
  return intern({.kind = Node::Kind::kSequence, .first = first, .second = second});
}

NodeId Syntax::sequence(std::span<const NodeId> parts) {
  // Literals in a row become one at once, not each with all behind it.
  std::vector<NodeId> joined;
  std::string text;
  const auto end_text = [&] {
    if (!text.empty()) joined.push_back(literal(text));
    text.clear();
  };
  for (const NodeId part : parts) {
    if (nodes_[part].kind == Node::Kind::kLiteral) {
      text += this->text(nodes_[part]);
      continue;
    }
    end_text();
    joined.push_back(part);
  }
  end_text();
  NodeId all = empty();
  for (size_t i = joined.size(); i-- > 0;) all = sequence(joined[i], all);
  return all;
}

NodeId Syntax::choice(const std::vector<NodeId>& alternatives) {
  std::vector<NodeId> all;
  for (const NodeId id : alternatives) {
    const Node node = nodes_[id];
    if (node.kind == Node::Kind::kChoice) {
      const auto inner = this->alternatives(node);
      all.insert(all.end(), inner.begin(), inner.end());
    } else if (node.kind != Node::Kind::kNever) {
      all.push_back(id);
    }
  }
  return choose(std::move(all));
}

NodeId Syntax::either(NodeId a, NodeId b) {
  if (a == never()) return b;
  return b == never() ? a : choose({a, b});
}

NodeId Syntax::choose(std::vector<NodeId> all) {
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  if (all.empty()) return never();
  if (all.size() == 1) return all[0];
  const auto [found, is_new] = child_offsets_.try_emplace(bytes_of(std::span<const NodeId>(all)),
                                                          static_cast<uint32_t>(children_.size()));
  if (is_new) {
    children_.insert(children_.end(), all.begin(), all.end());
    grow(2 * sizeof(NodeId) * all.size() + kNodeBytes);
  }
  const bool covers = std::ranges::any_of(all, [this](NodeId id) { return nodes_[id].covers; });
  return intern({.kind = Node::Kind::kChoice,
                 .covers = covers,
                 .first = found->second,
                 .second = static_cast<uint32_t>(all.size())});
}

NodeId Syntax::choice_of_texts(std::vector<std::string> texts) {
  std::ranges::sort(texts);
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return texts.empty() ? never() : trie(texts, 0);
}

// Of texts that agree in their first `depth` bytes.
NodeId Syntax::trie(std::span<const std::string> sorted, size_t depth) {
  if (sorted.size() == 1) return literal(std::string_view(sorted[0]).substr(depth));
  const std::string& first = sorted.front();
  const std::string& last = sorted.back();
  size_t shared = depth;
  while (shared < first.size() && shared < last.size() && first[shared] == last[shared]) ++shared;
  const NodeId prefix = literal(std::string_view(first).substr(depth, shared - depth));
  std::vector<NodeId> branches;
  size_t begin = 0;
  if (first.size() == shared) {
    branches.push_back(empty());
    begin = 1;
  }
  constexpr size_t kMaxTrieDepth = 4096;  // bytes; it recurses once a byte at most
  while (begin < sorted.size()) {
    size_t end = begin + 1;
    while (end < sorted.size() && sorted[end][shared] == sorted[begin][shared]) ++end;
    if (shared < kMaxTrieDepth) {
      branches.push_back(trie(sorted.subspan(begin, end - begin), shared));
    } else {
      for (size_t i = begin; i < end; ++i) {
        branches.push_back(literal(std::string_view(sorted[i]).substr(shared)));
      }
    }
    begin = end;
  }
  return sequence(prefix, choice(branches));
}

NodeId Syntax::repeat(NodeId body, uint32_t min, uint32_t max) {
  if (max == 0 || body == empty()) return empty();
  if (body == never()) return min == 0 ? empty() : never();
  if (min == 1 && max == 1) return body;
  const Node inner = nodes_[body];
  if (inner.kind == Node::Kind::kRepeat) {
    const bool leaves_no_gap =
        min == max || (inner.max == kUnbounded
                           ? min > 0 || inner.min <= 1
                           : (uint64_t{min} + 1) * inner.min <= uint64_t{min} * inner.max + 1);
    const auto least = product(inner.min, min), most = product(inner.max, max);
    if (leaves_no_gap && least && most) return repeat(inner.first, *least, *most);
  }
  return intern({.kind = Node::Kind::kRepeat, .first = body, .min = min, .max = max});
}

RuleId Syntax::new_rule(std::string name) {
  grow(name.size() + kNodeBytes);
  rules_.push_back({std::move(name)});
  return static_cast<RuleId>(rules_.size() - 1);
}

NodeId Syntax::rule(RuleId rule) { return intern({.kind = Node::Kind::kRule, .first = rule}); }

}  // namespace nanovllm::grammar
