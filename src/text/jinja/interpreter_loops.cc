// {% for %}: plain, filtered and recursive loops.
#include "text/jinja/interpreter.h"
#include "text/jinja/interpreter_scopes.h"

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

}  // namespace nanovllm::jinja
