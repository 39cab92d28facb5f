// The interpreter's calls of macros, functions and methods, and the variable `loop`.
#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"

namespace nanovllm::jinja {

Value Interpreter::evaluate_call(const Expr& expr) {
  const Expr& callee = *expr.parts[0];
  Arguments arguments;
  Value function;
  if (callee.kind == ExprKind::kAttribute) {
    // A method is called without being made a value first.
    const Value object = evaluate(*callee.parts[0]);
    offset_ = callee.offset;
    if (const Builtin* method = find_method(object, text_of(callee.value))) {
      evaluate_arguments(expr, arguments);
      offset_ = expr.offset;
      return invoke(*this, *method, object, arguments);
    }
    function = get_attribute(object, callee.value);
  } else {
    function = evaluate(callee);
  }
  evaluate_arguments(expr, arguments);
  offset_ = expr.offset;
  switch (function.kind()) {
    case Kind::kMacro:
      return call_macro(function.as<Macro>(), arguments);
    case Kind::kFunction:
      return invoke(*this, function.as_function(), Value(), arguments);
    case Kind::kMethod:
      return invoke(*this, function.as<Method>().builtin, function.as<Method>().self, arguments);
    case Kind::kUndefined:
      fail_undefined(function);
    default:
      fail(Fault::kType, "'{}' object is not callable", type_name(function));
  }
}

Value Interpreter::call_macro(const Macro& macro, Arguments& arguments) {
  budget_.step();
  const Nesting nesting(budget_);
  const uint32_t called_at = offset_;
  const auto& parameters = macro.node.items;
  Values& given = arguments.positional;
  if (given.size() > parameters.size()) {
    fail(Fault::kType, "macro '{}' takes not more than {} argument(s)", macro.name,
         parameters.size());
  }
  size_t used = 0;
  for (size_t i = 0; i < parameters.size() && !arguments.named.empty(); ++i) {
    const Value& name = template_.names[static_cast<size_t>(parameters[i]->symbol)];
    for (auto& [key, value] : arguments.named) {
      if (i < given.size() && !given[i].is_missing()) break;
      if (text_of(key) != text_of(name)) continue;
      given.resize(std::max(given.size(), i + 1));
      given[i] = std::move(value);
      ++used;
    }
  }
  if (used < arguments.named.size()) {
    fail(Fault::kType, "macro '{}' takes no such keyword argument", macro.name);
  }
  given.resize(parameters.size());
  Scope* const around = scope_;
  Scope local{macro.parent, {}};
  Scope& scope = enter(macro.node.has_macros, local);
  const size_t required = parameters.size() - macro.node.defaults.size();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (given[i].is_missing()) {
      const Value& name = template_.names[static_cast<size_t>(parameters[i]->symbol)];
      given[i] = i >= required
                     ? evaluate(*macro.node.defaults[i - required])
                     : make_undefined(
                           budget_, fmt::format("parameter '{}' was not provided", text_of(name)));
    }
    set(parameters[i]->symbol, std::move(given[i]));
  }
  Flow flow = Flow::kNext;
  Value text = capture(macro.node.branches[0].body, scope, flow);
  scope_ = around;
  offset_ = called_at;
  return text;
}

// Whether there is an item after the current one, which is taken in advance.
bool Interpreter::peek(Loop& loop) {
  const Values& items = items_of(loop.items);
  while (loop.after.is_missing() && loop.next < items.size()) {
    const Value& item = items[loop.next++];
    if (loop.test != nullptr) {
      budget_.step();
      Scope local{loop.around, {}};
      Scope* const around = std::exchange(scope_, &local);
      assign(*loop.node.target, item);
      const bool passes = is_truthy(evaluate(*loop.test));
      scope_ = around;
      if (!passes) continue;
    }
    loop.after = item;
  }
  return !loop.after.is_missing();
}

bool Interpreter::advance(Loop& loop) {
  if (!peek(loop)) return false;
  ++loop.index;
  loop.before = std::move(loop.current);
  loop.current = std::exchange(loop.after, Value());
  return true;
}

Value Interpreter::loop_attribute(Loop& loop, std::string_view name) {
  if (name == "index") return Value::integer(loop.index);
  if (name == "index0") return Value::integer(loop.index - 1);
  if (name == "first") return Value::boolean(loop.index == 1);
  if (name == "last") return Value::boolean(!peek(loop));
  if (name == "depth") return Value::integer(int64_t{1});
  if (name == "depth0") return Value::integer(int64_t{0});
  if (name == "previtem") {
    return loop.index > 1 ? loop.before : make_undefined(budget_, "there is no previous item");
  }
  if (name == "nextitem") {
    return peek(loop) ? loop.after : make_undefined(budget_, "there is no next item");
  }
  if (name != "length" && name != "revindex" && name != "revindex0") return {};
  if (loop.test != nullptr) {
    // The items that pass have to be found to be counted.
    Values rest;
    while (peek(loop)) rest.push_back(std::exchange(loop.after, Value()));
    loop.items = make_list(budget_, std::move(rest));
    loop.next = 0;
    loop.test = nullptr;
  }
  const size_t length = loop.length();
  return Value::integer(name == "length"     ? length
                        : name == "revindex" ? length - loop.index + 1
                                             : length - loop.index);
}

}  // namespace nanovllm::jinja
