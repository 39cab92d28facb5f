#include "text/jinja/jinja.h"

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"
#include "text/jinja/strings.h"

namespace nanovllm::jinja {
namespace {

constexpr size_t kLongestMessage = 1000;  // bytes, roughly

// Templates and data put any text into messages; it is shown in one line of UTF-8.
std::string one_line(std::string_view message) {
  // What is shown of a character is not shorter than the character.
  const std::string text = text::replace_invalid_utf8(message.substr(0, kLongestMessage + 4));
  std::string out;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    if (out.size() >= kLongestMessage) return out + "...";
    const uint32_t c = text::next_character(text, end);
    append_visible(out, c, std::string_view(text).substr(begin, end - begin));
  }
  return out;
}

[[noreturn]] void throw_at(ErrorCode code, const Template& in, uint32_t offset,
                           std::string_view message) {
  const std::string_view before = std::string_view(in.source).substr(0, offset);
  const size_t line = before.rfind('\n') + 1;  // 0 without any
  throw_error(code, "chat template, line {}, column {}: {}",
              std::count(before.begin(), before.end(), '\n') + 1,
              count_code_points(before.substr(line)) + 1, one_line(message));
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm result{};
  localtime_r(&now, &result);
  return result;
}

Value from_json(Budget& budget, const nlohmann::ordered_json& json, int level) {
  if (level > kMaxDataDepth) {
    fail("the input nests deeper than the {} levels allowed", kMaxDataDepth);
  }
  if (json.is_boolean()) return Value::boolean(json.get<bool>());
  if (json.is_number_unsigned()) return Value::unsigned_integer(json.get<uint64_t>());
  if (json.is_number_integer()) return Value::integer(json.get<int64_t>());
  if (json.is_number_float()) return Value::number(json.get<double>());
  if (json.is_string()) return make_string(budget, json.get_ref<const std::string&>());
  if (json.is_array()) {
    Values items;
    items.reserve(json.size());
    for (const auto& item : json) items.push_back(from_json(budget, item, level + 1));
    return make_list(budget, std::move(items));
  }
  if (!json.is_object()) return Value::none();
  Value dict = make_dict(budget);
  for (const auto& [name, item] : json.items()) {
    dict.as<Dict>().set(make_string(budget, name), from_json(budget, item, level + 1));
  }
  return dict;
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
    Parser parser(*template_, tokenize(template_->source, offset), offset);
    parser.parse();
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
      interpreter.set_variable(name, from_json(budget, value, 1));
    }
    return interpreter.render();
  } catch (const Failure& failure) {
    throw_at(ErrorCode::kInvalidArgument, *template_, interpreter.offset(), failure.what());
  } catch (const std::bad_alloc&) {
    throw_at(ErrorCode::kInvalidArgument, *template_, interpreter.offset(), "out of memory");
  }
}

}  // namespace nanovllm::jinja
