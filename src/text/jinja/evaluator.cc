// The interpreter's expressions.
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/refused.h"

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
      if (object.is(Kind::kDict) && !expr.is_special) {
        const Value* value = object.as<Dict>().find(expr.value);
        return value != nullptr ? *value : undefined_item(object, expr.value);
      }
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
    default:
      fail(Fault::kSyntax, "this expression has no value");
  }
}

Values Interpreter::evaluate_all(const Expr& expr) {
  Values values;
  values.reserve(expr.parts.size());
  for (const ExprPtr& part : expr.parts) values.push_back(evaluate(*part));
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
  budget_.work(text.size());
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
  if (expr.builtin == nullptr) {
    fail(Fault::kRuntime, "No {} named '{}' found.",
         expr.kind == ExprKind::kFilter ? "filter" : "test", text_of(expr.value));
  }
  return invoke(*this, *expr.builtin, operand, arguments);
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

Value Interpreter::call_filter(const Value& name, const Value& value, Arguments arguments) {
  const Builtin* filter = name.is_string() ? find_filter(text_of(name)) : nullptr;
  if (name.is_string() && is_refused(Refused::kFilter, text_of(name))) {
    fail(Fault::kUnsupported, "the filter '{}' is not supported", text_of(name));
  }
  if (filter == nullptr) fail(Fault::kRuntime, "No filter named {}.", to_repr(budget_, name));
  return invoke(*this, *filter, value, arguments);
}

bool Interpreter::call_test(const Value& name, const Value& value, Arguments arguments) {
  const Builtin* test = name.is_string() ? find_test(text_of(name)) : nullptr;
  if (test == nullptr) fail(Fault::kRuntime, "No test named {}.", to_repr(budget_, name));
  return is_truthy(invoke(*this, *test, value, arguments));
}

}  // namespace nanovllm::jinja
