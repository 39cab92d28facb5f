// Whether branches of oneOf are apart, so that it says what anyOf says.
#include <algorithm>

#include "base/check.h"
#include "grammar/schema_compiler.h"

namespace nanovllm::grammar {
namespace {

constexpr size_t kMaxCompared = 200;  // branches, each with each

bool are_disjoint(const std::set<std::string>& a, const std::set<std::string>& b) {
  return std::ranges::none_of(a, [&b](const std::string& value) { return b.contains(value); });
}

}  // namespace

std::optional<std::set<std::string>> SchemaCompiler::keys_of_values(const Terms& flat) {
  const auto values = all_listed(flat);
  if (!values) return std::nullopt;
  std::set<std::string> keys;
  for (const Json* value : *values) keys.insert(key_of(*value));
  return keys;
}

SchemaCompiler::Branch SchemaCompiler::branch_of(const Json& schema) {
  Branch branch;
  Terms flat;
  refuse_cycles(schema, 0);
  if (!flatten(Term{&schema}, flat)) return branch;
  branch.types = types(flat);
  branch.values = keys_of_values(flat);
  std::set<std::string> required;
  for (const Term term : flat) {
    const auto list = term.schema->find("required");
    if (list == term.schema->end() || !list->is_array()) continue;
    count_steps(*term.schema, list->size());
    for (const Json& name : *list) {
      if (name.is_string()) required.insert(name.get<std::string>());
    }
  }
  for (const Term term : flat) {
    const Json* properties = document_.object(*term.schema, "properties");
    if (properties == nullptr) continue;
    count_steps(*term.schema, properties->size());
    for (const auto& [name, property] : properties->items()) {
      if (!required.contains(name) || !property.is_object()) continue;
      Terms its_flat;
      refuse_cycles(property, 0);
      if (!flatten(Term{&property}, its_flat)) continue;
      if (auto keys = keys_of_values(its_flat)) branch.tags[name] = std::move(*keys);
    }
  }
  return branch;
}

bool SchemaCompiler::are_apart(const Branch& a, const Branch& b) {
  const uint8_t shared = a.types & b.types;
  if (shared == 0) return true;
  if (a.values && b.values && are_disjoint(*a.values, *b.values)) return true;
  if (shared != kObject) return false;
  return std::ranges::any_of(a.tags, [&b](const auto& tag) {
    const auto other = b.tags.find(tag.first);
    return other != b.tags.end() && are_disjoint(tag.second, other->second);
  });
}

// They are apart when they have different types, or list different values, for themselves or for a
// member that both require.
void SchemaCompiler::note_overlap(const Json& schema, const Json& branches) {
  if (!overlaps_looked_at_.insert(&schema).second) return;
  std::vector<Branch> all;
  bool may_overlap = branches.size() > kMaxCompared;
  for (size_t i = 0; i < branches.size() && !may_overlap; ++i) {
    all.push_back(branch_of(branches[i]));
    for (size_t j = 0; j < i; ++j) may_overlap = may_overlap || !are_apart(all[i], all[j]);
  }
  if (!may_overlap) return;
  notes_.push_back(document_.where(schema) +
                   ": branches of oneOf may overlap; it is taken for anyOf");
}

}  // namespace nanovllm::grammar
