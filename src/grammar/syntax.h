// The grammar that schemas, regular expressions and GBNF are compiled to: rules over literals,
// small automata, sequences, alternatives and repeats. Equal parts are one node.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/byte_dfa.h"
#include "nanovllm/error.h"

namespace nanovllm::grammar {

using NodeId = uint32_t;
using RuleId = uint32_t;

struct Node {
  enum class Kind : uint8_t {
    kNever,     // accepts nothing
    kEmpty,     // accepts the empty text
    kLiteral,   // first: offset of its text, second: bytes, at least 1
    kDfa,       // first: index of a ByteDfa
    kExcept,    // first: index of a list of names; a JSON string's rest that is none of them
    kSequence,  // first, then second
    kChoice,    // first: offset of its alternatives, second: how many
    kRepeat,    // first, min to max times
    kRule,      // first: the rule
  };
  Kind kind;
  // Any plain character is accepted, each as a whole: what repeats it takes any run of them.
  bool covers = false;
  // The empty text is accepted. Of a rule it is not known before finish().
  bool is_nullable = false;
  uint32_t first = 0, second = 0;
  uint32_t min = 0, max = 0;
  bool operator==(const Node&) const = default;
};

// Names that a string must not have: spelled canonically, sorted, without the quotes.
using Names = std::vector<std::string>;

inline constexpr size_t kMaxSyntaxBytes = size_t{32} << 20;  // of all nodes

// What Syntax throws when its nodes outgrow their bound.
class TooManyRules : public Error {
 public:
  TooManyRules();
};

// Builds nodes; finish() once, then it is read only.
class Syntax {
 public:
  Syntax();

  NodeId never() const { return 0; }
  NodeId empty() const { return 1; }
  NodeId literal(std::string_view bytes);
  NodeId characters(const CharRanges& set, Spelling spelling);
  NodeId dfa(ByteDfa dfa);
  NodeId except(Names names);
  NodeId sequence(NodeId first, NodeId second);
  NodeId sequence(std::span<const NodeId> parts);
  NodeId sequence(std::initializer_list<NodeId> parts) {
    return sequence(std::span(parts.begin(), parts.size()));
  }
  NodeId choice(const std::vector<NodeId>& alternatives);
  // The same of two that stay what they are: a chain of these shares its parts.
  NodeId either(NodeId a, NodeId b);
  // One of the texts, which share their beginnings.
  NodeId choice_of_texts(std::vector<std::string> texts);
  NodeId optional(NodeId node) { return choice({node, empty()}); }
  NodeId repeat(NodeId body, uint32_t min, uint32_t max);

  // Counts work that need not make nodes, of all that is compiled into this. False: it is more than
  // one grammar may take.
  bool take_steps(size_t steps);

  // `name` is what errors call it.
  RuleId new_rule(std::string name);
  void define(RuleId rule, NodeId body) { rules_[rule].body = body; }
  NodeId rule(RuleId rule);

  // Takes out what can't be satisfied, lets no repeat's body be empty, and refuses left recursion
  // by its rule's name. Returns the start; never() when nothing satisfies it.
  NodeId finish(NodeId start);

  const Node& node(NodeId id) const { return nodes_[id]; }
  size_t num_nodes() const { return nodes_.size(); }
  std::string_view text(const Node& literal) const {
    return std::string_view(texts_).substr(literal.first, literal.second);
  }
  const ByteDfa& dfa_of(const Node& node) const { return dfas_[node.first]; }
  const Names& names_of(const Node& node) const { return names_[node.first]; }
  std::span<const NodeId> alternatives(const Node& choice) const {
    return std::span(children_).subspan(choice.first, choice.second);
  }
  NodeId body(RuleId rule) const { return rules_[rule].body; }
  // Bytes that every transition treats alike have one class.
  const std::array<uint8_t, 256>& classes() const { return classes_; }
  uint32_t num_classes() const { return num_classes_; }
  size_t bytes() const { return bytes_; }  // of memory, about

 private:
  struct Rule {
    std::string name;
    NodeId body = 0;
  };
  // Whether a text satisfies the node by itself; the least fixed point over the rules.
  enum class Property { kSatisfiable, kNullable };

  NodeId intern(Node node);
  bool is_nullable(const Node& node) const;
  void grow(size_t bytes);
  NodeId choose(std::vector<NodeId> alternatives);
  NodeId pair(NodeId first, NodeId second);
  NodeId trie(std::span<const std::string> sorted, size_t depth);
  std::vector<uint8_t> find(Property property) const;
  void prune(const std::vector<uint8_t>& satisfiable);
  NodeId without_empty(NodeId id, std::vector<uint8_t>& nullable, std::vector<NodeId>& memo,
                       int depth);
  void make_repeats_consume();
  void refuse_left_recursion(NodeId start) const;
  void find_classes();
  void forget_tables();

  struct Hash {
    size_t operator()(const Node& node) const;
  };
  std::vector<Node> nodes_;
  std::unordered_map<Node, NodeId, Hash> ids_;
  std::unordered_map<std::string, uint32_t> text_offsets_, child_offsets_;
  std::unordered_map<std::string, NodeId> classes_of_characters_;
  std::string texts_;
  std::vector<NodeId> children_;
  std::vector<ByteDfa> dfas_;
  std::vector<Names> names_;
  std::vector<Rule> rules_;
  std::array<uint8_t, 256> classes_ = {};
  uint32_t num_classes_ = 1;
  size_t bytes_ = 0;
  size_t num_steps_ = 0;
};

}  // namespace nanovllm::grammar
