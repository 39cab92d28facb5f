// The interpreter's expressions, its calls of macros, functions and methods, and the variable
// `loop`.
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
namespace nanovllm::jinja {

Value Interpreter::evaluate(const Expr& expr) {
  if (expr.kind == ExprKind::kConst) return expr.value;
  if (expr.kind == ExprKind::kName) return evaluate_name(expr);
  budget_.step();
  const Nesting nesting(budget_);
  return evaluate_composite(expr);
}

Value Interpreter::evaluate_name(const Expr& name) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    budget_.work(scope->variables.size() * 4);
    for (const auto& [symbol, value] : scope->variables) {
      if (symbol == name.symbol) return value;
    }
  }
  const auto symbol = static_cast<size_t>(name.symbol);
  if (!globals_[symbol].is_missing()) return globals_[symbol];
  return make<Undefined>(Kind::kUndefined, budget_, nullptr, template_.names[symbol]);
}

Value Interpreter::evaluate_composite(const Expr& expr) {
  const auto part = [&](size_t i) -> const Expr& { return *expr.parts[i]; };
  switch (expr.kind) {
    case ExprKind::kBlockText:
      return std::exchange(block_text_, Value());
    case ExprKind::kTuple:
      return make_tuple(budget_, evaluate_all(expr));
    case ExprKind::kList:
      return make_list(budget_, evaluate_all(expr));
    case ExprKind::kDict:
      return evaluate_dict(expr);
    case ExprKind::kNegate:
    case ExprKind::kPosit: {
      const Value operand = evaluate(part(0));
      offset_ = expr.offset;
      return apply_sign(expr.kind == ExprKind::kNegate, operand);
    }
    case ExprKind::kNot:
      return Value::boolean(!is_truthy(evaluate(part(0))));
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value left = evaluate(part(0));
      return is_truthy(left) == (expr.kind == ExprKind::kOr) ? left : evaluate(part(1));
    }
    case ExprKind::kBinary: {
      Value left = evaluate(part(0));
      const Value right = evaluate(part(1));
      offset_ = expr.offset;
      return apply_binary(budget_, expr.binary_op, std::move(left), right);
    }
    case ExprKind::kConcat:
      return evaluate_concat(expr);
    case ExprKind::kCompare:
      return evaluate_compare(expr);
    case ExprKind::kCondition:
      if (is_truthy(evaluate(part(1)))) return evaluate(part(0));
      if (expr.parts[2] != nullptr) return evaluate(part(2));
      return make_undefined(
          budget_, "the inline if-expression evaluated to false and no else section was defined.");
    case ExprKind::kFilter:
    case ExprKind::kTest:
      return evaluate_filter_or_test(expr);
    case ExprKind::kCall:
      return evaluate_call(expr);
    case ExprKind::kAttribute: {
      const Value object = evaluate(part(0));
      offset_ = expr.offset;
      return get_attribute(object, expr.value);
    }
    case ExprKind::kItem: {
      const Value object = evaluate(part(0));
      const Value index = evaluate(part(1));
      offset_ = expr.offset;
      return get_item(object, index);
    }
    case ExprKind::kSlice:
      return evaluate_slice(expr);
    case ExprKind::kConst:
    case ExprKind::kName:
    case ExprKind::kSpread:
      break;
  }
  fail("this expression has no value");
}

Values Interpreter::evaluate_all(const Expr& expr) {
  Values values;
  values.reserve(expr.parts.size());
  for (const ExprPtr& part : expr.parts) values.push_back(part ? evaluate(*part) : Value());
  offset_ = expr.offset;
  return values;
}

Value Interpreter::evaluate_dict(const Expr& expr) {
  Value dict = make_dict(budget_);
  for (size_t i = 0; i < expr.parts.size(); i += 2) {
    Value key = evaluate(*expr.parts[i]);
    Value value = evaluate(*expr.parts[i + 1]);
    offset_ = expr.offset;
    dict.as<Dict>().set(std::move(key), std::move(value));
  }
  return dict;
}

Value Interpreter::evaluate_concat(const Expr& expr) {
  std::string text;
  for (const Value& value : evaluate_all(expr)) {
    append_str(budget_, text, value);
    budget_.expect(text.size());
  }
  return make_string(budget_, std::move(text));
}

Value Interpreter::evaluate_compare(const Expr& expr) {
  Value left = evaluate(*expr.parts[0]);
  for (size_t i = 0; i < expr.compare_ops.size(); ++i) {
    Value right = evaluate(*expr.parts[i + 1]);
    offset_ = expr.offset;
    const CompareOp op = expr.compare_ops[i];
    const bool holds = op == CompareOp::kIn || op == CompareOp::kNotIn
                           ? contains(*this, right, left) == (op == CompareOp::kIn)
                           : compare(budget_, op, left, right);
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate_filter_or_test(const Expr& expr) {
  const Value operand = evaluate(*expr.parts[0]);
  Arguments arguments;
  evaluate_arguments(expr, arguments);
  offset_ = expr.offset;
  if (expr.builtin != nullptr) return invoke(*this, *expr.builtin, operand, arguments);
  fail("No {} named '{}' found.", expr.kind == ExprKind::kFilter ? "filter" : "test",
       text_of(expr.value));
}

void Interpreter::evaluate_arguments(const Expr& call, Arguments& arguments) {
  arguments.positional.reserve(call.parts.size() - 1);
  for (size_t i = 1; i < call.parts.size(); ++i) {
    const Expr& part = *call.parts[i];
    if (part.kind == ExprKind::kSpread) {
      const Value list = to_list(evaluate(*part.parts[0]));
      arguments.positional.insert(arguments.positional.end(), items_of(list).begin(),
                                  items_of(list).end());
    } else {
      arguments.positional.push_back(evaluate(part));
    }
  }
  for (const auto& [name, part] : call.named) arguments.named.emplace_back(name, evaluate(*part));
}

const Builtin& Interpreter::find_named(Refused what, const Value& name) {
  const char* kind = what == Refused::kFilter ? "filter" : "test";
  const std::string text = to_str(budget_, name);
  if (is_refused(what, text)) fail("the {} '{}' is not supported", kind, text);
  const Builtin* found = what == Refused::kFilter ? find_filter(text) : find_test(text);
  if (found == nullptr) fail("No {} named '{}'.", kind, text);
  return *found;
}

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
      fail("'{}' object is not callable", type_name(function));
  }
}

Value Interpreter::call_macro(const Macro& macro, Arguments& arguments) {
  budget_.step();
  const Nesting nesting(budget_);
  const uint32_t called_at = offset_;
  const auto& parameters = macro.node.items;
  const auto name_of = [&](int symbol) -> std::string_view {
    return text_of(template_.names[static_cast<size_t>(symbol)]);
  };
  std::vector<std::string_view> names;
  names.reserve(parameters.size());
  for (const ExprPtr& parameter : parameters) names.push_back(name_of(parameter->symbol));
  bind_arguments(name_of(macro.node.symbol), names, arguments);
  Scope* const around = scope_;
  Scope local{macro.parent, {}};
  Scope& scope = enter(macro.node.has_macros, local);
  const size_t required = parameters.size() - macro.node.defaults.size();
  for (size_t i = 0; i < parameters.size(); ++i) {
    Value& given = arguments.positional[i];
    if (given.is_missing() && i >= required) {
      given = evaluate(*macro.node.defaults[i - required]);
    } else if (given.is_missing()) {
      given = make_undefined(budget_, fmt::format("parameter '{}' was not provided", names[i]));
    }
    set(parameters[i]->symbol, std::move(given));
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
  const size_t length =
      loop.index + (loop.after.is_missing() ? 0 : 1) + items_of(loop.items).size() - loop.next;
  return Value::integer(name == "length"     ? length
                        : name == "revindex" ? length - loop.index + 1
                                             : length - loop.index);
}

}  // namespace nanovllm::jinja
