#include "text/jinja/builtins.h"
#include "text/jinja/error.h"
#include "text/jinja/parser.h"

namespace nanovllm::jinja {
namespace {

BinaryOp binary_op(TokenType type) {
  switch (type) {
    case TokenType::kAdd:
      return BinaryOp::kAdd;
    case TokenType::kSub:
      return BinaryOp::kSub;
    case TokenType::kMul:
      return BinaryOp::kMul;
    case TokenType::kDiv:
      return BinaryOp::kDiv;
    case TokenType::kFloorDiv:
      return BinaryOp::kFloorDiv;
    case TokenType::kMod:
      return BinaryOp::kMod;
    default:
      return BinaryOp::kPow;
  }
}

const char* node_name(ExprKind kind) {
  switch (kind) {
    case ExprKind::kConst:
      return "const";
    case ExprKind::kList:
      return "list";
    case ExprKind::kDict:
      return "dict";
    case ExprKind::kTuple:
      return "tuple";
    case ExprKind::kAttribute:
      return "getattr";
    case ExprKind::kItem:
      return "getitem";
    case ExprKind::kCall:
      return "call";
    case ExprKind::kFilter:
      return "filter";
    case ExprKind::kTest:
      return "test";
    default:
      return "expression";
  }
}

}  // namespace

Value Parser::constant(std::string text) {
  auto object = std::make_unique<String>(nullptr, std::move(text), false);
  Value value = Value::object(Kind::kString, object.get());
  template_.constants.push_back(std::move(object));
  return value;
}

void Parser::nest(Expr& parent, const ExprPtr& child) {
  if (child == nullptr || child->depth < parent.depth) return;
  parent.depth = static_cast<uint16_t>(child->depth + 1);
  if (parent.depth > kMaxExpressionDepth) {
    fail_at(parent.offset, "expressions nest deeper than the {} levels allowed",
            kMaxExpressionDepth);
  }
}

void Parser::nest(Expr& parent, const CallArguments& arguments) {
  for (const ExprPtr& argument : arguments.positional) nest(parent, argument);
  for (const auto& [name, argument] : arguments.named) nest(parent, argument);
  nest(parent, arguments.more_positional);
  nest(parent, arguments.more_named);
}

ExprPtr Parser::make_binary(ExprKind kind, BinaryOp op, uint32_t offset, ExprPtr left,
                            ExprPtr right) {
  auto node = std::make_unique<Binary>(kind, offset);
  node->op = op;
  node->left = std::move(left);
  node->right = std::move(right);
  nest(*node, node->left);
  nest(*node, node->right);
  return node;
}

ExprPtr Parser::parse_expression(bool with_condition) {
  if (++expression_depth_ > kMaxExpressionDepth) {
    fail_at(current().offset, "expressions nest deeper than the {} levels allowed",
            kMaxExpressionDepth);
  }
  ExprPtr node = with_condition ? parse_condition() : parse_or();
  --expression_depth_;
  return node;
}

ExprPtr Parser::parse_condition() {
  ExprPtr expr = parse_or();
  while (at_name("if")) {
    auto node = std::make_unique<Condition>(advance().offset);
    node->then = std::move(expr);
    node->test = parse_or();
    if (skip_name("else")) node->otherwise = parse_expression();
    nest(*node, node->then);
    nest(*node, node->test);
    nest(*node, node->otherwise);
    expr = std::move(node);
  }
  return expr;
}

ExprPtr Parser::parse_or() {
  ExprPtr left = parse_and();
  while (at_name("or")) {
    const uint32_t offset = advance().offset;
    left = make_binary(ExprKind::kOr, BinaryOp::kAdd, offset, std::move(left), parse_and());
  }
  return left;
}

ExprPtr Parser::parse_and() {
  ExprPtr left = parse_not();
  while (at_name("and")) {
    const uint32_t offset = advance().offset;
    left = make_binary(ExprKind::kAnd, BinaryOp::kAdd, offset, std::move(left), parse_not());
  }
  return left;
}

ExprPtr Parser::parse_not() {
  std::vector<uint32_t> offsets;
  while (at_name("not")) offsets.push_back(advance().offset);
  ExprPtr node = parse_compare();
  for (; !offsets.empty(); offsets.pop_back()) {
    auto negated = std::make_unique<Unary>(ExprKind::kNot, offsets.back());
    negated->operand = std::move(node);
    nest(*negated, negated->operand);
    node = std::move(negated);
  }
  return node;
}

ExprPtr Parser::parse_compare() {
  ExprPtr first = parse_sum();
  std::unique_ptr<Compare> node;
  for (;;) {
    CompareOp op;
    const uint32_t offset = current().offset;
    switch (current().type) {
      case TokenType::kEq:
        op = CompareOp::kEq;
        break;
      case TokenType::kNe:
        op = CompareOp::kNe;
        break;
      case TokenType::kLt:
        op = CompareOp::kLt;
        break;
      case TokenType::kLe:
        op = CompareOp::kLe;
        break;
      case TokenType::kGt:
        op = CompareOp::kGt;
        break;
      case TokenType::kGe:
        op = CompareOp::kGe;
        break;
      default:
        if (at_name("in")) {
          op = CompareOp::kIn;
        } else if (at_name("not") && is_name(ahead(), "in")) {
          op = CompareOp::kNotIn;
          advance();
        } else {
          if (node == nullptr) return first;
          return node;
        }
    }
    advance();
    if (node == nullptr) {
      node = std::make_unique<Compare>(offset);
      node->first = std::move(first);
      nest(*node, node->first);
    }
    node->rest.emplace_back(op, parse_sum());
    nest(*node, node->rest.back().second);
  }
}

ExprPtr Parser::parse_sum() {
  ExprPtr left = parse_concat();
  while (at(TokenType::kAdd) || at(TokenType::kSub)) {
    const Token& token = advance();
    left = make_binary(ExprKind::kBinary, binary_op(token.type), token.offset, std::move(left),
                       parse_concat());
  }
  return left;
}

ExprPtr Parser::parse_concat() {
  ExprPtr first = parse_product();
  if (!at(TokenType::kTilde)) return first;
  auto node = std::make_unique<Sequence>(ExprKind::kConcat, current().offset);
  node->items.push_back(std::move(first));
  while (skip(TokenType::kTilde)) node->items.push_back(parse_product());
  for (const ExprPtr& item : node->items) nest(*node, item);
  return node;
}

ExprPtr Parser::parse_product() {
  ExprPtr left = parse_power();
  while (at(TokenType::kMul) || at(TokenType::kDiv) || at(TokenType::kFloorDiv) ||
         at(TokenType::kMod)) {
    const Token& token = advance();
    left = make_binary(ExprKind::kBinary, binary_op(token.type), token.offset, std::move(left),
                       parse_power());
  }
  return left;
}

ExprPtr Parser::parse_power() {
  ExprPtr left = parse_unary();
  while (at(TokenType::kPow)) {
    const uint32_t offset = advance().offset;
    left = make_binary(ExprKind::kBinary, BinaryOp::kPow, offset, std::move(left), parse_unary());
  }
  return left;
}

ExprPtr Parser::parse_unary(bool with_filter) {
  ExprPtr node;
  if (at(TokenType::kSub) || at(TokenType::kAdd)) {
    const Token& token = advance();
    if (++expression_depth_ > kMaxExpressionDepth) {
      fail_at(token.offset, "expressions nest deeper than the {} levels allowed",
              kMaxExpressionDepth);
    }
    auto sign = std::make_unique<Unary>(
        token.type == TokenType::kSub ? ExprKind::kNegate : ExprKind::kPosit, token.offset);
    sign->operand = parse_unary(false);
    nest(*sign, sign->operand);
    --expression_depth_;
    node = std::move(sign);
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

ExprPtr Parser::parse_primary(bool with_namespace) {
  const Token& token = current();
  switch (token.type) {
    case TokenType::kName: {
      advance();
      if (token.text == "true" || token.text == "True") {
        return std::make_unique<Const>(token.offset, Value::boolean(true));
      }
      if (token.text == "false" || token.text == "False") {
        return std::make_unique<Const>(token.offset, Value::boolean(false));
      }
      if (token.text == "none" || token.text == "None") {
        return std::make_unique<Const>(token.offset, Value::none());
      }
      if (with_namespace && skip(TokenType::kDot)) {
        return std::make_unique<NamespaceRef>(token.offset, token.text,
                                              expect(TokenType::kName).text);
      }
      return std::make_unique<Name>(token.offset, token.text);
    }
    case TokenType::kString: {
      std::string text;
      while (at(TokenType::kString)) text += advance().text;
      return std::make_unique<Const>(token.offset, constant(std::move(text)));
    }
    case TokenType::kInteger:
      advance();
      return std::make_unique<Const>(token.offset, Value::unsigned_integer(token.integer));
    case TokenType::kFloat:
      advance();
      return std::make_unique<Const>(token.offset, Value::number(token.number));
    case TokenType::kLeftParen: {
      advance();
      ExprPtr node = parse_tuple({.parenthesized = true});
      expect(TokenType::kRightParen);
      return node;
    }
    case TokenType::kLeftBracket:
      return parse_list();
    case TokenType::kLeftBrace:
      return parse_dict();
    default:
      fail_at(token.offset, "unexpected '{}'", describe(token));
  }
}

ExprPtr Parser::parse_tuple(const TupleRules& rules) {
  const uint32_t offset = current().offset;
  ExprList items;
  bool is_tuple = false;
  for (;;) {
    if (!items.empty()) expect(TokenType::kComma);
    if (at(TokenType::kVariableEnd) || at(TokenType::kBlockEnd) || at(TokenType::kRightParen) ||
        (!rules.end_name.empty() && at_name(rules.end_name))) {
      break;
    }
    items.push_back(rules.simplified ? parse_primary(rules.with_namespace)
                                     : parse_expression(rules.with_condition));
    if (!at(TokenType::kComma)) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items.front());
    if (!rules.parenthesized) {
      fail_at(current().offset, "Expected an expression, got '{}'", describe(current()));
    }
  }
  auto node = std::make_unique<Sequence>(ExprKind::kTuple, offset);
  node->items = std::move(items);
  for (const ExprPtr& item : node->items) nest(*node, item);
  return node;
}

ExprPtr Parser::parse_list() {
  auto node = std::make_unique<Sequence>(ExprKind::kList, advance().offset);
  while (!at(TokenType::kRightBracket)) {
    if (!node->items.empty()) expect(TokenType::kComma);
    if (at(TokenType::kRightBracket)) break;
    node->items.push_back(parse_expression());
    nest(*node, node->items.back());
  }
  expect(TokenType::kRightBracket);
  return node;
}

ExprPtr Parser::parse_dict() {
  auto node = std::make_unique<DictLiteral>(advance().offset);
  while (!at(TokenType::kRightBrace)) {
    if (!node->items.empty()) expect(TokenType::kComma);
    if (at(TokenType::kRightBrace)) break;
    ExprPtr key = parse_expression();
    expect(TokenType::kColon);
    node->items.emplace_back(std::move(key), parse_expression());
    nest(*node, node->items.back().first);
    nest(*node, node->items.back().second);
  }
  expect(TokenType::kRightBrace);
  return node;
}

ExprPtr Parser::parse_target(bool with_namespace, std::string_view end_name) {
  ExprPtr target =
      parse_tuple({.simplified = true, .with_namespace = with_namespace, .end_name = end_name});
  make_target(*target, Name::Use::kStore);
  return target;
}

void Parser::make_target(Expr& target, Name::Use use) {
  switch (target.kind) {
    case ExprKind::kName:
      static_cast<Name&>(target).use = use;
      break;
    case ExprKind::kNamespaceRef:
      break;
    case ExprKind::kTuple:
      for (const ExprPtr& item : static_cast<Sequence&>(target).items) make_target(*item, use);
      break;
    default:
      fail_at(target.offset, "can't assign to '{}'", node_name(target.kind));
  }
}

std::unique_ptr<Name> Parser::parse_target_name() {
  const Token& token = expect(TokenType::kName);
  for (const std::string_view word : {"true", "false", "none", "True", "False", "None"}) {
    if (token.text == word) fail_at(token.offset, "can't assign to 'name'");
  }
  auto name = std::make_unique<Name>(token.offset, token.text);
  name->use = Name::Use::kStore;
  return name;
}

}  // namespace nanovllm::jinja
