// From the operators down to names and literals; what follows those is in parser_postfix.cc.
#include <algorithm>
#include <iterator>
#include <utility>

#include "text/jinja/parser.h"

namespace nanovllm::jinja {

Value Parser::constant(std::string text) {
  auto object = std::make_unique<String>(nullptr, std::move(text), false);
  Value value = Value::object(Kind::kString, object.get());
  template_.constants.push_back(std::move(object));
  return value;
}

int Parser::symbol(const std::string& name) {
  const auto [found, is_new] = symbols_.try_emplace(name, static_cast<int>(symbols_.size()));
  if (is_new) {
    template_.names.push_back(constant(name));
    is_assigned_.push_back(false);
  }
  return found->second;
}

ExprPtr Parser::make_name(const Token& token) {
  ExprPtr name = node(ExprKind::kName, token.offset);
  name->symbol = symbol(token.text);
  num_loop_names_ += token.text == "loop" ? 1 : 0;
  if (is_refused(Refused::kName, token.text)) suspicious_.emplace_back(name->symbol, token.offset);
  return name;
}

void Parser::check_depth(const Expr& parent, size_t depth) {
  if (depth > kMaxExpressionDepth) {
    fail_at(parent.offset, "expressions nest deeper than the {} levels allowed",
            kMaxExpressionDepth);
  }
}

void Parser::nest(Expr& parent, const ExprPtr& child) {
  if (child == nullptr || child->depth < parent.depth) return;
  parent.depth = static_cast<uint16_t>(child->depth + 1);
  check_depth(parent, parent.depth);
}

void Parser::add(Expr& parent, ExprPtr child) {
  nest(parent, child);
  parent.parts.push_back(std::move(child));
}

ExprPtr Parser::parse_expression(bool with_condition) {
  check_depth(Expr(ExprKind::kConst, current().offset), ++expression_depth_);
  ExprPtr expr = with_condition ? parse_condition() : parse_binary(0);
  --expression_depth_;
  return expr;
}

ExprPtr Parser::parse_condition() {
  ExprPtr expr = parse_binary(0);
  while (at("if")) {
    ExprPtr condition = node(ExprKind::kCondition, advance().offset);
    add(*condition, std::move(expr));
    add(*condition, parse_binary(0));
    add(*condition, skip("else") ? parse_expression() : nullptr);
    expr = std::move(condition);
  }
  return expr;
}

namespace {

// Operators that bind to the left, from those that bind least.
struct BinaryOperator {
  size_t level;
  std::string_view text;
  ExprKind kind;
  BinaryOp op = {};
};
constexpr BinaryOperator kBinaryOperators[] = {
    {0, "or", ExprKind::kOr},
    {1, "and", ExprKind::kAnd},
    {2, "+", ExprKind::kBinary, BinaryOp::kAdd},
    {2, "-", ExprKind::kBinary, BinaryOp::kSub},
    {3, "*", ExprKind::kBinary, BinaryOp::kMul},
    {3, "/", ExprKind::kBinary, BinaryOp::kDiv},
    {3, "//", ExprKind::kBinary, BinaryOp::kFloorDiv},
    {3, "%", ExprKind::kBinary, BinaryOp::kMod},
    {4, "**", ExprKind::kBinary, BinaryOp::kPow},
};
constexpr size_t kSumLevel = 2, kProductLevel = 3, kPowerLevel = 4;

constexpr std::pair<std::string_view, CompareOp> kComparisons[] = {
    {"==", CompareOp::kEq}, {"!=", CompareOp::kNe}, {"<", CompareOp::kLt}, {"<=", CompareOp::kLe},
    {">", CompareOp::kGt},  {">=", CompareOp::kGe}, {"in", CompareOp::kIn}};

}  // namespace

ExprPtr Parser::parse_binary(size_t level) {
  const auto operand = [&] {
    return level == 0               ? parse_binary(1)
           : level == 1             ? parse_not()
           : level == kSumLevel     ? parse_concat()
           : level == kProductLevel ? parse_binary(kPowerLevel)
                                    : parse_unary();
  };
  ExprPtr left = operand();
  for (;;) {
    const auto* found =
        std::ranges::find_if(kBinaryOperators, [&](const BinaryOperator& candidate) {
          return candidate.level == level && at(candidate.text);
        });
    if (found == std::end(kBinaryOperators)) return left;
    ExprPtr binary = node(found->kind, advance().offset);
    binary->binary_op = found->op;
    if (found->op == BinaryOp::kMod && left->value.is_string() && left->kind == ExprKind::kConst) {
      offset_ = binary->offset;
      fail("the operator '%' of strings is not supported");
    }
    add(*binary, std::move(left));
    add(*binary, operand());
    left = std::move(binary);
  }
}

ExprPtr Parser::parse_prefix(ExprKind kind, ExprPtr (Parser::*parse_operand)()) {
  ExprPtr prefix = node(kind, advance().offset);
  check_depth(*prefix, ++expression_depth_);
  add(*prefix, (this->*parse_operand)());
  --expression_depth_;
  return prefix;
}

ExprPtr Parser::parse_not() {
  return at("not") ? parse_prefix(ExprKind::kNot, &Parser::parse_not) : parse_compare();
}

ExprPtr Parser::parse_compare() {
  ExprPtr first = parse_binary(kSumLevel);
  ExprPtr comparison;
  for (;;) {
    const uint32_t offset = current().offset;
    const bool is_negated = at("not") && is(ahead(), "in");
    if (is_negated) advance();
    const auto* found = std::ranges::find_if(
        kComparisons, [&](const auto& candidate) { return at(candidate.first); });
    if (found == std::end(kComparisons)) {
      return comparison ? std::move(comparison) : std::move(first);
    }
    advance();
    if (comparison == nullptr) {
      comparison = node(ExprKind::kCompare, offset);
      add(*comparison, std::move(first));
    }
    comparison->compare_ops.push_back(is_negated ? CompareOp::kNotIn : found->second);
    add(*comparison, parse_binary(kSumLevel));
  }
}

ExprPtr Parser::parse_concat() {
  ExprPtr first = parse_binary(kProductLevel);
  if (!at("~")) return first;
  ExprPtr concat = node(ExprKind::kConcat, current().offset);
  add(*concat, std::move(first));
  while (skip("~")) add(*concat, parse_binary(kProductLevel));
  return concat;
}

ExprPtr Parser::parse_unary() { return parse_postfix(parse_sign(), true); }
ExprPtr Parser::parse_signed() { return parse_postfix(parse_sign(), false); }

ExprPtr Parser::parse_sign() {
  if (at("-")) return parse_prefix(ExprKind::kNegate, &Parser::parse_signed);
  return at("+") ? parse_prefix(ExprKind::kPosit, &Parser::parse_signed) : parse_primary();
}

ExprPtr Parser::parse_primary() {
  const Token& token = current();
  ExprPtr literal = node(ExprKind::kConst, token.offset);
  switch (token.type) {
    case TokenType::kName: {
      advance();
      const std::string& name = token.text;
      if (name == "true" || name == "True" || name == "false" || name == "False") {
        literal->value = Value::boolean(name == "true" || name == "True");
        return literal;
      }
      if (name != "none" && name != "None") return make_name(token);
      literal->value = Value::none();
      return literal;
    }
    case TokenType::kString: {
      std::string text;
      while (at(TokenType::kString)) text += advance().text;
      literal->value = constant(std::move(text));
      return literal;
    }
    case TokenType::kNumber:
      literal->value = advance().number;
      return literal;
    default:
      break;
  }
  if (skip("(")) {
    ExprPtr inner = parse_tuple(true);
    expect(")");
    return inner;
  }
  if (at("[")) return parse_items(ExprKind::kList, "]");
  if (at("{")) return parse_items(ExprKind::kDict, "}");
  fail_at(token.offset, "unexpected '{}'", describe(token));
}

ExprPtr Parser::parse_items(ExprKind kind, std::string_view close) {
  ExprPtr items = node(kind, advance().offset);
  while (!at(close)) {
    if (!items->parts.empty()) expect(",");
    if (at(close)) break;
    add(*items, parse_expression());
    if (kind != ExprKind::kDict) continue;
    expect(":");
    add(*items, parse_expression());
  }
  expect(close);
  return items;
}

// A tuple, or an expression that no comma follows.
ExprPtr Parser::parse_tuple(bool parenthesized, bool with_condition) {
  ExprPtr tuple = node(ExprKind::kTuple, current().offset);
  bool is_tuple = false;
  for (;;) {
    if (!tuple->parts.empty()) expect(",");
    if (at(TokenType::kVariableEnd) || at(TokenType::kBlockEnd) || at(")")) break;
    add(*tuple, parse_expression(with_condition));
    if (!at(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return tuple;
  if (!tuple->parts.empty()) return std::move(tuple->parts.front());
  if (parenthesized) return tuple;
  fail_here("Expected an expression, got '{}'", describe(current()));
}

// A name, a tuple of targets, or an attribute of a namespace.
ExprPtr Parser::parse_target(bool with_namespace) {
  ExprPtr tuple = node(ExprKind::kTuple, current().offset);
  add(*tuple, parse_target_item(with_namespace));
  if (!at(",")) return std::move(tuple->parts.front());
  while (skip(",")) add(*tuple, parse_target_item(with_namespace));
  return tuple;
}

ExprPtr Parser::parse_target_item(bool with_namespace) {
  const Token& first = current();
  ExprPtr item = parse_primary();
  if (with_namespace && at(".")) item = parse_subscript(std::move(item));
  check_target(*item, with_namespace, first);
  return item;
}

// `first`: its first token, for messages.
void Parser::check_target(const Expr& target, bool with_namespace, const Token& first) {
  if (target.kind == ExprKind::kTuple) {
    for (const ExprPtr& part : target.parts) check_target(*part, false, first);
    return;
  }
  const bool is_attribute = with_namespace && target.kind == ExprKind::kAttribute;
  if (is_attribute && target.parts[0]->kind == ExprKind::kName) return;
  if (target.kind != ExprKind::kName) {
    fail_at(target.offset, "can't assign to '{}'", describe(first));
  }
  const auto symbol = static_cast<size_t>(target.symbol);
  if (text_of(template_.names[symbol]) == "loop" &&
      std::count(open_tags_.begin(), open_tags_.end(), "for") > 0) {
    fail_at(target.offset, "can't assign to the special variable 'loop' in a loop");
  }
  is_assigned_[symbol] = true;
}

}  // namespace nanovllm::jinja
