#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/check.h"
#include "base/quantity.h"
#include "cli/params_text.h"
#include "engine/config_table.h"
#include "io/file.h"
#include "io/json.h"

namespace nanovllm::cli {
namespace {

constexpr const char* kEngineGroup = "Engine";
constexpr const char* kGpuGroup = "Engine, on GPUs only";
constexpr const char* kSamplingGroup = "Sampling (the model's own defaults go before these)";

// The number that is the whole of a text, without the octal and hexadecimal ones that CLI11 knows.
template <typename T>
std::optional<T> parse_number(const std::string& text) {
  T value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end) return std::nullopt;
  const size_t digits = text.starts_with('-') ? 1 : 0;
  const bool octal = std::is_integral_v<T> && text.size() > digits + 1 && text[digits] == '0';
  return octal ? std::nullopt : std::optional(value);
}

// What is wrong with the text of a number; CLI11's own words name neither reason nor remedy.
template <typename T>
std::string fault_of_number(const std::string& text) {
  if (parse_number<T>(text)) return "";
  if constexpr (std::is_floating_point_v<T>) {
    return fmt::format("must be a number, got {}", printable(text));
  }
  return fmt::format("must be an integer up to {}, got {}", std::numeric_limits<T>::max(),
                     printable(text));
}

template <typename T>
CLI::Option* check_number(CLI::Option* option) {
  return option->check(CLI::Validator(fault_of_number<T>, ""));
}

// Gives CLI11 the digits of a count that may have a suffix.
std::string expand_count(std::string& text) {
  const auto number = parse_quantity(text, false);
  if (number && *number <= std::numeric_limits<int>::max()) {
    text = std::to_string(static_cast<int>(*number));
  }
  return fault_of_number<int>(text);
}

// Shells make it hard to write a line break. Other backslashes stay as they are: \boxed is a stop.
std::string unescape(std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const char next = text[i] == '\\' && i + 1 < text.size() ? text[i + 1] : '\0';
    const bool known = next == 'n' || next == 't' || next == '\\';
    plain += !known ? text[i] : next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
    i += known ? 1 : 0;
  }
  text = std::move(plain);
  return "";  // nothing is wrong with it
}

int64_t parse_seed(const std::string& flag, const std::string& text) {
  using Seed = std::numeric_limits<int64_t>;
  if (const auto seed = parse_number<int64_t>(text)) return *seed;
  throw CLI::ValidationError(flag, fmt::format("must be an integer from {} to {}, got {}",
                                               Seed::min(), Seed::max(), printable(text)));
}

// The flag of a parameter, which sets `value`, as its type has it. Given several times, lists add
// up; help need not show "..." for that.
template <typename T>
CLI::Option* add_parameter(CLI::App& app, const std::string& flag, T& value,
                           const std::string& help) {
  using Number = std::conditional_t<std::is_same_v<T, double>, double, int>;
  return check_number<Number>(app.add_option(flag, value, help));
}
CLI::Option* add_parameter(CLI::App& app, const std::string& flag, std::optional<int64_t>& value,
                           const std::string& help) {
  const auto set = [flag, &value](const std::string& text) {
    value = parse_seed(flag, text);
    if (value == -1) value.reset();
  };
  return app.add_option_function<std::string>(flag, set, help)->type_name("INT");
}
CLI::Option* add_parameter(CLI::App& app, const std::string& flag,
                           std::optional<std::string>& value, const std::string& help) {
  return app.add_option(flag, value, help);
}
CLI::Option* add_parameter(CLI::App& app, const std::string& flag, bool& value,
                           const std::string& help) {
  return app.add_flag_callback(
      flag, [&value, on = !value] { value = on; }, value ? "do not " + help : help);
}
CLI::Option* add_parameter(CLI::App& app, const std::string& flag, std::vector<std::string>& value,
                           const std::string& help) {
  return app
      .add_option(flag, value, help + " (may be given several times; knows \\n, \\t and \\\\)")
      ->option_text("TEXT")
      ->transform(CLI::Validator(unescape, ""))
      ->allow_extra_args(false);
}
CLI::Option* add_parameter(CLI::App& app, const std::string& flag, std::vector<int32_t>& value,
                           const std::string& help) {
  return check_number<int32_t>(app.add_option(flag, value, help + ": 5,6 or several times"))
      ->option_text("INT")
      ->delimiter(',')
      ->allow_extra_args(false);
}
CLI::Option* add_parameter(CLI::App& app, const std::string& flag,
                           std::optional<std::vector<int32_t>>& value, const std::string& help) {
  return add_parameter(app, flag, value.emplace(), help);  // which counts where the flag is given
}
CLI::Option* add_parameter(CLI::App& app, const std::string& flag, std::map<int32_t, float>& value,
                           const std::string& help) {
  const auto set = [flag, &value](const std::vector<std::string>& pairs) {
    for (const std::string& pair : pairs) {
      const auto colon = std::min(pair.find(':'), pair.size());
      const auto id = parse_number<int32_t>(pair.substr(0, colon));
      const auto bias = parse_number<double>(pair.substr(std::min(colon + 1, pair.size())));
      if (!id || !bias) {
        throw CLI::ValidationError(flag, fmt::format("must be ID:BIAS, got {}", pair));
      }
      value[*id] = static_cast<float>(std::clamp(*bias, -100.0, 100.0));
    }
  };
  return app
      .add_option_function<std::vector<std::string>>(
          flag, set, help + ": ID:BIAS, 5:-100,6:2 or several times")
      ->option_text("TEXT")
      ->delimiter(',')
      ->allow_extra_args(false);
}

// What a flag names, or holds: a file, or its text.
std::string text_of_file(const char* flag, const std::string& given, bool is_text) {
  if (is_text) return given;
  try {
    return read_text_file(given);
  } catch (const Error& error) {
    throw CLI::ValidationError(flag, error.what());
  }
}

// No file of a schema has such a name, be it JSON that is no schema.
bool is_json(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first == text.npos || text[first] == '{' || nlohmann::json::accept(text);
}

// Each of these flags says all of it.
std::vector<CLI::Option*> add_parameter(CLI::App& app, const std::string& /*flag*/,
                                        std::optional<StructuredOutputsParams>& value,
                                        const std::string& /*help*/) {
  const auto all = [&value]() -> StructuredOutputsParams& {
    return value ? *value : value.emplace();
  };
  const auto add = [&](const char* flag, const char* placeholder, const char* help, auto set) {
    return app.add_option_function<std::string>(flag, set, help)->option_text(placeholder);
  };
  return {add("--json-schema", "FILE",
              "the output is JSON that follows this JSON Schema: a file, or its text",
              [all](const std::string& given) {
                all().json = text_of_file("--json-schema", given, is_json(given));
              }),
          add("--regex", "TEXT", "the output matches this regular expression, all of it",
              [all](const std::string& given) { all().regex = given; }),
          app.add_option_function<std::vector<std::string>>(
                 "--choice", [all](const std::vector<std::string>& given) { all().choice = given; },
                 "the output is one of these texts (given several times; knows \\n, \\t and "
                 "\\\\)")
              ->option_text("TEXT")
              ->transform(CLI::Validator(unescape, ""))
              ->allow_extra_args(false),
          add("--grammar-file", "FILE",
              "the output follows this grammar, llama.cpp's GBNF: a file, or its text",
              [all](const std::string& given) {
                const bool is_text = given.find("::=") != given.npos;
                all().grammar = text_of_file("--grammar-file", given, is_text);
              })};
}

// The flag of an engine's field.
template <typename T>
CLI::Option* add_field(CLI::App& app, const std::string& flag, T& value, const std::string& help) {
  CLI::Option* option = app.add_option(flag, value, help)->capture_default_str();
  if constexpr (std::is_same_v<T, double>) check_number<T>(option);
  if constexpr (std::is_same_v<T, int>) option->transform(CLI::Validator(expand_count, ""));
  return option;
}
CLI::Option* add_field(CLI::App& app, const std::string& flag, int64_t& value,
                       const std::string& help) {
  return add_seed(app, flag, value, help);
}
CLI::Option* add_field(CLI::App& app, const std::string& flag, bool& value,
                       const std::string& help) {
  if (!value) return app.add_flag(flag, value, help);
  return app.add_flag(fmt::format("{},!--no-{}", flag, flag.substr(2)), value,
                      help + " (default: on)");
}
CLI::Option* add_field(CLI::App& app, const std::string& flag, std::optional<int64_t>& value,
                       const std::string& help) {
  const auto set = [flag, &value](const std::string& text) {
    try {
      value = parse_bytes(text);
    } catch (const Error& error) {
      throw CLI::ValidationError(flag, error.what());
    }
  };
  return app.add_option_function<std::string>(flag, set, help + " (512M, 4G, ...)");
}

std::string dashed(std::string_view name) {
  std::string flag = fmt::format("--{}", name);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

// The name with dashes; --no- turns off what is on. A name of one letter is a short flag too.
std::string flag_of(const Parameter& parameter) {
  const SamplingParams defaults;
  std::string words(parameter.name);
  std::ranges::replace(words, '_', '-');
  const auto* member = std::get_if<bool SamplingParams::*>(&parameter.member);
  if (member != nullptr && defaults.**member) return "--no-" + words;
  return words.size() == 1 ? fmt::format("-{0},--{0}", words) : "--" + words;
}

}  // namespace

CLI::Validator at_least(int least) {
  const auto check = [least](const std::string& text) -> std::string {
    const auto value = parse_number<int>(text);
    if (!value) return fault_of_number<int>(text);
    return *value < least ? fmt::format("must be at least {}, got {}", least, text) : "";
  };
  return {check, ""};
}

CLI::Option* add_seed(CLI::App& app, const std::string& flag, int64_t& seed,
                      const std::string& help) {
  return app
      .add_option_function<std::string>(
          flag, [flag, &seed](const std::string& text) { seed = parse_seed(flag, text); }, help)
      ->type_name("INT")
      ->default_str(std::to_string(seed));
}

int64_t parse_bytes(const std::string& text) {
  const auto number = parse_quantity(text, true);
  if (!number) {
    throw_error(ErrorCode::kInvalidArgument,
                "\"{}\" is not a size in bytes; write for example 536870912, 512M or 1.5G", text);
  }
  if (*number >= 0x1p62) {
    throw_error(ErrorCode::kInvalidArgument, "{} is too large: it must be less than 4194304T",
                text);
  }
  return static_cast<int64_t>(*number);
}

void add_engine_options(CLI::App& app, EngineConfig& config) {
  for (const ConfigField& field : config_table()) {
    if (field.name == "trace_file") continue;
    const std::string flag = field.name == "seed" ? "--engine-seed" : dashed(field.name);
    const auto add = [&](auto member) {
      return add_field(app, flag, config.*member, std::string(field.help));
    };
    CLI::Option* option = std::visit(add, field.member);
    option->group(field.cuda_only ? kGpuGroup : kEngineGroup);
    if (field.name != "max_model_len") continue;
    option->transform(CLI::Validator(  // vLLM's other word for it
        [](std::string& text) {
          if (text == "auto") text = "-1";
          return std::string();
        },
        ""));
  }
}

void add_trace_option(CLI::App& app, EngineConfig& config) {
  app.add_option("--trace", config.trace_file,
                 "write a Chrome/Perfetto trace of the run to this file")
      ->group(kEngineGroup);
}

void SamplingOptions::add_to(CLI::App& app, const std::string& max_tokens, bool in_chat) {
  for (const Parameter& parameter : sampling_table()) {
    if (in_chat && parameter.use == Use::kGenerate) continue;
    std::string help(parameter.help);
    const auto& ranges = parameter.ranges;
    if (!ranges.empty() && ranges.back().sentence == nullptr) {
      help = fmt::format("{}: {}", interval(ranges.back()), help);
    }
    if (parameter.name == "max_tokens") help += fmt::format(" (default: {})", max_tokens);
    const auto add = [&](auto member) -> std::vector<CLI::Option*> {
      return {add_parameter(app, flag_of(parameter), values_.*member, help)};
    };
    const std::string value = value_text(SamplingParams(), parameter);
    for (CLI::Option* flag : std::visit(add, parameter.member)) {
      flag->group(kSamplingGroup);
      if (value != "null" && value != "[]" && value != "{}") flag->default_str(value);
      flags_.emplace_back(&parameter, flag);
    }
  }
}

SamplingParams SamplingOptions::apply_to(SamplingParams params) const {
  for (const auto& [parameter, flag] : flags_) {
    const auto set = [&](auto member) { params.*member = values_.*member; };
    if (!flag->empty()) std::visit(set, parameter->member);
  }
  return params;
}

bool SamplingOptions::sets_temperature() const {
  return std::ranges::any_of(flags_, [](const auto& flag) {
    return flag.first->name == "temperature" && !flag.second->empty();
  });
}

}  // namespace nanovllm::cli
