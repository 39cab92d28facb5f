// What a grammar must be before an automaton runs it.
#include <algorithm>

#include "base/check.h"
#include "grammar/syntax.h"

namespace nanovllm::grammar {
namespace {

constexpr int kMaxNullableDepth = 1000;  // of parts that may all be empty, one in another

}  // namespace

// Each node is looked at again when a part of it turns out to have the property.
std::vector<uint8_t> Syntax::find(Property property) const {
  std::vector<std::vector<NodeId>> users(nodes_.size());
  std::vector<std::vector<NodeId>> callers(rules_.size());
  std::vector<uint8_t> holds(nodes_.size());
  std::vector<NodeId> found;
  const auto set = [&](NodeId id) {
    if (holds[id] != 0) return;
    holds[id] = 1;
    found.push_back(id);
  };
  for (NodeId id = 0; id < nodes_.size(); ++id) {
    const Node& node = nodes_[id];
    switch (node.kind) {
      case Node::Kind::kNever:
        break;
      case Node::Kind::kEmpty:
        set(id);
        break;
      case Node::Kind::kLiteral:
      case Node::Kind::kDfa:
      case Node::Kind::kExcept:
        if (property == Property::kSatisfiable || node.is_nullable) set(id);
        break;
      case Node::Kind::kSequence:
        users[node.first].push_back(id);
        users[node.second].push_back(id);
        break;
      case Node::Kind::kChoice:
        for (const NodeId child : alternatives(node)) users[child].push_back(id);
        break;
      case Node::Kind::kRepeat:
        users[node.first].push_back(id);
        if (node.min == 0) set(id);
        break;
      case Node::Kind::kRule:
        callers[node.first].push_back(id);
        break;
    }
  }
  for (RuleId rule = 0; rule < rules_.size(); ++rule) {
    auto& of_body = users[rules_[rule].body];
    of_body.insert(of_body.end(), callers[rule].begin(), callers[rule].end());
  }
  while (!found.empty()) {
    const NodeId part = found.back();
    found.pop_back();
    for (const NodeId user : users[part]) {
      const Node& node = nodes_[user];
      if (node.kind != Node::Kind::kSequence ||
          (holds[node.first] != 0 && holds[node.second] != 0)) {
        set(user);
      }
    }
  }
  return holds;
}

void Syntax::prune(const std::vector<uint8_t>& satisfiable) {
  for (NodeId id = 2; id < nodes_.size(); ++id) {
    Node& node = nodes_[id];
    if (satisfiable[id] == 0) {
      node = {.kind = Node::Kind::kNever};
    } else if (node.kind == Node::Kind::kRepeat && satisfiable[node.first] == 0) {
      node = {.kind = Node::Kind::kEmpty};
    } else if (node.kind == Node::Kind::kChoice) {
      NodeId* const begin = children_.data() + node.first;
      NodeId* const end = std::remove_if(begin, begin + node.second,
                                         [&](NodeId child) { return satisfiable[child] == 0; });
      node.second = static_cast<uint32_t>(end - begin);
    }
  }
}

// What it accepts but the empty text.
NodeId Syntax::without_empty(NodeId id, std::vector<uint8_t>& nullable, std::vector<NodeId>& memo,
                             int depth) {
  // What is new here was made by this function.
  if (id >= nullable.size() || nullable[id] == 0) return id;
  if (memo[id] != kUnbounded) return memo[id];
  if (depth > kMaxNullableDepth) {
    throw_error(ErrorCode::kInvalidArgument,
                "a repeated part is nested more than {} levels deep; make it simpler",
                kMaxNullableDepth);
  }
  const Node node = nodes_[id];
  NodeId result = never();
  switch (node.kind) {
    case Node::Kind::kNever:
    case Node::Kind::kEmpty:
    case Node::Kind::kLiteral:
    case Node::Kind::kExcept:
      break;
    case Node::Kind::kDfa:
      result = dfa(without_empty_text(dfas_[node.first]));
      break;
    case Node::Kind::kSequence: {
      const NodeId head = without_empty(node.first, nullable, memo, depth + 1);
      const NodeId tail = without_empty(node.second, nullable, memo, depth + 1);
      result = choice({sequence(head, node.second), tail});
      break;
    }
    case Node::Kind::kChoice: {
      const auto inner = alternatives(node);
      std::vector<NodeId> parts(inner.begin(), inner.end());
      for (NodeId& part : parts) part = without_empty(part, nullable, memo, depth + 1);
      result = choice(parts);
      break;
    }
    case Node::Kind::kRepeat:
      result = repeat(without_empty(node.first, nullable, memo, depth + 1), 1, node.max);
      break;
    case Node::Kind::kRule: {
      const RuleId copy = new_rule(rules_[node.first].name);
      memo[id] = rule(copy);
      define(copy, without_empty(rules_[node.first].body, nullable, memo, depth + 1));
      return memo[id];
    }
  }
  memo[id] = result;
  return result;
}

// With a body that may be empty, r{m,n} is r{0,n} of what the body is else: each round consumes
// something, and a count says how far it is.
void Syntax::make_repeats_consume() {
  std::vector<uint8_t> nullable = find(Property::kNullable);
  std::vector<NodeId> memo(nodes_.size(), kUnbounded);
  const size_t count = nodes_.size();
  for (NodeId id = 2; id < count; ++id) {
    if (nodes_[id].kind != Node::Kind::kRepeat || nullable[nodes_[id].first] == 0) continue;
    const NodeId body = without_empty(nodes_[id].first, nullable, memo, 0);
    nodes_[id] = body == never()
                     ? Node{.kind = Node::Kind::kEmpty}
                     : Node{.kind = Node::Kind::kRepeat, .first = body, .max = nodes_[id].max};
  }
}

void Syntax::refuse_left_recursion(NodeId start) const {
  const std::vector<uint8_t> nullable = find(Property::kNullable);
  std::vector<uint8_t> colour(nodes_.size());  // 1: being looked at, 2: done
  // Roots are all nodes that are reached; what begins a node is on its path.
  std::vector<std::pair<NodeId, size_t>> path;
  const auto part = [&](NodeId id, size_t i) -> NodeId {  // kUnbounded: there is none
    const Node& node = nodes_[id];
    switch (node.kind) {
      case Node::Kind::kSequence:
        if (i == 0) return node.first;
        return i == 1 && nullable[node.first] != 0 ? node.second : kUnbounded;
      case Node::Kind::kChoice:
        return i < node.second ? children_[node.first + i] : kUnbounded;
      case Node::Kind::kRepeat:
        return i == 0 ? node.first : kUnbounded;
      case Node::Kind::kRule:
        return i == 0 ? rules_[node.first].body : kUnbounded;
      case Node::Kind::kNever:
      case Node::Kind::kEmpty:
      case Node::Kind::kLiteral:
      case Node::Kind::kDfa:
      case Node::Kind::kExcept:
        break;
    }
    return kUnbounded;
  };
  const auto refuse = [&](NodeId again) {
    // The first rule of the cycle.
    size_t i = path.size();
    while (path[i - 1].first != again) --i;
    while (nodes_[path[i - 1].first].kind != Node::Kind::kRule) ++i;
    const Node& node = nodes_[path[i - 1].first];
    throw_error(ErrorCode::kInvalidArgument,
                "{} refers to itself before it has read anything, which is not supported; let it "
                "begin with something else",
                rules_[node.first].name);
  };
  const auto look = [&](NodeId root) {
    if (colour[root] != 0) return;
    colour[root] = 1;
    path.emplace_back(root, 0);
    while (!path.empty()) {
      const NodeId next = part(path.back().first, path.back().second++);
      if (next == kUnbounded) {
        colour[path.back().first] = 2;
        path.pop_back();
      } else if (colour[next] == 1) {
        refuse(next);
      } else if (colour[next] == 0) {
        colour[next] = 1;
        path.emplace_back(next, 0);
      }
    }
  };
  std::vector<uint8_t> reached(nodes_.size());
  std::vector<NodeId> todo = {start};
  const auto reach = [&](NodeId id) {
    if (reached[id] == 0) todo.push_back(id);
    reached[id] = 1;
  };
  reached[start] = 1;
  while (!todo.empty()) {
    const NodeId id = todo.back();
    todo.pop_back();
    look(id);
    if (nodes_[id].kind == Node::Kind::kSequence) reach(nodes_[id].second);
    for (size_t i = 0; part(id, i) != kUnbounded; ++i) reach(part(id, i));
  }
}

void Syntax::find_classes() {
  std::array<uint8_t, 256> singles = {};
  uint8_t last = 0;
  for (const Node& node : nodes_) {
    if (node.kind != Node::Kind::kLiteral) continue;
    for (const char c : text(node)) {
      auto& single = singles[static_cast<uint8_t>(c)];
      if (single == 0) single = last = static_cast<uint8_t>(std::min(last + 1, 255));
    }
  }
  classes_ = {};
  num_classes_ = refine(classes_, 1, singles);
  for (const ByteDfa& dfa : dfas_) num_classes_ = refine(classes_, num_classes_, dfa.classes);
  for (const Names& names : names_) {
    std::array<uint8_t, 256> of_names = {};
    uint8_t count = 0;
    for (const std::string& name : names) {
      for (const char c : name) {
        auto& single = of_names[static_cast<uint8_t>(c)];
        if (single == 0) single = count = static_cast<uint8_t>(std::min(count + 1, 255));
      }
    }
    num_classes_ = refine(classes_, num_classes_, of_names);
    num_classes_ = refine(classes_, num_classes_, canonical_string().classes);
  }
}

NodeId Syntax::finish(NodeId start) {
  const std::vector<uint8_t> satisfiable = find(Property::kSatisfiable);
  if (satisfiable[start] == 0) return never();
  prune(satisfiable);
  make_repeats_consume();
  refuse_left_recursion(start);
  find_classes();
  forget_tables();
  return start;
}

// Those that found equal parts while they were built.
void Syntax::forget_tables() {
  ids_ = {};
  text_offsets_ = {};
  child_offsets_ = {};
  classes_of_characters_ = {};
  nodes_.shrink_to_fit();
  texts_.shrink_to_fit();
  children_.shrink_to_fit();
  bytes_ = nodes_.size() * sizeof(Node) + texts_.size() + children_.size() * sizeof(NodeId) +
           rules_.capacity() * sizeof(Rule);
  for (const Rule& rule : rules_) bytes_ += rule.name.size();
  for (const ByteDfa& dfa : dfas_) bytes_ += dfa.bytes();
  for (const Names& names : names_) {
    for (const std::string& name : names) bytes_ += name.size() + sizeof(std::string);
  }
}

}  // namespace nanovllm::grammar
