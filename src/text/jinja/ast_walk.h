// Visits the parts of a syntax tree in the order in which Jinja's visitors meet them.
#pragma once

#include "text/jinja/ast.h"

namespace nanovllm::jinja {

template <typename Visit>
void for_each_argument(const CallArguments& arguments, const Visit& visit) {
  for (const ExprPtr& argument : arguments.positional) visit(*argument);
  for (const auto& [name, argument] : arguments.named) visit(*argument);
  if (arguments.more_positional != nullptr) visit(*arguments.more_positional);
  if (arguments.more_named != nullptr) visit(*arguments.more_named);
}

// Calls visit(Expr&) for the direct parts of an expression.
template <typename Visit>
void for_each_part(const Expr& expr, const Visit& visit) {
  const auto maybe = [&](const ExprPtr& part) {
    if (part != nullptr) visit(*part);
  };
  switch (expr.kind) {
    case ExprKind::kConst:
    case ExprKind::kName:
    case ExprKind::kNamespaceRef:
      break;
    case ExprKind::kTuple:
    case ExprKind::kList:
    case ExprKind::kConcat:
      for (const ExprPtr& item : static_cast<const Sequence&>(expr).items) visit(*item);
      break;
    case ExprKind::kDict:
      for (const auto& [key, value] : static_cast<const DictLiteral&>(expr).items) {
        visit(*key);
        visit(*value);
      }
      break;
    case ExprKind::kNegate:
    case ExprKind::kPosit:
    case ExprKind::kNot:
      visit(*static_cast<const Unary&>(expr).operand);
      break;
    case ExprKind::kAnd:
    case ExprKind::kOr:
    case ExprKind::kBinary:
      visit(*static_cast<const Binary&>(expr).left);
      visit(*static_cast<const Binary&>(expr).right);
      break;
    case ExprKind::kCompare:
      visit(*static_cast<const Compare&>(expr).first);
      for (const auto& [op, operand] : static_cast<const Compare&>(expr).rest) visit(*operand);
      break;
    case ExprKind::kCondition:
      visit(*static_cast<const Condition&>(expr).test);
      visit(*static_cast<const Condition&>(expr).then);
      maybe(static_cast<const Condition&>(expr).otherwise);
      break;
    case ExprKind::kFilter:
    case ExprKind::kTest:
      maybe(static_cast<const FilterOrTest&>(expr).operand);
      for_each_argument(static_cast<const FilterOrTest&>(expr).arguments, visit);
      break;
    case ExprKind::kCall:
      visit(*static_cast<const Call&>(expr).callee);
      for_each_argument(static_cast<const Call&>(expr).arguments, visit);
      break;
    case ExprKind::kAttribute:
      visit(*static_cast<const Attribute&>(expr).object);
      break;
    case ExprKind::kItem:
      visit(*static_cast<const Item&>(expr).object);
      visit(*static_cast<const Item&>(expr).index);
      break;
    case ExprKind::kSlice:
      maybe(static_cast<const Slice&>(expr).start);
      maybe(static_cast<const Slice&>(expr).stop);
      maybe(static_cast<const Slice&>(expr).step);
      break;
  }
}

// Calls on_name(Name&) for every name below, and on_block(Block&) for every block, whose inside is
// visited only if that returns true.
template <typename OnName, typename OnBlock>
class TreeWalk {
 public:
  TreeWalk(OnName on_name, OnBlock on_block)
      : on_name_(std::move(on_name)), on_block_(std::move(on_block)) {}

  void walk(const Body& body) {
    for (const StmtPtr& statement : body) walk(*statement);
  }
  void walk(Expr& expr) {
    if (expr.kind == ExprKind::kName) on_name_(static_cast<Name&>(expr));
    for_each_part(expr, [&](Expr& part) { walk(part); });
  }
  void walk(Stmt& statement) {
    switch (statement.kind) {
      case StmtKind::kOutput:
        return walk_all(static_cast<Output&>(statement).items);
      case StmtKind::kFor: {
        auto& loop = static_cast<For&>(statement);
        walk(*loop.target);
        walk(*loop.iterable);
        walk(loop.body);
        walk(loop.otherwise);
        return walk_maybe(loop.test);
      }
      case StmtKind::kIf: {
        auto& node = static_cast<If&>(statement);
        for (const If::Branch& branch : node.branches) {
          walk(*branch.test);
          walk(branch.body);
        }
        return walk(node.otherwise);
      }
      case StmtKind::kMacro:
        return walk_macro(static_cast<MacroStmt&>(statement).macro);
      case StmtKind::kCallBlock:
        walk_maybe(static_cast<CallBlock&>(statement).call);
        return walk_macro(static_cast<CallBlock&>(statement).macro);
      case StmtKind::kFilterBlock:
        walk(static_cast<FilterBlock&>(statement).body);
        return walk(*static_cast<FilterBlock&>(statement).filter);
      case StmtKind::kWith:
        walk_all(static_cast<With&>(statement).targets);
        walk_all(static_cast<With&>(statement).values);
        return walk(static_cast<With&>(statement).body);
      case StmtKind::kAssign:
        walk(*static_cast<Assign&>(statement).target);
        return walk(*static_cast<Assign&>(statement).value);
      case StmtKind::kAssignBlock:
        walk(*static_cast<AssignBlock&>(statement).target);
        walk_maybe(static_cast<AssignBlock&>(statement).filter);
        return walk(static_cast<AssignBlock&>(statement).body);
      case StmtKind::kBlock:
        if (on_block_(static_cast<Block&>(statement))) walk(static_cast<Block&>(statement).body);
        return;
      case StmtKind::kAutoescape:
        walk(*static_cast<Autoescape&>(statement).enabled);
        return walk(static_cast<Autoescape&>(statement).body);
      case StmtKind::kImport:
        return walk(*static_cast<Import&>(statement).source);
      case StmtKind::kBreak:
      case StmtKind::kContinue:
        return;
    }
  }

 private:
  void walk_all(const ExprList& list) {
    for (const ExprPtr& expr : list) walk(*expr);
  }
  void walk_maybe(const ExprPtr& expr) {
    if (expr != nullptr) walk(*expr);
  }
  void walk_macro(const MacroBody& macro) {
    for (const auto& parameter : macro.parameters) on_name_(*parameter);
    walk_all(macro.defaults);
    walk(macro.body);
  }

  OnName on_name_;
  OnBlock on_block_;
};

}  // namespace nanovllm::jinja
