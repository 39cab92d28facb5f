// What all a JSON Schema's parts say of one value at once, as rules.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/json_numbers.h"
#include "grammar/json_schema.h"
#include "grammar/schema_document.h"
#include "grammar/string_dfa.h"
#include "grammar/syntax.h"

namespace nanovllm::grammar {

// Of a number.
Decimal decimal_of(const Json& number);

class SchemaCompiler {
 public:
  SchemaCompiler(const SchemaDocument& document, const JsonSchemaOptions& options, Syntax& syntax,
                 std::vector<std::string>& notes, std::vector<std::string> excluded = {});

  NodeId compile();
  NodeId compile_members(const MemberStyle& style);

 private:
  // A schema of which some keywords are done with.
  struct Term {
    const Json* schema;
    uint8_t done = 0;
    bool operator==(const Term&) const = default;
    bool operator<(const Term& other) const {
      return schema != other.schema ? std::less<>()(schema, other.schema) : done < other.done;
    }
  };
  static constexpr uint8_t kAnyOf = 1, kOneOf = 2, kParts = 4;
  // All of them hold; none: anything does.
  using Terms = std::vector<Term>;
  // Why there is no such value: no `what` fits these keywords of these schemas.
  struct Conflict {
    const char* what = "value";
    std::vector<std::pair<const Json*, const char*>> parts;  // null: the whole schema
    std::string required;                                    // the property that it is the value of
    bool is_last_branch = false;                             // of several that have such reasons
  };
  // What is known of one set of terms.
  struct Known {
    NodeId node = kUnbounded;  // not known yet
    std::optional<RuleId> rule;
    Terms terms;
    Conflict conflict;  // where the node is never()
  };
  enum Type : uint8_t {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kNumber = 8,
    kString = 16,
    kArray = 32,
    kObject = 64
  };
  static constexpr uint8_t kAllTypes = 127;

  NodeId value(const Terms& terms);
  void define_waiting();
  void count_steps(const Json& schema, size_t steps);
  void count_merge(const Terms& terms);
  NodeId value_of(const Json& schema) { return value(Terms{Term{&schema}}); }
  Term named(Term term);
  bool is_long(NodeId node) const;
  NodeId known_value(Known& known);
  RuleId rule_of(Known& known);
  // Never(), of what has one of the keywords.
  NodeId none(const Terms& flat, const char* what, std::initializer_list<const char*> keywords);
  NodeId no_string(const Terms& flat) {
    return none(flat, "string", {"minLength", "maxLength", "pattern", "format"});
  }
  NodeId satisfied(NodeId start) const;
  NodeId build(const Terms& terms);
  void refuse_cycles(const Json& schema, int depth);
  bool flatten(Term term, Terms& flat);
  std::vector<Terms> branches(const Terms& flat);
  std::vector<Terms> branches(const Terms& flat, size_t index, uint8_t which);
  uint8_t types(const Terms& flat) const;
  uint8_t type_of_name(const Json& schema, const Json& name) const;
  void refuse_unsupported(const Json& schema, uint8_t types) const;

  NodeId typed(const Terms& flat, uint8_t types);

  // schema_overlap.cc
  // What tells a branch of oneOf from others.
  struct Branch {
    uint8_t types = 0;
    std::optional<std::set<std::string>> values;        // that are listed
    std::map<std::string, std::set<std::string>> tags;  // of members that are required
  };
  void note_overlap(const Json& schema, const Json& branches);
  Branch branch_of(const Json& schema);
  static bool are_apart(const Branch& a, const Branch& b);
  std::optional<std::set<std::string>> keys_of_values(const Terms& flat);

  // schema_lists.cc
  using Values = std::vector<const Json*>;
  struct Divisor {
    const Json* owner;
    Decimal value;
  };
  struct Limits {
    NumberBounds bounds;
    std::vector<Divisor> divisors;
    LengthBounds length;
    std::vector<const StringLanguage*> languages;
  };
  static uint8_t type_of_value(const Json& value);
  const std::string& key_of(const Json& value);  // that equal ones share
  std::optional<Values> all_listed(const Terms& flat);
  Limits limits_of(const Terms& flat, uint8_t types);
  bool allows(const Limits& limits, const Json& value) const;
  // Those that all else allows; none: nothing is listed.
  std::optional<Values> listed_values(const Terms& flat, uint8_t types);
  std::optional<NodeId> listed(const Terms& flat, uint8_t types);
  NodeId constant(const Json& value);
  NodeId list_or_object(const Json& value);

  // schema_values.cc
  static constexpr const char* kTooManyDigits = "is too large a number to be enforced";
  // What a string must match, as a regular expression that is searched for or is to match it whole.
  struct Text {
    std::string regex;
    bool is_search;
    std::string where;
  };
  NodeId number(const Terms& flat, bool is_integer);
  NumberBounds bounds_of(const Terms& flat) const;
  std::vector<Divisor> divisors_of(const Terms& flat) const;  // different ones
  // `divisor` has been checked.
  NodeId multiples(const Json& schema, const Decimal& divisor, NumberBounds bounds,
                   bool is_integer);
  NodeId string(const Terms& flat);
  // All that hold of a string.
  struct StringBounds {
    LengthBounds length;
    std::vector<Text> texts;
  };
  StringBounds string_bounds(const Terms& flat);
  static std::string key_of(std::string_view spelling, LengthBounds length,
                            const std::vector<Text>& texts);
  NodeId array(const Terms& flat);
  Terms element(const Terms& flat, size_t index) const;

  // schema_objects.cc
  struct Pattern {
    const Json* owner;
    const StringLanguage* language;
    const Json* schema;
  };
  struct ObjectParts {
    const Json* owner = nullptr;  // whom errors name
    std::vector<std::string> names;
    std::vector<Terms> values;  // of names
    std::vector<uint8_t> is_required;
    std::vector<Pattern> patterns;
    std::vector<const StringLanguage*> key_languages;  // of propertyNames
    std::vector<std::string> listed_keys;              // there
    uint32_t min = 0, max = kUnbounded;
    std::vector<NodeId> further;  // members that have no names here: key, colon, value
  };
  NodeId object(const Terms& flat);
  ObjectParts parts_of(const Terms& flat);
  void add_key_languages(const Json& schema, ObjectParts& parts);
  // `properties` are those of each term by name.
  using Properties = std::unordered_map<std::string_view, const Json*>;
  Terms named_value(const Terms& flat, const ObjectParts& parts,
                    const std::vector<Properties>& properties, const std::string& name) const;
  Terms further_value(const Terms& flat, const ObjectParts& parts, uint32_t patterns) const;
  std::vector<NodeId> further_members(const Terms& flat, ObjectParts& parts);
  bool name_few(const ByteDfa& keys, const Terms& value, ObjectParts& parts);
  struct NamedMembers {
    std::vector<NodeId> nodes;
    std::vector<uint8_t> is_required;
  };
  // Null: as JSON has it.
  std::optional<NamedMembers> named_members(const Terms& flat, const ObjectParts& parts,
                                            const MemberStyle* style);
  NodeId members(const Terms& flat, const ObjectParts& parts, const MemberStyle* style);
  bool is_closed(const Terms& flat) const;

  // schema_members.cc
  void leaves(const Terms& terms, std::vector<Terms>& out);
  uint8_t told_types(const Terms& flat, const MemberStyle& style);
  NodeId member_value(const Terms& terms, const MemberStyle& style);
  NodeId plain_string(const Terms& flat, uint8_t others);
  NodeId named_member(const std::string& name, const Terms& terms, const MemberStyle& style);
  NodeId further_member(const Terms& flat, const ObjectParts& parts, const MemberStyle& style);

  std::vector<Text> texts_of(const Json& schema);
  std::vector<Text> texts_of(const Terms& flat);  // different ones
  LengthBounds length_of(const Json& schema) const;
  LengthBounds length_of(const Terms& flat) const;
  const StringLanguage& language(const Text& text, Spelling spelling = Spelling::kCanonical);
  // Made where none has the name.
  const StringLanguage& language(const std::string& name,
                                 const std::function<StringLanguage()>& make);
  const StringLanguage& without_excluded();
  NodeId text_node(const Text& text);
  // Whom errors name.
  const Json& owner(const Terms& flat) const {
    return flat.empty() ? document_.root() : *flat[0].schema;
  }
  void count_product(const Terms& flat, size_t states, LengthBounds length = {});
  NodeId quoted(std::string_view text);

  const SchemaDocument& document_;
  const JsonSchemaOptions& options_;
  Syntax& syntax_;
  std::vector<std::string>& notes_;
  const std::vector<std::string> excluded_;  // from strings and keys
  NodeId space_, comma_, colon_;
  std::map<Terms, size_t> places_;  // in known_, by sorted terms
  std::deque<Known> known_;
  std::deque<size_t> waiting_;  // of known_, whose rules are still to be defined
  Conflict conflict_;           // of the last value that can't be
  std::unordered_map<const Json*, bool> is_grounded_;  // false: it is being looked at
  int depth_ = 0;
  size_t num_merges_ = 0;
  size_t num_product_states_ = 0;
  std::map<std::string, StringLanguage> languages_;  // by what they are of
  std::map<std::pair<bool, std::string>, NodeId> text_nodes_;
  std::map<std::string, NodeId> strings_;  // by what holds of them
  std::unordered_map<const Json*, std::string> value_keys_;
  std::unordered_map<const Json*, NodeId> constants_;  // of lists and objects
  std::set<std::string> noted_;
  std::set<const Json*> overlaps_looked_at_;
};

}  // namespace nanovllm::grammar
