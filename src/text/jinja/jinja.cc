#include "text/jinja/jinja.h"

#include <new>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "text/jinja/from_json.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"
#include "text/jinja/resolver.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {
namespace {

constexpr size_t kLongestMessage = 1000;  // bytes, roughly

// Templates and data put any text into messages; it is shown in one line of UTF-8.
std::string one_line(std::string_view message) {
  std::string out;
  for (size_t pos = 0; pos < message.size();) {
    if (out.size() >= kLongestMessage) return out + "...";
    const char32_t c = decode(message, pos);
    const bool is_surrogate = c >= 0xD800 && c <= 0xDFFF;
    if (c == '\n') {
      out += "\\n";
    } else if (c < 0x20 || (c >= 0x7F && c < 0xA0)) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else {
      append_utf8(out, is_surrogate || c >= kInvalidByte ? U'\uFFFD' : c);
    }
  }
  return out;
}

[[noreturn]] void throw_at(ErrorCode code, const Template& in, uint32_t offset,
                           std::string_view message) {
  const Position position = position_of(in.source, offset);
  throw_error(code, "chat template, line {}, column {}: {}", position.line, position.column,
              one_line(message));
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm result{};
  localtime_r(&now, &result);
  return result;
}

}  // namespace

Program::Program(std::string_view source) : template_(std::make_unique<Template>()) {
  if (source.size() > kMaxTemplateBytes) {
    throw_error(ErrorCode::kCorruptData, "the chat template has {} bytes; at most {} are supported",
                source.size(), kMaxTemplateBytes);
  }
  template_->source = normalize_source(source);
  uint32_t offset = 0;
  try {
    std::vector<Token> tokens = tokenize(template_->source, offset);
    Parser parser(*template_, std::move(tokens));
    try {
      parser.parse();
    } catch (const Failure&) {
      offset = parser.offset();
      throw;
    }
    resolve(*template_, offset);
  } catch (const Failure& failure) {
    throw_at(ErrorCode::kCorruptData, *template_, offset, failure.what());
  }
}

Program::~Program() = default;
Program::Program(Program&&) noexcept = default;
Program& Program::operator=(Program&&) noexcept = default;

std::string Program::render(const nlohmann::ordered_json& variables,
                            const RenderOptions& options) const {
  Budget budget(options.limits);
  Interpreter interpreter(*template_, budget, options.now ? *options.now : local_time());
  try {
    for (const auto& [name, value] : variables.items()) {
      interpreter.set_variable(name, from_json(budget, value));
    }
    return interpreter.render();
  } catch (const Failure& failure) {
    throw_at(ErrorCode::kInvalidArgument, *template_, interpreter.offset(), failure.what());
  } catch (const std::bad_alloc&) {
    throw_at(ErrorCode::kInvalidArgument, *template_, interpreter.offset(), "out of memory");
  }
}

}  // namespace nanovllm::jinja
