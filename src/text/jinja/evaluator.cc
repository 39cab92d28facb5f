// The interpreter's expressions.
#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"

namespace nanovllm::jinja {

Value Interpreter::evaluate(const Expr& expr) {
  if (expr.kind == ExprKind::kConst) return static_cast<const Const&>(expr).value;
  if (expr.kind == ExprKind::kName) return evaluate_name(static_cast<const Name&>(expr));
  budget_.step();
  const Nesting nesting(budget_);
  offset_ = expr.offset;
  return evaluate_composite(expr);
}

Value Interpreter::evaluate_name(const Name& name) {
  const Value& value = slot(name.ref);
  if (!value.is_missing()) return value;
  return make_undefined(budget_, name.name);
}

Value Interpreter::evaluate_composite(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kTuple:
      return make_tuple(budget_, evaluate_all(static_cast<const Sequence&>(expr).items));
    case ExprKind::kList:
      return make_list(budget_, evaluate_all(static_cast<const Sequence&>(expr).items));
    case ExprKind::kDict:
      return evaluate_dict(static_cast<const DictLiteral&>(expr));
    case ExprKind::kNegate:
    case ExprKind::kPosit: {
      const Value operand = evaluate(*static_cast<const Unary&>(expr).operand);
      offset_ = expr.offset;
      return expr.kind == ExprKind::kNegate ? negate(operand) : posit(operand);
    }
    case ExprKind::kNot:
      return Value::boolean(!is_truthy(evaluate(*static_cast<const Unary&>(expr).operand)));
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      const auto& node = static_cast<const Binary&>(expr);
      Value left = evaluate(*node.left);
      if (is_truthy(left) == (expr.kind == ExprKind::kOr)) return left;
      return evaluate(*node.right);
    }
    case ExprKind::kBinary: {
      const auto& node = static_cast<const Binary&>(expr);
      Value left = evaluate(*node.left);
      const Value right = evaluate(*node.right);
      offset_ = expr.offset;
      return apply_binary(*this, node.op, std::move(left), right);
    }
    case ExprKind::kConcat:
      return evaluate_concat(static_cast<const Sequence&>(expr));
    case ExprKind::kCompare:
      return evaluate_compare(static_cast<const Compare&>(expr));
    case ExprKind::kCondition: {
      const auto& node = static_cast<const Condition&>(expr);
      if (is_truthy(evaluate(*node.test))) return evaluate(*node.then);
      if (node.otherwise != nullptr) return evaluate(*node.otherwise);
      return make_undefined(budget_,
                            "the inline if-expression evaluated to false and no else section was "
                            "defined.",
                            "");
    }
    case ExprKind::kFilter:
      return evaluate_filter(static_cast<const FilterOrTest&>(expr));
    case ExprKind::kTest:
      return evaluate_test(static_cast<const FilterOrTest&>(expr));
    case ExprKind::kCall:
      return evaluate_call(static_cast<const Call&>(expr), nullptr);
    case ExprKind::kAttribute: {
      const auto& node = static_cast<const Attribute&>(expr);
      const Value object = evaluate(*node.object);
      offset_ = expr.offset;
      return get_attribute(object, node.name);
    }
    case ExprKind::kItem:
      return evaluate_item(static_cast<const Item&>(expr));
    default:
      fail(Fault::kSyntax, "this expression has no value");
  }
}

Values Interpreter::evaluate_all(const ExprList& list) {
  Values values;
  values.reserve(list.size());
  for (const ExprPtr& expr : list) values.push_back(evaluate(*expr));
  return values;
}

Value Interpreter::evaluate_dict(const DictLiteral& node) {
  Value dict = make_dict(budget_);
  for (const auto& [key_expr, value_expr] : node.items) {
    Value key = evaluate(*key_expr);
    Value value = evaluate(*value_expr);
    offset_ = key_expr->offset;
    dict.as<Dict>().set(std::move(key), std::move(value));
  }
  return dict;
}

Value Interpreter::evaluate_concat(const Sequence& node) {
  const Values values = evaluate_all(node.items);
  offset_ = node.offset;
  // With autoescape, one part that is HTML makes the whole HTML (markupsafe's markup_join).
  bool markup = false;
  if (autoescape_) {
    for (const Value& value : values) markup |= is_markup(value);
  }
  std::string text;
  for (const Value& value : values) {
    if (markup) {
      text += text_of(escape(budget_, value));
    } else {
      append_str(budget_, text, value);
    }
    budget_.expect(text.size());
  }
  budget_.work(text.size());
  return make_string(budget_, std::move(text), markup);
}

Value Interpreter::evaluate_compare(const Compare& node) {
  Value left = evaluate(*node.first);
  for (const auto& [op, expr] : node.rest) {
    Value right = evaluate(*expr);
    offset_ = node.offset;
    bool holds = false;
    if (op == CompareOp::kIn || op == CompareOp::kNotIn) {
      holds = contains(*this, right, left) == (op == CompareOp::kIn);
    } else {
      holds = compare(budget_, op, left, right);
    }
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate_filter(const FilterOrTest& node) {
  const Value operand =
      node.operand == nullptr ? std::exchange(filter_input_, Value()) : evaluate(*node.operand);
  Arguments arguments;
  evaluate_arguments(node.arguments, arguments);
  offset_ = node.offset;
  if (node.builtin == nullptr) fail(Fault::kRuntime, "No filter named '{}' found.", node.name);
  return node.builtin->call(*this, operand, arguments);
}

Value Interpreter::evaluate_test(const FilterOrTest& node) {
  const Value operand = evaluate(*node.operand);
  Arguments arguments;
  evaluate_arguments(node.arguments, arguments);
  offset_ = node.offset;
  if (node.builtin == nullptr) fail(Fault::kRuntime, "No test named '{}' found.", node.name);
  return node.builtin->call(*this, operand, arguments);
}

// `caller`: the body of a call block, or null.
Value Interpreter::evaluate_call(const Call& node, const Value* caller) {
  const auto finish_arguments = [&](Arguments& arguments) {
    evaluate_arguments(node.arguments, arguments);
    if (caller != nullptr) {
      arguments.named.emplace_back(make_string(budget_, "caller"), *caller);
    }
    offset_ = node.offset;
  };
  Arguments arguments;
  if (node.callee->kind == ExprKind::kAttribute) {
    // A method is called without being made a value first.
    const auto& attribute = static_cast<const Attribute&>(*node.callee);
    const Value object = evaluate(*attribute.object);
    offset_ = attribute.offset;
    if (const Builtin* method = find_method(object, text_of(attribute.name))) {
      finish_arguments(arguments);
      return method->call(*this, object, arguments);
    }
    const Value callee = get_attribute(object, attribute.name);
    finish_arguments(arguments);
    return call(callee, arguments);
  }
  const Value callee = evaluate(*node.callee);
  finish_arguments(arguments);
  return call(callee, arguments);
}

void Interpreter::evaluate_arguments(const CallArguments& from, Arguments& to) {
  to.positional.reserve(from.positional.size());
  for (const ExprPtr& expr : from.positional) to.positional.push_back(evaluate(*expr));
  if (from.more_positional != nullptr) {
    for_each(evaluate(*from.more_positional), [&](const Value& item) {
      to.positional.push_back(item);
      budget_.expect(to.positional.size() * sizeof(Value));
      return true;
    });
  }
  for (const auto& [name, expr] : from.named) to.named.emplace_back(name, evaluate(*expr));
  if (from.more_named != nullptr) add_named_arguments(evaluate(*from.more_named), to);
}

void Interpreter::add_named_arguments(const Value& mapping, Arguments& to) {
  if (!mapping.is(Kind::kDict)) {
    fail(Fault::kType, "the argument after ** must be a mapping, not '{}'", type_name(mapping));
  }
  for (const Dict::Entry& entry : mapping.as<Dict>().entries()) {
    budget_.step();
    if (!entry.key.is_string()) fail(Fault::kType, "keywords must be strings");
    if (to.find(text_of(entry.key)) != nullptr) {
      fail(Fault::kType, "multiple values for the keyword argument '{}'", text_of(entry.key));
    }
    to.named.emplace_back(entry.key, entry.value);
  }
}

Value Interpreter::evaluate_item(const Item& node) {
  const Value object = evaluate(*node.object);
  if (node.index->kind == ExprKind::kSlice) {
    return evaluate_slice(object, static_cast<const Slice&>(*node.index));
  }
  const Value index = evaluate(*node.index);
  offset_ = node.offset;
  return get_item(object, index);
}

}  // namespace nanovllm::jinja
