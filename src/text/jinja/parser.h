// A template to tokens, with trim_blocks and lstrip_blocks on as Hugging Face has them, and those
// to a syntax tree, by Jinja's grammar and with its messages. What Jinja has and published
// chat templates do not use is refused by name.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/ast.h"
namespace nanovllm::jinja {

enum class TokenType : uint8_t {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kOperator,
  kString,
  kNumber,
  kEof,
};

struct Token {
  TokenType type = TokenType::kEof;
  uint32_t offset = 0;  // bytes into the normalized source
  std::string text;     // of data, names, operators and strings (unescaped)
  Value number = {};
};

// As messages name a token.
std::string describe(const Token& token);

// Newlines made '\n' and one newline at the very end dropped, as Jinja does before it looks closer.
std::string normalize_source(std::string_view source);

// All tokens of a normalized source, kEof last. On a fault `offset` is where it was found.
std::vector<Token> tokenize(const std::string& source, uint32_t& offset);

class Parser {
 public:
  // Parses into `into`, whose source is set. On a fault `offset` is where it was found.
  Parser(Template& into, std::vector<Token> tokens, uint32_t& offset)
      : template_(into), tokens_(std::move(tokens)), offset_(offset) {}
  void parse();

 private:
  using EndTags = std::initializer_list<std::string_view>;
  using StmtPtr = std::unique_ptr<Stmt>;

  // Tokens
  const Token& current() const { return tokens_[index_]; }
  const Token& ahead() const { return tokens_[std::min(index_ + 1, tokens_.size() - 1)]; }
  bool at(TokenType type) const { return current().type == type; }
  bool at(std::string_view text) const { return is(current(), text); }  // a name or an operator
  static bool is(const Token& token, std::string_view text) {
    return (token.type == TokenType::kName || token.type == TokenType::kOperator) &&
           token.text == text;
  }
  const Token& advance();
  bool skip(std::string_view text);
  const Token& expect(TokenType type, std::string_view text = {});
  const Token& expect(std::string_view text) { return expect(TokenType::kOperator, text); }
  template <typename... Args>
  [[noreturn]] void fail_at(uint32_t offset, fmt::format_string<Args...> format, Args&&... args) {
    offset_ = offset;
    fail(format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  [[noreturn]] void fail_here(fmt::format_string<Args...> format, Args&&... args) {
    fail_at(current().offset, format, std::forward<Args>(args)...);
  }
  [[noreturn]] void refuse(uint32_t offset, std::string_view what, std::string_view name);

  // Statements (parser_statements.cc)
  Body parse_body(EndTags end_tags);
  Body parse_until(EndTags end_tags, bool drops_end);
  StmtPtr parse_statement();
  StmtPtr parse_for();
  StmtPtr parse_if();
  StmtPtr parse_set();
  StmtPtr parse_macro();
  StmtPtr parse_block();

  // Expressions (parser_expressions.cc)
  ExprPtr parse_expression(bool with_condition = true);
  ExprPtr parse_condition();
  ExprPtr parse_binary(size_t level);
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_concat();
  ExprPtr parse_prefix(ExprKind kind, ExprPtr (Parser::*parse_operand)());
  ExprPtr parse_unary();
  ExprPtr parse_signed();  // what a sign stands before: filters and tests are outside of it
  ExprPtr parse_sign();
  ExprPtr parse_primary();
  ExprPtr parse_items(ExprKind kind, std::string_view close);
  ExprPtr parse_tuple(bool parenthesized, bool with_condition = true);
  ExprPtr parse_postfix(ExprPtr expr, bool with_filter);
  ExprPtr parse_subscript(ExprPtr object);
  void parse_arguments(Expr& call);
  ExprPtr parse_call(ExprPtr callee);
  ExprPtr parse_filter(ExprPtr operand);
  ExprPtr parse_test(ExprPtr operand);
  ExprPtr parse_target(bool with_namespace);
  ExprPtr parse_target_item(bool with_namespace);
  void check_target(const Expr& target, bool with_namespace, const Token& first);

  Value constant(std::string text);
  int symbol(const std::string& name);
  ExprPtr make_name(const Token& token);
  static ExprPtr node(ExprKind kind, uint32_t offset) {
    return std::make_unique<Expr>(kind, offset);
  }
  // Makes `child` (which may be null) the next part of `parent`.
  void add(Expr& parent, ExprPtr child);
  void check_depth(const Expr& parent, size_t depth);
  void nest(Expr& parent, const ExprPtr& child);

  Template& template_;
  std::vector<Token> tokens_;
  uint32_t& offset_;
  size_t index_ = 0;
  size_t expression_depth_ = 0;
  int block_depth_ = 0;
  int loop_depth_ = 0;
  int num_macros_ = 0;
  int num_loop_names_ = 0;  // how often `loop` is read
  std::vector<std::string> open_tags_;
  std::unordered_map<std::string, int> symbols_;
  std::vector<bool> is_assigned_;                     // by symbol
  std::vector<std::pair<int, uint32_t>> suspicious_;  // refused names: symbol, offset
};

}  // namespace nanovllm::jinja
