// What follows a primary expression: attributes, items, calls, filters and tests.
#include "text/jinja/parser.h"

namespace nanovllm::jinja {

ExprPtr Parser::parse_postfix(ExprPtr expr, bool with_filter) {
  bool has_filter = false;
  for (;;) {
    if (at("(")) {
      expr = parse_call(std::move(expr));
    } else if (!has_filter && (at(".") || at("["))) {
      expr = parse_subscript(std::move(expr));
    } else if (with_filter && (at("|") || at("is"))) {
      has_filter = true;
      expr = skip("|") ? parse_filter(std::move(expr)) : parse_test(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr Parser::parse_subscript(ExprPtr object) {
  const Token& token = advance();
  if (token.text == ".") {
    const Token& name = advance();
    const bool is_name = name.type == TokenType::kName;
    if (!is_name && !name.number.is_integer()) fail_at(name.offset, "expected name or number");
    ExprPtr access = node(is_name ? ExprKind::kAttribute : ExprKind::kItem, token.offset);
    add(*access, std::move(object));
    if (is_name) {
      access->value = constant(name.text);
    } else {
      add(*access, node(ExprKind::kConst, name.offset));
      access->parts[1]->value = name.number;
    }
    return access;
  }
  ExprPtr item = node(ExprKind::kItem, token.offset);
  add(*item, std::move(object));
  if (!at(":")) add(*item, parse_expression());
  if (at(":")) {
    item->kind = ExprKind::kSlice;
    item->parts.resize(2);
    for (int i = 0; i < 2; ++i) {
      const bool has_colon = skip(":");
      add(*item, has_colon && !at(":") && !at("]") ? parse_expression() : nullptr);
    }
  }
  if (at(",") && item->kind == ExprKind::kItem) {
    refuse(current().offset, "an index of several items, as in", "x[1, 2]");
  }
  expect("]");
  return item;
}

void Parser::parse_arguments(Expr& call) {
  expect("(");
  bool has_spread = false;
  while (!at(")")) {
    if (at("**")) refuse(current().offset, "the argument", "**kwargs");
    const bool is_named = at(TokenType::kName) && is(ahead(), "=");
    if (at("*")) {
      ExprPtr spread = node(ExprKind::kSpread, advance().offset);
      add(*spread, parse_expression());
      add(call, std::move(spread));
      has_spread = true;
    } else if (is_named) {
      if (call.named.size() >= kMaxNamed) fail_here("a call has {} names at most", kMaxNamed);
      Value name = constant(advance().text);
      advance();
      for (const auto& [other, value] : call.named) {
        if (text_of(other) == text_of(name)) fail_here("keyword argument repeated");
      }
      call.named.emplace_back(std::move(name), parse_expression());
      nest(call, call.named.back().second);
    } else if (has_spread || !call.named.empty()) {
      fail_here("invalid syntax for function call expression");
    } else {
      add(call, parse_expression());
    }
    if (!at(")")) expect(",");
  }
  expect(")");
}

ExprPtr Parser::parse_call(ExprPtr callee) {
  ExprPtr call = node(ExprKind::kCall, current().offset);
  if (callee->kind == ExprKind::kAttribute &&
      is_refused(Refused::kMethod, text_of(callee->value))) {
    refuse(callee->offset, "the method", text_of(callee->value));
  }
  add(*call, std::move(callee));
  parse_arguments(*call);
  return call;
}

// From behind the '|'.
ExprPtr Parser::parse_filter(ExprPtr operand) {
  const Token& name = expect(TokenType::kName);
  if (is_refused(Refused::kFilter, name.text)) refuse(name.offset, "the filter", name.text);
  ExprPtr filter = node(ExprKind::kFilter, name.offset);
  filter->value = constant(name.text);
  filter->builtin = find_filter(name.text);
  add(*filter, std::move(operand));
  if (at("(")) parse_arguments(*filter);
  return filter;
}

ExprPtr Parser::parse_test(ExprPtr operand) {
  advance();
  const bool is_negated = skip("not");
  const Token& name = expect(TokenType::kName);
  if (is_refused(Refused::kTest, name.text)) refuse(name.offset, "the test", name.text);
  ExprPtr test = node(ExprKind::kTest, name.offset);
  test->value = constant(name.text);
  test->builtin = find_test(name.text);
  add(*test, std::move(operand));
  const bool starts_argument = at(TokenType::kName) || at(TokenType::kString) ||
                               at(TokenType::kNumber) || at("[") || at("{");
  if (at("(")) {
    parse_arguments(*test);
  } else if (at("is")) {
    fail_here("You cannot chain multiple tests with is");
  } else if (starts_argument && !at("else") && !at("or") && !at("and")) {
    add(*test, parse_postfix(parse_primary(), false));
  }
  if (!is_negated) return test;
  ExprPtr negated = node(ExprKind::kNot, test->offset);
  add(*negated, std::move(test));
  return negated;
}

}  // namespace nanovllm::jinja
