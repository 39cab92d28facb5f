#include "text/jinja/symbols.h"

#include "text/jinja/ast_walk.h"
#include "text/jinja/error.h"

namespace nanovllm::jinja {

void Symbols::collect(const Body& body) {
  for (const StmtPtr& statement : body) collect(*statement);
}

void Symbols::collect(Expr& expr) {
  if (expr.kind == ExprKind::kName) {
    const auto& name = static_cast<const Name&>(expr);
    switch (name.use) {
      case Name::Use::kLoad:
        return load(name.name);
      case Name::Use::kStore:
        return store(name.name);
      case Name::Use::kParameter:
        declare_parameter(name.name);
        return;
    }
  }
  if (expr.kind == ExprKind::kNamespaceRef) load(static_cast<NamespaceRef&>(expr).name);
  for_each_part(expr, [&](Expr& part) { collect(part); });
}

void Symbols::collect_parameters(Expr& target) {
  if (target.kind == ExprKind::kName) declare_parameter(static_cast<Name&>(target).name);
  for_each_part(target, [&](Expr& part) { collect_parameters(part); });
}

// Only what happens in this scope: of statements with scopes of their own, that is what they
// evaluate outside of them.
void Symbols::collect(Stmt& statement) {
  switch (statement.kind) {
    case StmtKind::kOutput:
      for (const ExprPtr& item : static_cast<Output&>(statement).items) collect(*item);
      break;
    case StmtKind::kFor:
      collect(*static_cast<For&>(statement).iterable);
      break;
    case StmtKind::kIf:
      collect_branches(static_cast<If&>(statement));
      break;
    case StmtKind::kMacro:
      store(static_cast<MacroStmt&>(statement).name);
      break;
    case StmtKind::kCallBlock:
      if (const ExprPtr& call = static_cast<CallBlock&>(statement).call) collect(*call);
      break;
    case StmtKind::kFilterBlock:
      collect(*static_cast<FilterBlock&>(statement).filter);
      break;
    case StmtKind::kWith:
      for (const ExprPtr& value : static_cast<With&>(statement).values) collect(*value);
      break;
    case StmtKind::kAssign:
      collect(*static_cast<Assign&>(statement).value);
      collect(*static_cast<Assign&>(statement).target);
      break;
    case StmtKind::kAssignBlock:
      collect(*static_cast<AssignBlock&>(statement).target);
      break;
    case StmtKind::kImport:
      collect(*static_cast<Import&>(statement).source);
      for (const auto& name : static_cast<Import&>(statement).names) store(name->name);
      break;
    case StmtKind::kBlock:
    case StmtKind::kAutoescape:
    case StmtKind::kBreak:
    case StmtKind::kContinue:
      break;
  }
}

// What a branch assigns may stay unassigned, so it starts as what the name means without it.
void Symbols::collect_branches(const If& node) {
  const std::set<std::string> stored_before = stores_;
  for (const If::Branch& branch : node.branches) {
    collect(*branch.test);
    collect(branch.body);
  }
  collect(node.otherwise);
  for (const std::string& name : stores_) {
    if (stored_before.contains(name)) continue;
    const Variable* outer = parent_ == nullptr ? nullptr : parent_->find(name);
    if (outer != nullptr) {
      loads_[refs_[name]] = {Origin::kAlias, {}, *outer};
    } else {
      loads_[refs_[name]] = {Origin::kResolve, name, {}};
    }
  }
}

const Variable* Symbols::find(const std::string& name) const {
  for (const Symbols* symbols = this; symbols != nullptr; symbols = symbols->parent_) {
    const auto found = symbols->refs_.find(name);
    if (found != symbols->refs_.end()) return &found->second;
  }
  return nullptr;
}

Variable Symbols::define(const std::string& name, Origin origin) {
  const Variable variable{function_, function_->slot(level_, name)};
  refs_[name] = variable;
  loads_[variable] = std::move(origin);
  return variable;
}

void Symbols::store(const std::string& name) {
  stores_.insert(name);
  if (refs_.contains(name)) return;
  const Variable* outer = parent_ == nullptr ? nullptr : parent_->find(name);
  if (outer != nullptr) {
    define(name, {Origin::kAlias, {}, *outer});
  } else {
    define(name, {Origin::kUndefined, {}, {}});
  }
}

Variable Symbols::declare_parameter(const std::string& name) {
  stores_.insert(name);
  return define(name, {Origin::kParameter, {}, {}});
}

void Symbols::load(const std::string& name) {
  if (find(name) == nullptr) define(name, {Origin::kResolve, name, {}});
}

Ref Symbols::ref_to(const Variable& variable) const {
  return {function_->depth - variable.function->depth, variable.slot};
}

Ref Symbols::resolve(const std::string& name) const {
  const Variable* variable = find(name);
  if (variable == nullptr) {
    fail(Fault::kSyntax, "the name '{}' can't be used here: nothing outside mentions it", name);
  }
  return ref_to(*variable);
}

std::vector<std::pair<std::string, Ref>> Symbols::visible_stores() const {
  std::vector<std::pair<std::string, Ref>> visible;
  std::set<std::string> seen;
  for (const Symbols* symbols = this; symbols != nullptr; symbols = symbols->parent_) {
    for (const std::string& name : symbols->stores_) {
      if (seen.insert(name).second) visible.emplace_back(name, resolve(name));
    }
  }
  return visible;
}

}  // namespace nanovllm::jinja
