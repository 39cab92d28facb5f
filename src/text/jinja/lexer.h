// Splits a template into tokens, with trim_blocks and lstrip_blocks on as Hugging Face has them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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
  kInteger,
  kFloat,
  kEof,
};

struct Token {
  TokenType type = TokenType::kEof;
  uint32_t offset = 0;  // bytes into the normalized source
  std::string text;     // of data, names, operators and strings (unescaped)
  uint64_t integer = 0;
  double number = 0;
};

// As messages name a token.
std::string describe(const Token& token);

// Newlines made '\n' and one newline at the very end dropped, as Jinja does before it looks closer.
std::string normalize_source(std::string_view source);

// All tokens of a normalized source, kEof last. On a fault `offset` is where it was found.
std::vector<Token> tokenize(const std::string& source, uint32_t& offset);

}  // namespace nanovllm::jinja
