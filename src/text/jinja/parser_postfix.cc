// What follows a primary expression: attributes, items, calls, filters and tests.
#include "text/jinja/builtins.h"
#include "text/jinja/error.h"
#include "text/jinja/parser.h"

namespace nanovllm::jinja {

ExprPtr Parser::parse_postfix(ExprPtr node) {
  for (;;) {
    if (at(TokenType::kDot) || at(TokenType::kLeftBracket)) {
      node = parse_subscript(std::move(node));
    } else if (at(TokenType::kLeftParen)) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr Parser::parse_filters_and_tests(ExprPtr node) {
  for (;;) {
    if (at(TokenType::kPipe)) {
      node = parse_filter(std::move(node), false);
    } else if (at_name("is")) {
      node = parse_test(std::move(node));
    } else if (at(TokenType::kLeftParen)) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr Parser::parse_subscript(ExprPtr object) {
  const Token& token = advance();
  if (token.type == TokenType::kDot) {
    const Token& name = advance();
    if (name.type == TokenType::kName) {
      auto node = std::make_unique<Attribute>(token.offset);
      node->object = std::move(object);
      node->name = constant(name.text);
      nest(*node, node->object);
      return node;
    }
    if (name.type != TokenType::kInteger) fail_at(name.offset, "expected name or number");
    auto node = std::make_unique<Item>(token.offset);
    node->object = std::move(object);
    node->index = std::make_unique<Const>(name.offset, Value::unsigned_integer(name.integer));
    nest(*node, node->object);
    return node;
  }
  auto node = std::make_unique<Item>(token.offset);
  node->object = std::move(object);
  ExprList indices;
  while (!at(TokenType::kRightBracket)) {
    if (!indices.empty()) expect(TokenType::kComma);
    indices.push_back(parse_index());
  }
  expect(TokenType::kRightBracket);
  if (indices.size() == 1) {
    node->index = std::move(indices.front());
  } else {
    auto tuple = std::make_unique<Sequence>(ExprKind::kTuple, token.offset);
    tuple->items = std::move(indices);
    for (const ExprPtr& index : tuple->items) {
      if (index->kind == ExprKind::kSlice) fail_at(index->offset, "a slice must stand alone");
      nest(*tuple, index);
    }
    node->index = std::move(tuple);
  }
  nest(*node, node->object);
  nest(*node, node->index);
  return node;
}

// An index or a slice.
ExprPtr Parser::parse_index() {
  const uint32_t offset = current().offset;
  ExprPtr first;
  if (!at(TokenType::kColon)) {
    first = parse_expression();
    if (!at(TokenType::kColon)) return first;
  }
  auto slice = std::make_unique<Slice>(offset);
  slice->start = std::move(first);
  const auto ends = [&] {
    return at(TokenType::kColon) || at(TokenType::kRightBracket) || at(TokenType::kComma);
  };
  expect(TokenType::kColon);
  if (!ends()) slice->stop = parse_expression();
  if (skip(TokenType::kColon) && !at(TokenType::kRightBracket) && !at(TokenType::kComma)) {
    slice->step = parse_expression();
  }
  nest(*slice, slice->start);
  nest(*slice, slice->stop);
  nest(*slice, slice->step);
  return slice;
}

CallArguments Parser::parse_arguments() {
  const uint32_t offset = expect(TokenType::kLeftParen).offset;
  CallArguments arguments;
  const auto require = [&](bool is_valid) {
    if (!is_valid) fail_at(offset, "invalid syntax for function call expression");
  };
  bool needs_comma = false;
  while (!at(TokenType::kRightParen)) {
    if (needs_comma) {
      expect(TokenType::kComma);
      if (at(TokenType::kRightParen)) break;
    }
    needs_comma = true;
    if (skip(TokenType::kMul)) {
      require(arguments.more_positional == nullptr && arguments.more_named == nullptr);
      arguments.more_positional = parse_expression();
    } else if (skip(TokenType::kPow)) {
      require(arguments.more_named == nullptr);
      arguments.more_named = parse_expression();
    } else if (at(TokenType::kName) && ahead().type == TokenType::kAssign) {
      require(arguments.more_named == nullptr);
      Value name = constant(advance().text);
      advance();
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else {
      require(arguments.more_positional == nullptr && arguments.more_named == nullptr &&
              arguments.named.empty());
      arguments.positional.push_back(parse_expression());
    }
  }
  expect(TokenType::kRightParen);
  return arguments;
}

ExprPtr Parser::parse_call(ExprPtr callee) {
  auto node = std::make_unique<Call>(current().offset);
  node->callee = std::move(callee);
  node->arguments = parse_arguments();
  nest(*node, node->callee);
  nest(*node, node->arguments);
  return node;
}

std::string Parser::parse_dotted_name() {
  std::string name = expect(TokenType::kName).text;
  while (skip(TokenType::kDot)) name += "." + expect(TokenType::kName).text;
  return name;
}

// A chain of filters. `starts_with_name`: the first one has no '|' before it ({% filter x %}).
ExprPtr Parser::parse_filter(ExprPtr operand, bool starts_with_name) {
  while (at(TokenType::kPipe) || starts_with_name) {
    if (!starts_with_name) advance();
    starts_with_name = false;
    auto node = std::make_unique<FilterOrTest>(ExprKind::kFilter, current().offset);
    node->operand = std::move(operand);
    node->name = parse_dotted_name();
    node->builtin = find_filter(node->name);
    if (at(TokenType::kLeftParen)) node->arguments = parse_arguments();
    nest(*node, node->operand);
    nest(*node, node->arguments);
    operand = std::move(node);
  }
  return operand;
}

ExprPtr Parser::parse_test(ExprPtr operand) {
  auto node = std::make_unique<FilterOrTest>(ExprKind::kTest, advance().offset);
  const bool is_negated = skip_name("not");
  node->operand = std::move(operand);
  node->name = parse_dotted_name();
  node->builtin = find_test(node->name);
  const auto starts_argument = [&] {
    switch (current().type) {
      case TokenType::kName:
        return !at_name("else") && !at_name("or") && !at_name("and");
      case TokenType::kString:
      case TokenType::kInteger:
      case TokenType::kFloat:
      case TokenType::kLeftBracket:
      case TokenType::kLeftBrace:
        return true;
      default:
        return false;
    }
  };
  if (at(TokenType::kLeftParen)) {
    node->arguments = parse_arguments();
  } else if (starts_argument()) {
    if (at_name("is")) fail_at(current().offset, "You cannot chain multiple tests with is");
    node->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  nest(*node, node->operand);
  nest(*node, node->arguments);
  if (!is_negated) return node;
  auto negated = std::make_unique<Unary>(ExprKind::kNot, node->offset);
  negated->operand = std::move(node);
  nest(*negated, negated->operand);
  return negated;
}

}  // namespace nanovllm::jinja
