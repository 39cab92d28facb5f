#include "text/jinja/error.h"
#include "text/jinja/parser.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {
namespace {

// One more level of a counter for as long as it lives.
class Level {
 public:
  explicit Level(int& counter) : counter_(counter) { ++counter_; }
  ~Level() { --counter_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  int& counter_;
};

}  // namespace

const Token& Parser::advance() {
  const Token& token = tokens_[index_];
  if (index_ + 1 < tokens_.size()) ++index_;
  return token;
}

bool Parser::skip(TokenType type) {
  if (!at(type)) return false;
  advance();
  return true;
}

bool Parser::skip_name(std::string_view text) {
  if (!at_name(text)) return false;
  advance();
  return true;
}

const Token& Parser::expect(TokenType type) {
  if (at(type)) return advance();
  if (at(TokenType::kEof)) {
    fail_at(current().offset, "unexpected end of template, expected '{}'.", describe(type));
  }
  fail_at(current().offset, "expected token '{}', got '{}'", describe(type), describe(current()));
}

void Parser::expect_name(std::string_view text) {
  if (skip_name(text)) return;
  if (at(TokenType::kEof)) {
    fail_at(current().offset, "unexpected end of template, expected '{}'.", text);
  }
  fail_at(current().offset, "expected token '{}', got '{}'", text, describe(current()));
}

void Parser::parse() { template_.body = parse_body({}); }

// Text, prints and statements until one of the end tags (which is left in place) or the end.
Body Parser::parse_body(EndTags end_tags) {
  Body body;
  std::unique_ptr<Output> output;
  const auto add = [&](uint32_t offset, ExprPtr item) {
    if (output == nullptr) output = std::make_unique<Output>(offset);
    output->items.push_back(std::move(item));
  };
  const auto flush = [&] {
    if (output != nullptr) body.push_back(std::move(output));
  };
  while (!at(TokenType::kEof)) {
    const uint32_t offset = current().offset;
    if (at(TokenType::kData)) {
      auto data = std::make_unique<Const>(offset, constant(advance().text));
      data->is_data = true;
      add(offset, std::move(data));
    } else if (skip(TokenType::kVariableBegin)) {
      add(offset, parse_tuple({}));
      expect(TokenType::kVariableEnd);
    } else {
      flush();
      expect(TokenType::kBlockBegin);
      for (const std::string_view tag : end_tags) {
        if (at_name(tag)) return body;
      }
      body.push_back(parse_statement());
      expect(TokenType::kBlockEnd);
    }
  }
  flush();
  return body;
}

// The body of a statement, from behind its opening tag. `drops_end` takes the name of the end tag.
Body Parser::parse_until(EndTags end_tags, bool drops_end) {
  skip(TokenType::kColon);
  expect(TokenType::kBlockEnd);
  expected_ends_.emplace_back(end_tags.begin(), end_tags.end());
  Body body = parse_body(end_tags);
  if (at(TokenType::kEof)) fail_unknown_tag("");
  expected_ends_.pop_back();
  if (drops_end) advance();
  return body;
}

void Parser::fail_unknown_tag(const std::string& tag) {
  std::string message = tag.empty() ? "Unexpected end of template."
                                    : fmt::format("Encountered unknown tag '{}'.", tag);
  if (!expected_ends_.empty()) {
    std::string looking;
    for (const std::string& end : expected_ends_.back()) {
      if (!looking.empty()) looking += " or ";
      looking += "'" + end + "'";
    }
    bool is_nested_wrongly = false;
    for (const auto& ends : expected_ends_) {
      for (const std::string& end : ends) is_nested_wrongly |= end == tag;
    }
    message += is_nested_wrongly
                   ? " You probably made a nesting mistake. Jinja is expecting this tag, but "
                     "currently looking for " +
                         looking + "."
                   : " Jinja was looking for the following tags: " + looking + ".";
  }
  if (!open_tags_.empty()) {
    message += " The innermost block that needs to be closed is '" + open_tags_.back() + "'.";
  }
  fail_at(current().offset, "{}", message);
}

StmtPtr Parser::parse_statement() {
  if (!at(TokenType::kName)) fail_at(current().offset, "tag name expected");
  const std::string tag = current().text;
  const uint32_t offset = current().offset;
  const Level level(block_depth_);
  if (block_depth_ > kMaxBlockDepth) {
    fail_at(offset, "blocks nest deeper than the {} levels allowed", kMaxBlockDepth);
  }
  using ParseTag = StmtPtr (Parser::*)();
  static constexpr std::pair<std::string_view, ParseTag> kTags[] = {
      {"for", &Parser::parse_for},
      {"if", &Parser::parse_if},
      {"set", &Parser::parse_set},
      {"macro", &Parser::parse_macro},
      {"call", &Parser::parse_call_block},
      {"generation", &Parser::parse_generation},
      {"filter", &Parser::parse_filter_block},
      {"with", &Parser::parse_with},
      {"block", &Parser::parse_block},
      {"autoescape", &Parser::parse_autoescape},
      {"print", &Parser::parse_print},
      {"include", &Parser::parse_import},
      {"import", &Parser::parse_import},
      {"from", &Parser::parse_import},
      {"extends", &Parser::parse_import},
  };
  for (const auto& [name, parse_tag] : kTags) {
    if (name != tag) continue;
    open_tags_.push_back(tag);
    StmtPtr statement = (this->*parse_tag)();
    open_tags_.pop_back();
    return statement;
  }
  if (tag == "break" || tag == "continue") {
    advance();
    return std::make_unique<Jump>(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue, offset);
  }
  fail_unknown_tag(tag);
}

StmtPtr Parser::parse_for() {
  auto loop = std::make_unique<For>(advance().offset);
  const size_t target_start = index_;
  loop->target = parse_target(false, "in");
  expect_name("in");
  loop->iterable = parse_tuple({.with_condition = false, .end_name = "recursive"});
  if (skip_name("if")) {
    loop->test = parse_expression();
    // The test runs in a function of its own, with a target of its own.
    const size_t resume = index_;
    index_ = target_start;
    loop->test_target = parse_target(false, "in");
    index_ = resume;
  }
  loop->is_recursive = skip_name("recursive");
  loop->body = parse_until({"endfor", "else"}, false);
  if (advance().text == "else") loop->otherwise = parse_until({"endfor"}, true);
  return loop;
}

StmtPtr Parser::parse_if() {
  auto node = std::make_unique<If>(advance().offset);
  for (;;) {
    If::Branch& branch = node->branches.emplace_back();
    branch.test = parse_tuple({.with_condition = false});
    branch.body = parse_until({"elif", "else", "endif"}, false);
    const std::string& tag = advance().text;
    if (tag == "elif") continue;
    if (tag == "else") node->otherwise = parse_until({"endif"}, true);
    return node;
  }
}

StmtPtr Parser::parse_set() {
  const uint32_t offset = advance().offset;
  ExprPtr target = parse_target(true, {});
  if (skip(TokenType::kAssign)) {
    auto assign = std::make_unique<Assign>(offset);
    assign->target = std::move(target);
    assign->value = parse_tuple({});
    return assign;
  }
  auto assign = std::make_unique<AssignBlock>(offset);
  assign->target = std::move(target);
  assign->filter = parse_filter(nullptr, false);
  assign->body = parse_until({"endset"}, true);
  return assign;
}

void Parser::parse_signature(MacroBody& macro) {
  expect(TokenType::kLeftParen);
  while (!at(TokenType::kRightParen)) {
    if (!macro.parameters.empty()) expect(TokenType::kComma);
    auto parameter = parse_target_name();
    parameter->use = Name::Use::kParameter;
    if (skip(TokenType::kAssign)) {
      macro.defaults.push_back(parse_expression());
    } else if (!macro.defaults.empty()) {
      fail_at(current().offset, "non-default argument follows default argument");
    }
    macro.parameters.push_back(std::move(parameter));
  }
  expect(TokenType::kRightParen);
}

StmtPtr Parser::parse_macro() {
  auto node = std::make_unique<MacroStmt>(advance().offset);
  node->name = parse_target_name()->name;
  parse_signature(node->macro);
  node->macro.body = parse_until({"endmacro"}, true);
  return node;
}

StmtPtr Parser::parse_call_block() {
  auto node = std::make_unique<CallBlock>(advance().offset);
  if (at(TokenType::kLeftParen)) parse_signature(node->macro);
  node->call = parse_expression();
  if (node->call->kind != ExprKind::kCall) fail_at(node->offset, "expected call");
  node->macro.body = parse_until({"endcall"}, true);
  return node;
}

StmtPtr Parser::parse_generation() {
  auto node = std::make_unique<CallBlock>(advance().offset);
  node->macro.body = parse_until({"endgeneration"}, true);
  return node;
}

StmtPtr Parser::parse_filter_block() {
  auto node = std::make_unique<FilterBlock>(advance().offset);
  node->filter = parse_filter(nullptr, true);
  node->body = parse_until({"endfilter"}, true);
  return node;
}

StmtPtr Parser::parse_with() {
  auto node = std::make_unique<With>(advance().offset);
  while (!at(TokenType::kBlockEnd)) {
    if (!node->targets.empty()) expect(TokenType::kComma);
    ExprPtr target = parse_target(false, {});
    make_target(*target, Name::Use::kParameter);
    node->targets.push_back(std::move(target));
    expect(TokenType::kAssign);
    node->values.push_back(parse_expression());
  }
  node->body = parse_until({"endwith"}, true);
  return node;
}

StmtPtr Parser::parse_block() {
  auto node = std::make_unique<Block>(advance().offset);
  node->name = expect(TokenType::kName).text;
  node->is_scoped = skip_name("scoped");
  node->is_required = skip_name("required");
  if (at(TokenType::kSub)) {
    fail_at(current().offset,
            "Block names in Jinja have to be valid Python identifiers and may not contain "
            "hyphens, use an underscore instead.");
  }
  node->body = parse_until({"endblock"}, true);
  if (node->is_required) {
    for (const StmtPtr& statement : node->body) {
      bool is_blank = statement->kind == StmtKind::kOutput;
      if (is_blank) {
        for (const ExprPtr& item : static_cast<const Output&>(*statement).items) {
          const auto* data =
              item->kind == ExprKind::kConst ? static_cast<Const*>(item.get()) : nullptr;
          is_blank &= data != nullptr && data->is_data &&
                      strip_spaces(text_of(data->value), Side::kLeft).empty();
        }
      }
      if (!is_blank) {
        fail_at(node->offset, "Required blocks can only contain comments or whitespace");
      }
    }
  }
  skip_name(node->name);
  return node;
}

StmtPtr Parser::parse_autoescape() {
  auto node = std::make_unique<Autoescape>(advance().offset);
  node->enabled = parse_expression();
  node->body = parse_until({"endautoescape"}, true);
  return node;
}

StmtPtr Parser::parse_print() {
  auto node = std::make_unique<Output>(advance().offset);
  while (!at(TokenType::kBlockEnd)) {
    if (!node->items.empty()) expect(TokenType::kComma);
    node->items.push_back(parse_expression());
  }
  return node;
}

StmtPtr Parser::parse_import() {
  auto node = std::make_unique<Import>(current().offset);
  node->tag = advance().text;
  node->source = parse_expression();
  const auto skip_context = [&] {
    if ((at_name("with") || at_name("without")) && is_name(ahead(), "context")) {
      advance();
      advance();
      return true;
    }
    return false;
  };
  if (node->tag == "extends") return node;
  if (node->tag == "include") {
    if (at_name("ignore") && is_name(ahead(), "missing")) {
      advance();
      advance();
    }
  } else if (node->tag == "import") {
    expect_name("as");
    node->names.push_back(parse_target_name());
  } else {
    expect_name("import");
    for (;;) {
      if (!node->names.empty()) expect(TokenType::kComma);
      if (!at(TokenType::kName)) expect(TokenType::kName);
      if (skip_context()) return node;
      auto name = parse_target_name();
      if (name->name.starts_with('_')) {
        fail_at(name->offset, "names starting with an underline can not be imported");
      }
      if (skip_name("as")) name = parse_target_name();
      node->names.push_back(std::move(name));
      if (skip_context() || !at(TokenType::kComma)) return node;
    }
  }
  skip_context();
  return node;
}

}  // namespace nanovllm::jinja
