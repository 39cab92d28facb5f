#include "text/jinja/parser.h"

namespace nanovllm::jinja {

const Token& Parser::advance() {
  const Token& token = tokens_[index_];
  if (index_ + 1 < tokens_.size()) ++index_;
  return token;
}

bool Parser::skip(std::string_view text) {
  if (!at(text)) return false;
  advance();
  return true;
}

const Token& Parser::expect(TokenType type, std::string_view text) {
  if (at(type) && (text.empty() || current().text == text)) return advance();
  const std::string wanted = text.empty() ? describe(Token{type, 0, {}, {}}) : std::string(text);
  fail_here("expected token '{}', got '{}'", wanted, describe(current()));
}

void Parser::refuse(uint32_t offset, std::string_view what, std::string_view name) {
  offset_ = offset;
  fail("{} '{}' is not supported", what, name);
}

void Parser::parse() {
  template_.body = parse_body({});
  for (const auto& [symbol, offset] : suspicious_) {
    if (is_assigned_[static_cast<size_t>(symbol)]) continue;
    refuse(offset, "the name", text_of(template_.names[static_cast<size_t>(symbol)]));
  }
}

// Text, prints and statements until one of the end tags (which is left in place) or the end.
Body Parser::parse_body(EndTags end_tags) {
  Body body;
  const auto print = [&](uint32_t offset, ExprPtr item) {
    if (body.empty() || body.back()->kind != StmtKind::kOutput) {
      body.push_back(std::make_unique<Stmt>(StmtKind::kOutput, offset));
    }
    body.back()->items.push_back(std::move(item));
  };
  while (!at(TokenType::kEof)) {
    const uint32_t offset = current().offset;
    if (at(TokenType::kData)) {
      ExprPtr data = node(ExprKind::kConst, offset);
      data->value = constant(advance().text);
      print(offset, std::move(data));
    } else if (at(TokenType::kVariableBegin)) {
      advance();
      print(offset, parse_tuple(false));
      expect(TokenType::kVariableEnd);
    } else {
      expect(TokenType::kBlockBegin);
      for (const std::string_view tag : end_tags) {
        if (at(tag)) return body;
      }
      body.push_back(parse_statement());
      expect(TokenType::kBlockEnd);
    }
  }
  return body;
}

// The body of a statement, from behind its opening tag. `drops_end` takes the name of the end tag.
Body Parser::parse_until(EndTags end_tags, bool drops_end) {
  skip(":");
  expect(TokenType::kBlockEnd);
  Body body = parse_body(end_tags);
  if (at(TokenType::kEof)) {
    fail_here("Unexpected end of template: '{}' is not closed", open_tags_.back());
  }
  if (drops_end) advance();
  return body;
}

Parser::StmtPtr Parser::parse_statement() {
  if (!at(TokenType::kName)) fail_here("tag name expected");
  const std::string tag = current().text;
  const uint32_t offset = current().offset;
  if (++block_depth_ > kMaxBlockDepth) {
    fail_at(offset, "blocks nest deeper than the {} levels allowed", kMaxBlockDepth);
  }
  using ParseTag = StmtPtr (Parser::*)();
  static constexpr std::pair<std::string_view, ParseTag> kTags[] = {
      {"for", &Parser::parse_for},          {"if", &Parser::parse_if},
      {"set", &Parser::parse_set},          {"macro", &Parser::parse_macro},
      {"generation", &Parser::parse_block}, {"filter", &Parser::parse_block},
  };
  for (const auto& [name, parse_tag] : kTags) {
    if (name != tag) continue;
    open_tags_.push_back(tag);
    const int macros_before = num_macros_;
    StmtPtr statement = (this->*parse_tag)();
    statement->has_macros = num_macros_ > macros_before;
    if (tag == "macro") ++num_macros_;
    open_tags_.pop_back();
    --block_depth_;
    return statement;
  }
  if (is_refused(Refused::kTag, tag)) refuse(offset, "the statement", tag);
  if (tag != "break" && tag != "continue") {
    fail_at(offset, "Encountered unknown tag '{}'{}", tag,
            open_tags_.empty() ? "" : fmt::format("; '{}' is to be closed", open_tags_.back()));
  }
  advance();
  if (loop_depth_ == 0) fail_at(offset, "'{}' outside of a loop", tag);
  --block_depth_;
  return std::make_unique<Stmt>(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue, offset);
}

Parser::StmtPtr Parser::parse_for() {
  auto loop = std::make_unique<Stmt>(StmtKind::kFor, advance().offset);
  loop->target = parse_target(false);
  expect(TokenType::kName, "in");
  loop->value = parse_tuple(false, false);
  const int names_before = num_loop_names_;
  Branch& branch = loop->branches.emplace_back();
  if (skip("if")) branch.test = parse_expression();
  if (at("recursive")) refuse(current().offset, "the loop's marker", "recursive");
  ++loop_depth_;
  branch.body = parse_until({"endfor", "else"}, false);
  --loop_depth_;
  if (num_loop_names_ > names_before) loop->symbol = symbol("loop");
  if (advance().text == "else") {
    loop->branches.emplace_back();
    loop->branches.back().body = parse_until({"endfor"}, true);
  }
  return loop;
}

Parser::StmtPtr Parser::parse_if() {
  auto statement = std::make_unique<Stmt>(StmtKind::kIf, advance().offset);
  for (std::string tag = "if"; tag != "endif";) {
    Branch& branch = statement->branches.emplace_back();
    if (tag != "else") branch.test = parse_tuple(false, false);
    branch.body = tag == "else" ? parse_until({"endif"}, false)
                                : parse_until({"elif", "else", "endif"}, false);
    tag = advance().text;
  }
  return statement;
}

Parser::StmtPtr Parser::parse_set() {
  auto set = std::make_unique<Stmt>(StmtKind::kAssign, advance().offset);
  set->target = parse_target(true);
  if (skip("=")) {
    set->value = parse_tuple(false);
    return set;
  }
  set->kind = StmtKind::kAssignBlock;
  while (skip("|")) {
    set->value = parse_filter(set->value ? std::move(set->value)
                                         : node(ExprKind::kBlockText, current().offset));
  }
  set->branches.emplace_back();
  set->branches[0].body = parse_until({"endset"}, true);
  return set;
}

Parser::StmtPtr Parser::parse_macro() {
  auto macro = std::make_unique<Stmt>(StmtKind::kMacro, advance().offset);
  const auto parse_name = [&] {
    if (!at(TokenType::kName)) expect(TokenType::kName);
    return parse_target_item(false);
  };
  macro->symbol = parse_name()->symbol;
  expect("(");
  while (!at(")")) {
    if (!macro->items.empty()) expect(",");
    if (macro->items.size() >= kMaxNamed) fail_here("a macro has {} parameters at most", kMaxNamed);
    ExprPtr parameter = parse_name();
    for (const ExprPtr& other : macro->items) {
      if (other->symbol == parameter->symbol) fail_at(parameter->offset, "duplicate argument");
    }
    macro->items.push_back(std::move(parameter));
    if (skip("=")) {
      macro->defaults.push_back(parse_expression());
    } else if (!macro->defaults.empty()) {
      fail_here("non-default argument follows default argument");
    }
  }
  expect(")");
  macro->branches.emplace_back();
  const int around = std::exchange(loop_depth_, 0);
  macro->branches[0].body = parse_until({"endmacro"}, true);
  loop_depth_ = around;
  return macro;
}

// {% generation %} and {% filter name %}.
Parser::StmtPtr Parser::parse_block() {
  const bool is_filter = at("filter");
  auto block = std::make_unique<Stmt>(StmtKind::kBlock, advance().offset);
  if (is_filter) {
    block->value = node(ExprKind::kBlockText, block->offset);
    do {
      block->value = parse_filter(std::move(block->value));
    } while (skip("|"));
  }
  block->branches.emplace_back();
  block->branches[0].body = parse_until({is_filter ? "endfilter" : "endgeneration"}, true);
  return block;
}

}  // namespace nanovllm::jinja
