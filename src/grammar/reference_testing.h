// A slow recogniser of grammars for tests: it tries each way through the rules at each position.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "grammar/syntax.h"

namespace nanovllm::grammar {

class Reference {
 public:
  // `syntax` is finished.
  Reference(const Syntax& syntax, NodeId start) : syntax_(syntax), start_(start) {}

  struct Verdict {
    bool accepts = false;  // the text
    bool goes_on = false;  // some longer text
    bool operator==(const Verdict&) const = default;
  };
  Verdict judge(std::string_view text) {
    text_ = text;
    known_.clear();
    const Ends& found = ends(start_, 0, 0, 0);
    return {found.at.contains(text.size()), found.is_cut};
  }

 private:
  struct Ends {
    std::set<size_t> at;  // where a match ends
    bool is_cut = false;  // the text ends within a match
  };
  using Key = std::tuple<NodeId, size_t, uint32_t, uint32_t>;

  // Rounds of a repeat have their own keys: [min, max] that are left.
  const Ends& ends(NodeId id, size_t at, uint32_t min, uint32_t max) {
    const Node& node = syntax_.node(id);
    if (node.kind == Node::Kind::kRepeat && min == 0 && max == 0) {
      min = node.min;
      max = node.max;
    }
    const auto [found, is_new] = known_.try_emplace(Key(id, at, min, max));
    Ends& all = found->second;
    if (!is_new) return all;
    const auto then = [&](const Ends& first, NodeId second) {
      all.is_cut = all.is_cut || first.is_cut;
      for (const size_t end : first.at) add(all, ends(second, end, 0, 0));
    };
    switch (node.kind) {
      case Node::Kind::kNever:
        break;
      case Node::Kind::kEmpty:
        all.at.insert(at);
        break;
      case Node::Kind::kLiteral: {
        const std::string_view literal = syntax_.text(node), rest = text_.substr(at);
        if (rest.starts_with(literal)) {
          all.at.insert(at + literal.size());
        } else {
          all.is_cut = literal.starts_with(rest);
        }
        break;
      }
      case Node::Kind::kDfa:
        run(node, at, all);
        break;
      case Node::Kind::kExcept:
        run_except(node, at, all);
        break;
      case Node::Kind::kSequence:
        then(ends(node.first, at, 0, 0), node.second);
        break;
      case Node::Kind::kChoice:
        for (const NodeId part : syntax_.alternatives(node)) add(all, ends(part, at, 0, 0));
        break;
      case Node::Kind::kRepeat: {
        if (min == 0) all.at.insert(at);
        const Ends& first = ends(node.first, at, 0, 0);
        all.is_cut = all.is_cut || first.is_cut;
        const uint32_t left = max == kUnbounded ? max : max - 1;
        const std::set<size_t> rounds = first.at;
        for (const size_t end : rounds) {
          if (left == 0) {
            all.at.insert(end);
          } else {
            add(all, ends(id, end, min == 0 ? 0 : min - 1, left));
          }
        }
        break;
      }
      case Node::Kind::kRule:
        add(all, ends(syntax_.body(node.first), at, 0, 0));
        break;
    }
    return all;
  }

  static void add(Ends& all, const Ends& more) {
    all.at.insert(more.at.begin(), more.at.end());
    all.is_cut = all.is_cut || more.is_cut;
  }

  void run(const Node& node, size_t at, Ends& all) const {
    const ByteDfa& dfa = syntax_.dfa_of(node);
    uint16_t state = 0;
    uint32_t characters = 0;
    for (;; ++at) {
      if (dfa.ends(state) && characters >= dfa.min && characters <= dfa.max) all.at.insert(at);
      if (at == text_.size()) break;
      state = dfa.step(state, static_cast<uint8_t>(text_[at]));
      if (state == ByteDfa::kDead) return;
      if (state == ByteDfa::kAccept) {
        if (!dfa.is_counted || (characters >= dfa.min && characters <= dfa.max)) {
          all.at.insert(at + 1);
        }
        return;
      }
      if (dfa.is_counted && dfa.is_between[state] != 0) ++characters;
    }
    all.is_cut = !dfa.is_counted || can_end(dfa, state, characters);
  }

  // Whether a text of the right number of characters goes through the state; by trying, for small
  // automata.
  static bool can_end(const ByteDfa& dfa, uint16_t state, uint32_t characters) {
    std::set<std::pair<uint16_t, uint32_t>> seen = {{state, characters}}, todo = seen;
    while (!todo.empty()) {
      const auto [at, count] = *todo.begin();
      todo.erase(todo.begin());
      if (dfa.ends(at) && count >= dfa.min && count <= dfa.max) return true;
      for (uint32_t c = 0; c < dfa.num_classes; ++c) {
        const uint16_t next = dfa.next[at * dfa.num_classes + c];
        if (next == ByteDfa::kDead) continue;
        if (next == ByteDfa::kAccept) {
          if (count >= dfa.min && count <= dfa.max) return true;
          continue;
        }
        const uint32_t more = count + (dfa.is_between[next] != 0 ? 1 : 0);
        if (more > dfa.max || more > dfa.min + 50) continue;
        if (seen.insert({next, more}).second) todo.insert({next, more});
      }
    }
    return false;
  }

  void run_except(const Node& node, size_t at, Ends& all) const {
    uint16_t state = 0;
    const size_t begin = at;
    for (; at < text_.size(); ++at) {
      state = canonical_string().step(state, static_cast<uint8_t>(text_[at]));
      if (state == ByteDfa::kDead) return;
      if (state == ByteDfa::kAccept) {
        for (const std::string& name : syntax_.names_of(node)) {
          if (text_.substr(begin, at - begin) == name) return;
        }
        all.at.insert(at + 1);
        return;
      }
    }
    all.is_cut = true;
  }

  const Syntax& syntax_;
  const NodeId start_;
  std::string_view text_;
  std::map<Key, Ends> known_;
};

}  // namespace nanovllm::grammar
