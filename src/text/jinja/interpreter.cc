#include "text/jinja/interpreter.h"

#include "text/jinja/operators.h"

namespace nanovllm::jinja {

Interpreter::Interpreter(const Template& source, Budget& budget, const std::tm& now)
    : template_(source), budget_(budget), now_(now), globals_(source.names.size()) {
  for (size_t i = 0; i < globals_.size(); ++i) {
    if (const Builtin* global = find_global(text_of(source.names[i]))) {
      globals_[i] = Value::function(*global);
    }
  }
}

// Namespaces and scopes with macros can refer to themselves, so they are emptied before they go.
Interpreter::~Interpreter() {
  for (const Value& value : kept_values_) value.as<Namespace>().attributes.as<Dict>().clear();
  for (const auto& scope : kept_scopes_) scope->variables.clear();
}

void Interpreter::set_variable(std::string_view name, Value value) {
  for (size_t i = 0; i < globals_.size(); ++i) {
    if (text_of(template_.names[i]) != name) continue;
    globals_[i] = std::move(value);
    return;
  }
}

std::string Interpreter::render() {
  std::string text;
  out_ = &text;
  run(template_.body);
  return text;
}

void Interpreter::write(std::string_view text) {
  budget_.work(text.size());
  budget_.check_output(out_->size() + text.size());
  budget_.allocate(text.size());
  out_->append(text);
}

Interpreter::Flow Interpreter::run(const Body& body) {
  for (const auto& statement : body) {
    const Flow flow = run(*statement);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run(const Stmt& node) {
  budget_.step();
  const Nesting nesting(budget_);
  offset_ = node.offset;
  switch (node.kind) {
    case StmtKind::kOutput:
      run_output(node);
      break;
    case StmtKind::kFor:
      run_for(node);
      break;
    case StmtKind::kIf:
      return run_if(node);
    case StmtKind::kMacro:
      set(node.symbol, make<Macro>(Kind::kMacro, budget_, node, scope_));
      break;
    case StmtKind::kBlock:
    case StmtKind::kAssignBlock:
      return run_block(node);
    case StmtKind::kAssign:
      assign(*node.target, evaluate(*node.value));
      break;
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

void Interpreter::run_output(const Stmt& node) {
  for (const ExprPtr& item : node.items) {
    if (item->kind == ExprKind::kConst && item->value.is_string()) {
      write(text_of(item->value));
      continue;
    }
    const Value value = evaluate(*item);
    offset_ = item->offset;
    value.is_string() ? write(text_of(value)) : write(to_str(budget_, value));
  }
}

Interpreter::Flow Interpreter::run_if(const Stmt& node) {
  for (const Branch& branch : node.branches) {
    if (branch.test == nullptr || is_truthy(evaluate(*branch.test))) return run(branch.body);
  }
  return Flow::kNext;
}

Scope& Interpreter::enter(bool has_macros, Scope& local) {
  Scope* scope = &local;
  if (has_macros) {
    budget_.allocate(sizeof(Scope));
    scope = kept_scopes_.emplace_back(std::make_unique<Scope>(local)).get();
  }
  return *(scope_ = scope);
}

Value Interpreter::capture(const Body& body, Scope& scope, Flow& flow) {
  std::string text;
  Scope* const scope_around = std::exchange(scope_, &scope);
  std::string* const out_around = std::exchange(out_, &text);
  flow = run(body);
  // A fault needs neither of them any more.
  scope_ = scope_around;
  out_ = out_around;
  budget_.release(text.size());
  return make_string(budget_, std::move(text));
}

Interpreter::Flow Interpreter::run_block(const Stmt& node) {
  Scope local{scope_, {}};
  Scope* const around = scope_;
  Scope& scope = enter(node.has_macros, local);
  Flow flow = Flow::kNext;
  Value text = capture(node.branches[0].body, scope, flow);
  if (flow != Flow::kNext) {
    scope_ = around;
    return flow;
  }
  if (node.value != nullptr) {
    block_text_ = std::move(text);
    text = evaluate(*node.value);
  }
  scope_ = around;
  if (node.kind == StmtKind::kAssignBlock) {
    assign(*node.target, std::move(text));
  } else {
    write(to_str(budget_, text));
  }
  return Flow::kNext;
}

void Interpreter::run_for(const Stmt& node) {
  const Value value =
      make<Loop>(Kind::kLoop, budget_, to_list(evaluate(*node.value)), node, scope_);
  auto& loop = value.as<Loop>();
  // Iterations that all end in break or continue count as none, as in Jinja.
  bool completed = false;
  Scope local{scope_, {}};
  while (advance(loop)) {
    budget_.step();
    local.variables.clear();
    enter(node.has_macros, local);
    if (node.symbol >= 0) set(node.symbol, value);
    assign(*node.target, loop.current);
    const Flow flow = run(node.branches[0].body);
    completed |= flow == Flow::kNext;
    scope_ = loop.around;
    if (flow == Flow::kBreak) break;
  }
  // The loop may outlive what it runs over and then must not reach for it.
  loop.next = items_of(loop.items).size();
  if (completed || node.branches.size() == 1) return;
  local.variables.clear();
  enter(node.has_macros, local);
  run(node.branches[1].body);
  scope_ = loop.around;
}

void Interpreter::set(int symbol, Value value) {
  if (scope_ == nullptr) {
    globals_[static_cast<size_t>(symbol)] = std::move(value);
    return;
  }
  budget_.work(scope_->variables.size() * 4);
  for (auto& [name, old] : scope_->variables) {
    if (name != symbol) continue;
    old = std::move(value);
    return;
  }
  scope_->variables.emplace_back(symbol, std::move(value));
}

void Interpreter::assign(const Expr& target, Value value) {
  if (target.kind == ExprKind::kName) return set(target.symbol, std::move(value));
  if (target.kind == ExprKind::kAttribute) {
    const Value space = evaluate(*target.parts[0]);
    if (!space.is(Kind::kNamespace)) {
      fail("cannot assign attribute on non-namespace object");
    }
    if (text_of(target.value).starts_with('_')) {
      fail("names that begin with an underscore are private in a namespace");
    }
    space.as<Namespace>().attributes.as<Dict>().set(target.value, std::move(value));
    return;
  }
  const Value list = to_list(value);
  const Values& items = items_of(list);
  if (items.size() != target.parts.size()) {
    fail("{} values to unpack, expected {}", items.size(), target.parts.size());
  }
  for (size_t i = 0; i < items.size(); ++i) assign(*target.parts[i], items[i]);
}

}  // namespace nanovllm::jinja
