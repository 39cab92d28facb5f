#include "text/jinja/interpreter.h"

#include <type_traits>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter_scopes.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {

Interpreter::Interpreter(const Template& source, Budget& budget, const std::tm& now)
    : template_(source), budget_(budget), now_(now), context_(source.context_names.size()) {
  for (size_t i = 0; i < context_.size(); ++i) {
    if (const Builtin* global = find_global(source.context_names[i])) {
      context_[i] = Value::function(*global);
    }
  }
}

// Namespaces, loops and macros can refer to themselves, so they are emptied before they are freed.
Interpreter::~Interpreter() {
  for (const Value& value : kept_values_) {
    if (value.is(Kind::kNamespace)) value.as<Namespace>().attributes.as<Dict>().clear();
    if (value.is(Kind::kLoop)) value.as<Loop>().clear();
  }
  for (const auto& activation : kept_activations_) activation->slots.clear();
}

void Interpreter::set_variable(const std::string& name, Value value) {
  for (size_t i = 0; i < context_.size(); ++i) {
    if (template_.context_names[i] != name) continue;
    context_[i] = std::move(value);
    return;
  }
}

std::string Interpreter::render() {
  Buffer buffer(*this);
  std::unique_ptr<Activation> owner;
  const Running running(*this, new_activation(template_.function, nullptr, owner));
  if (template_.self_slot >= 0) {
    activation_->slots[static_cast<size_t>(template_.self_slot)] =
        make<Object>(Kind::kSelf, budget_);
  }
  enter(template_.scope);
  run(template_.body);
  if (has_surrogate(buffer.text())) {
    fail(Fault::kValue, "the rendered text has a lone surrogate, which UTF-8 can't hold");
  }
  return buffer.text();
}

Activation* Interpreter::new_activation(const Function& function, Activation* parent,
                                        std::unique_ptr<Activation>& owner) {
  owner = std::make_unique<Activation>(parent, function.num_slots);
  Activation* activation = owner.get();
  if (function.is_captured) {
    budget_.allocate(sizeof(Activation) + activation->slots.size() * sizeof(Value));
    kept_activations_.push_back(std::move(owner));
  }
  return activation;
}

Value& Interpreter::slot(const Ref& ref) {
  Activation* activation = activation_;
  for (int hops = ref.hops; hops > 0; --hops) activation = activation->parent;
  return activation->slots[static_cast<size_t>(ref.slot)];
}

void Interpreter::enter(const Scope& scope) {
  for (const Load& load : scope.loads) {
    Value& target = activation_->slots[static_cast<size_t>(load.slot)];
    switch (load.from) {
      case Load::From::kNothing:
        target = Value();
        break;
      case Load::From::kContext:
        target = context_[static_cast<size_t>(load.context_name)];
        break;
      case Load::From::kAlias:
        target = slot(load.alias);
        break;
    }
  }
}

void Interpreter::leave(const Scope& scope) {
  for (const int index : scope.slots) activation_->slots[static_cast<size_t>(index)] = Value();
}

void Interpreter::write(std::string_view text) {
  budget_.work(text.size());
  budget_.check_output(out_->size() + text.size());
  budget_.allocate(text.size());
  out_->append(text);
}

void Interpreter::write_value(const Value& value) {
  if (value.is_string() && (!autoescape_ || is_markup(value))) return write(text_of(value));
  if (autoescape_) return write(text_of(escape(budget_, value)));
  write(to_str(budget_, value));
}

Interpreter::Flow Interpreter::run(const Body& body) {
  for (const StmtPtr& statement : body) {
    const Flow flow = run(*statement);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run(const Stmt& statement) {
  budget_.step();
  const Nesting nesting(budget_);
  offset_ = statement.offset;
  switch (statement.kind) {
    case StmtKind::kOutput:
      return run_as(statement, &Interpreter::run_output);
    case StmtKind::kFor:
      return run_as(statement, &Interpreter::run_for);
    case StmtKind::kIf:
      return run_as(statement, &Interpreter::run_if);
    case StmtKind::kMacro:
      return run_as(statement, &Interpreter::define_macro);
    case StmtKind::kCallBlock:
      return run_as(statement, &Interpreter::run_call_block);
    case StmtKind::kFilterBlock:
      return run_as(statement, &Interpreter::run_filter_block);
    case StmtKind::kWith:
      return run_as(statement, &Interpreter::run_with);
    case StmtKind::kAssign:
      return run_as(statement, &Interpreter::run_assign);
    case StmtKind::kAssignBlock:
      return run_as(statement, &Interpreter::run_assign_block);
    case StmtKind::kBlock:
      return run_as(statement, &Interpreter::run_block);
    case StmtKind::kAutoescape:
      return run_as(statement, &Interpreter::run_autoescape);
    case StmtKind::kImport:
      return run_as(statement, &Interpreter::refuse_import);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

template <typename Node, typename Result>
Interpreter::Flow Interpreter::run_as(const Stmt& statement,
                                      Result (Interpreter::*handle)(const Node&)) {
  const auto& node = static_cast<const Node&>(statement);
  if constexpr (std::is_same_v<Result, Flow>) {
    return (this->*handle)(node);
  } else {
    (this->*handle)(node);
    return Flow::kNext;
  }
}

void Interpreter::run_output(const Output& node) {
  for (const ExprPtr& item : node.items) {
    if (item->kind == ExprKind::kConst && static_cast<const Const&>(*item).is_data) {
      write(text_of(static_cast<const Const&>(*item).value));
    } else {
      const Value value = evaluate(*item);
      offset_ = item->offset;
      write_value(value);
    }
  }
}

Interpreter::Flow Interpreter::run_if(const If& node) {
  for (const If::Branch& branch : node.branches) {
    if (is_truthy(evaluate(*branch.test))) return run(branch.body);
  }
  return run(node.otherwise);
}

void Interpreter::define_macro(const MacroStmt& node) {
  Value macro = make<Macro>(Kind::kMacro, budget_, node.macro, node.name, activation_);
  if (node.context_name >= 0) context_[static_cast<size_t>(node.context_name)] = macro;
  slot(node.ref) = std::move(macro);
}

void Interpreter::run_call_block(const CallBlock& node) {
  const Value caller = make<Macro>(Kind::kMacro, budget_, node.macro, "", activation_);
  if (node.call == nullptr) {
    Arguments none;
    return write_value(call_macro(caller.as<Macro>(), none));
  }
  write_value(evaluate_call(static_cast<const Call&>(*node.call), &caller));
}

Interpreter::Flow Interpreter::run_filter_block(const FilterBlock& node) {
  enter(node.scope);
  Value text;
  {
    Buffer buffer(*this);
    const Flow flow = run(node.body);
    if (flow != Flow::kNext) return flow;
    text = buffer.take();
  }
  filter_input_ = std::move(text);
  write_value(evaluate(*node.filter));
  leave(node.scope);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_with(const With& node) {
  // Values are evaluated outside of the scope, each right before it is assigned.
  enter(node.scope);
  for (size_t i = 0; i < node.targets.size(); ++i) {
    assign(*node.targets[i], evaluate(*node.values[i]));
  }
  const Flow flow = run(node.body);
  leave(node.scope);
  return flow;
}

Interpreter::Flow Interpreter::run_assign_block(const AssignBlock& node) {
  enter(node.scope);
  Value text;
  {
    Buffer buffer(*this);
    const Flow flow = run(node.body);
    if (flow != Flow::kNext) return flow;
    text = buffer.take();
  }
  if (node.filter != nullptr) {
    filter_input_ = std::move(text);
    text = evaluate(*node.filter);
    // Markup(text) with autoescape, text as it is without.
    if (autoescape_ && !is_markup(text)) {
      text = make_string(budget_, to_str(budget_, text), true);
    }
  }
  assign(*node.target, text);
  leave(node.scope);
  return Flow::kNext;
}

void Interpreter::run_assign(const Assign& node) { assign(*node.target, evaluate(*node.value)); }

void Interpreter::run_block(const Block& node) {
  if (node.is_required) fail(Fault::kRuntime, "Required block '{}' not found", node.name);
  Values saved;
  if (node.is_scoped) {
    saved = context_;
    for (const auto& [index, ref] : node.visible) {
      const Value& value = slot(ref);
      if (!value.is_missing()) context_[static_cast<size_t>(index)] = value;
    }
  }
  run_block_body(node);
  if (node.is_scoped) context_ = std::move(saved);
}

void Interpreter::run_block_body(const Block& node) {
  std::unique_ptr<Activation> owner;
  const Running running(*this, new_activation(node.function, nullptr, owner));
  if (node.self_slot >= 0) {
    activation_->slots[static_cast<size_t>(node.self_slot)] = make<Object>(Kind::kSelf, budget_);
  }
  enter(node.scope);
  run(node.body);
}

Interpreter::Flow Interpreter::run_autoescape(const Autoescape& node) {
  enter(node.scope);
  const bool outer = autoescape_;
  autoescape_ = is_truthy(evaluate(*node.enabled));
  const Flow flow = run(node.body);
  autoescape_ = outer;
  leave(node.scope);
  return flow;
}

void Interpreter::refuse_import(const Import& node) {
  fail(Fault::kUnsupported, "{{% {} %}} needs another template, and a chat template has none",
       node.tag);
}

void Interpreter::assign(const Expr& target, const Value& value) {
  switch (target.kind) {
    case ExprKind::kName: {
      const auto& name = static_cast<const Name&>(target);
      if (name.context_name >= 0) context_[static_cast<size_t>(name.context_name)] = value;
      slot(name.ref) = value;
      return;
    }
    case ExprKind::kNamespaceRef: {
      const auto& node = static_cast<const NamespaceRef&>(target);
      const Value space = slot(node.ref);
      offset_ = target.offset;
      if (!space.is(Kind::kNamespace)) {
        fail(Fault::kRuntime, "cannot assign attribute on non-namespace object");
      }
      if (node.attribute.starts_with('_')) {
        fail(Fault::kSecurity,
             "a namespace can't have the attribute '{}': names with an underscore in front are "
             "private",
             node.attribute);
      }
      space.as<Namespace>().attributes.as<Dict>().set(make_string(budget_, node.attribute), value);
      return;
    }
    default:
      return unpack(static_cast<const Sequence&>(target), value);
  }
}

void Interpreter::unpack(const Sequence& target, const Value& value) {
  offset_ = target.offset;
  const size_t wanted = target.items.size();
  Values items;
  for_each(value, [&](const Value& item) {
    if (items.size() == wanted) {
      fail(Fault::kValue, "too many values to unpack (expected {})", wanted);
    }
    items.push_back(item);
    return true;
  });
  if (items.size() < wanted) {
    fail(Fault::kValue, "not enough values to unpack (expected {}, got {})", wanted, items.size());
  }
  for (size_t i = 0; i < wanted; ++i) assign(*target.items[i], items[i]);
}

}  // namespace nanovllm::jinja
