// Tokens to a syntax tree, by Jinja's grammar and with its messages.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace nanovllm::jinja {

class Parser {
 public:
  // Parses into `into`, whose source is set. On a fault offset() says where.
  Parser(Template& into, std::vector<Token> tokens) : template_(into), tokens_(std::move(tokens)) {}
  void parse();
  uint32_t offset() const { return offset_; }

 private:
  using EndTags = std::initializer_list<std::string_view>;

  // Tokens
  const Token& current() const { return tokens_[index_]; }
  const Token& ahead() const { return tokens_[std::min(index_ + 1, tokens_.size() - 1)]; }
  bool at(TokenType type) const { return current().type == type; }
  bool at_name(std::string_view text) const { return is_name(current(), text); }
  static bool is_name(const Token& token, std::string_view text) {
    return token.type == TokenType::kName && token.text == text;
  }
  const Token& advance();
  bool skip(TokenType type);
  bool skip_name(std::string_view text);
  const Token& expect(TokenType type);
  void expect_name(std::string_view text);
  template <typename... Args>
  [[noreturn]] void fail_at(uint32_t offset, fmt::format_string<Args...> format, Args&&... args) {
    offset_ = offset;
    fail(Fault::kSyntax, format, std::forward<Args>(args)...);
  }

  // Statements (parser_statements.cc)
  Body parse_body(EndTags end_tags);
  Body parse_until(EndTags end_tags, bool drops_end);
  StmtPtr parse_statement();
  StmtPtr parse_for();
  StmtPtr parse_if();
  StmtPtr parse_set();
  StmtPtr parse_macro();
  StmtPtr parse_call_block();
  StmtPtr parse_generation();
  StmtPtr parse_filter_block();
  StmtPtr parse_with();
  StmtPtr parse_block();
  StmtPtr parse_autoescape();
  StmtPtr parse_print();
  StmtPtr parse_import();
  void parse_signature(MacroBody& macro);
  [[noreturn]] void fail_unknown_tag(const std::string& tag);

  // Expressions (parser_expressions.cc)
  struct TupleRules {
    bool simplified = false;  // names and literals only, as in assignment targets
    bool with_condition = true;
    bool with_namespace = false;
    bool parenthesized = false;
    std::string_view end_name = {};  // a name that ends the tuple
  };
  ExprPtr parse_expression(bool with_condition = true);
  ExprPtr parse_condition();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filter = true);
  ExprPtr parse_primary(bool with_namespace = false);
  ExprPtr parse_tuple(const TupleRules& rules);
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr node);
  ExprPtr parse_filters_and_tests(ExprPtr node);
  ExprPtr parse_subscript(ExprPtr node);
  ExprPtr parse_index();
  ExprPtr parse_call(ExprPtr callee);
  CallArguments parse_arguments();
  ExprPtr parse_filter(ExprPtr node, bool starts_with_name);
  ExprPtr parse_test(ExprPtr node);
  std::string parse_dotted_name();
  ExprPtr parse_target(bool with_namespace, std::string_view end_name);
  std::unique_ptr<Name> parse_target_name();
  void make_target(Expr& target, Name::Use use);

  Value constant(std::string text);
  // Records `child` (which may be null) as part of `parent`.
  void nest(Expr& parent, const ExprPtr& child);
  void nest(Expr& parent, const CallArguments& arguments);
  ExprPtr make_binary(ExprKind kind, BinaryOp op, uint32_t offset, ExprPtr left, ExprPtr right);

  Template& template_;
  std::vector<Token> tokens_;
  size_t index_ = 0;
  uint32_t offset_ = 0;
  int expression_depth_ = 0;
  int block_depth_ = 0;
  std::vector<std::string> open_tags_;
  std::vector<std::vector<std::string>> expected_ends_;
};

}  // namespace nanovllm::jinja
