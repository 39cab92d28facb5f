#include "text/jinja/interpreter.h"

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter_scopes.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {

// {% for x in xs if test %}: the items for which the test holds. The test runs in a function of its
// own, as its target is another variable than that of the body.
class FilteredIterator : public Iterator {
 public:
  FilteredIterator(Budget* budget, const For& node, Value items, Activation* activation)
      : Iterator(budget, items.depth()),
        node_(node),
        items_(std::move(items)),
        activation_(activation) {}

  bool next(Interpreter& in, Value& item) override {
    const Nesting nesting(in.budget());
    const Interpreter::Running running(in, activation_);
    Value candidate;
    while (items_.as<Iterator>().next(in, candidate)) {
      in.budget().step();
      in.enter(node_.test_scope);
      in.assign(*node_.test_target, candidate);
      if (!is_truthy(in.evaluate(*node_.test))) continue;
      // What is passed on is the target's value, so that a list that was unpacked becomes a tuple.
      item = node_.test_target->kind == ExprKind::kTuple ? in.evaluate(*node_.test_target)
                                                         : std::move(candidate);
      return true;
    }
    return false;
  }

 private:
  const For& node_;
  Value items_;
  Activation* activation_;
};

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
      run_output(static_cast<const Output&>(statement));
      return Flow::kNext;
    case StmtKind::kFor:
      run_for(static_cast<const For&>(statement));
      return Flow::kNext;
    case StmtKind::kIf:
      return run_if(static_cast<const If&>(statement));
    case StmtKind::kMacro:
      define_macro(static_cast<const MacroStmt&>(statement));
      return Flow::kNext;
    case StmtKind::kCallBlock:
      run_call_block(static_cast<const CallBlock&>(statement));
      return Flow::kNext;
    case StmtKind::kFilterBlock:
      return run_filter_block(static_cast<const FilterBlock&>(statement));
    case StmtKind::kWith:
      return run_with(static_cast<const With&>(statement));
    case StmtKind::kAssign: {
      const auto& node = static_cast<const Assign&>(statement);
      assign(*node.target, evaluate(*node.value));
      return Flow::kNext;
    }
    case StmtKind::kAssignBlock:
      return run_assign_block(static_cast<const AssignBlock&>(statement));
    case StmtKind::kBlock:
      run_block(static_cast<const Block&>(statement));
      return Flow::kNext;
    case StmtKind::kAutoescape:
      return run_autoescape(static_cast<const Autoescape&>(statement));
    case StmtKind::kImport:
      fail(Fault::kUnsupported, "{{% {} %}} needs another template, and a chat template has none",
           static_cast<const Import&>(statement).tag);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
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

void Interpreter::run_for(const For& node) {
  const Value iterable = evaluate(*node.iterable);
  run_loop(node, iterable, activation_, 0);
}

// A recursive loop is a function of its own, called for the outermost iterable here and by
// `loop(...)` for those within.
void Interpreter::run_loop(const For& node, const Value& iterable, Activation* around, int depth0) {
  std::unique_ptr<Activation> owner;
  const Running running(
      *this, node.is_recursive ? new_activation(node.function, around, owner) : activation_);
  if (run_loop_items(node, iterable, around, depth0)) return;
  enter(node.else_scope);
  run(node.otherwise);
  leave(node.else_scope);
}

// Whether the body ran to its end at least once: a loop whose iterations all end in break or
// continue counts as empty, as in Jinja.
bool Interpreter::run_loop_items(const For& node, const Value& iterable, Activation* around,
                                 int depth0) {
  bool completed = false;
  std::unique_ptr<Activation> test_activation;
  Value source = iterable;
  if (node.test != nullptr) {
    Activation* activation = new_activation(node.test_function, around, test_activation);
    source = make<FilteredIterator>(Kind::kIterator, budget_, node, iterate(iterable), activation);
  }
  if (node.loop_slot < 0) {
    for_each(source, [&](const Value& item) { return run_item(node, item, completed); });
    leave(node.scope);
    return completed;
  }
  const Value loop =
      make<Loop>(Kind::kLoop, budget_, node, source, iterate(source), around, depth0);
  auto& state = loop.as<Loop>();
  try {
    while (state.advance(*this)) {
      activation_->slots[static_cast<size_t>(node.loop_slot)] = loop;
      if (!run_item(node, state.current, completed)) break;
    }
  } catch (...) {
    // The loop may outlive what it runs over and then must not reach for it.
    state.finish();
    keep(loop);
    throw;
  }
  leave(node.scope);
  state.finish();
  if (!loop.as_object()->is_unique()) keep(loop);
  return completed;
}

// One iteration; false after a break.
bool Interpreter::run_item(const For& node, const Value& item, bool& completed) {
  budget_.step();
  enter(node.scope);
  assign(*node.target, item);
  const Flow flow = run(node.body);
  completed |= flow == Flow::kNext;
  return flow != Flow::kBreak;
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
