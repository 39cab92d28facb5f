// Which variable a name means. Jinja decides that when it compiles a template, by rules of its own:
// an assignment within a loop, macro or block makes a variable of that scope, which starts as the
// variable of the same name around it; anything never assigned is looked up among the variables
// given to the rendering when its scope is entered.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"

namespace nanovllm::jinja {

// A Function while it is being compiled.
struct FunctionScope {
  FunctionScope(Function& compiled, FunctionScope* around)
      : function(compiled), parent(around), depth(around == nullptr ? 0 : around->depth + 1) {
    if (parent != nullptr) parent->function.is_captured = true;
  }
  // One slot for each name on each level of nesting; scopes side by side share them.
  int slot(int level, const std::string& name) {
    const auto [entry, is_new] = slots.try_emplace({level, name}, function.num_slots);
    if (is_new) ++function.num_slots;
    return entry->second;
  }

  Function& function;
  FunctionScope* parent;
  int depth;
  std::map<std::pair<int, std::string>, int> slots;
};

// A slot of a function.
struct Variable {
  FunctionScope* function = nullptr;
  int slot = -1;
  auto operator<=>(const Variable&) const = default;  // NOLINT(modernize-use-nullptr): not one
};

class Symbols {
 public:
  Symbols(const Symbols* parent, FunctionScope& function)
      : parent_(parent), function_(&function), level_(parent == nullptr ? 0 : parent->level_ + 1) {}

  // What is known of the names of this scope, gathered before any of them is resolved.
  void collect(const Body& body);
  void collect(Expr& expr);
  // Names in `expr` as variables that something else gives their values.
  void collect_parameters(Expr& target);
  Variable declare_parameter(const std::string& name);
  void store(const std::string& name);
  void load(const std::string& name);

  // Throws kSyntax for a name that was not collected (Jinja fails an assertion of its own then).
  Ref resolve(const std::string& name) const;
  // What entering the scope does; `context_index` turns names into Load::context_name.
  template <typename ContextIndex>
  Scope enter(const ContextIndex& context_index) const {
    Scope scope;
    for (const auto& [target, origin] : loads_) {
      scope.slots.push_back(target.slot);
      if (origin.kind == Origin::kParameter) continue;
      Load load;
      load.slot = target.slot;
      if (origin.kind == Origin::kResolve) {
        load.from = Load::From::kContext;
        load.context_name = context_index(origin.name);
      } else if (origin.kind == Origin::kAlias) {
        load.from = Load::From::kAlias;
        load.alias = ref_to(origin.alias);
      }
      scope.loads.push_back(load);
    }
    return scope;
  }
  // Every name assigned here or around here, with where it lives.
  std::vector<std::pair<std::string, Ref>> visible_stores() const;
  FunctionScope& function() const { return *function_; }

 private:
  struct Origin {
    enum Kind { kParameter, kResolve, kAlias, kUndefined } kind;
    std::string name;  // of kResolve
    Variable alias;
  };

  void collect(Stmt& statement);
  void collect_branches(const If& node);
  const Variable* find(const std::string& name) const;
  Variable define(const std::string& name, Origin origin);
  Ref ref_to(const Variable& variable) const;

  const Symbols* parent_;
  FunctionScope* function_;
  int level_;
  std::map<std::string, Variable> refs_;
  std::map<Variable, Origin> loads_;
  std::set<std::string> stores_;
};

}  // namespace nanovllm::jinja
