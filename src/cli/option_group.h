// Declares options of one group of the help.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/options.h"
#include "nanovllm/error.h"

namespace nanovllm::cli {

// A variable that is not set, as a rule, where a text is meant.
inline std::string fault_of_empty(const std::string& text) {
  return text.empty() ? "must not be empty; leave the option out if that is meant" : "";
}

// One of the flags of a group of the help; they keep their defaults where they are not given.
class Group {
 public:
  Group(CLI::App& app, const char* name) : app_(app), name_(name) {}

  template <typename T>
  CLI::Option* add(const char* flag, T& value, const std::string& help) {
    return app_.add_option(flag, value, help)->capture_default_str()->group(name_);
  }
  CLI::Option* add(const char* flag, std::string& value, const std::string& help) {
    return add<std::string>(flag, value, help)->check(CLI::Validator(fault_of_empty, ""));
  }
  void add(const char* flag, bool& value, const char* help) {
    app_.add_flag(flag, value, help)->group(name_);
  }
  CLI::Option* add(const char* flag, std::vector<std::string>& values, const char* help) {
    return app_.add_option(flag, values, std::string(help) + " (may be several)")
        ->option_text("TEXT")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->allow_extra_args(false)
        ->group(name_);
  }
  void add(const char* flag, int& value, const char* help, int least) {
    add(flag, value, help)->check(at_least(least));
  }
  // Whole or broken seconds.
  void add(const char* flag, std::chrono::milliseconds& value, const char* help,
           double least = 0.001) {
    const auto set = [flag, &value, least](const double& seconds) {
      if (!(seconds >= least && seconds <= 1e6)) {  // nan is neither
        throw CLI::ValidationError(
            flag, fmt::format("must be from {} to 1000000 seconds, got {}", least, seconds));
      }
      value = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
    };
    app_.add_option_function<double>(flag, set, help)
        ->default_str(fmt::format("{}", static_cast<double>(value.count()) / 1000))
        ->option_text("SECONDS")
        ->group(name_);
  }
  // Bytes, at most so many of a request.
  void add_size(const char* flag, int64_t& value) {
    const auto set = [flag, &value](const std::string& text) {
      try {
        value = parse_bytes(text);
      } catch (const Error& error) {
        throw CLI::ValidationError(flag, error.what());
      }
      if (value < 1) throw CLI::ValidationError(flag, "must be at least 1 byte, got " + text);
    };
    app_.add_option_function<std::string>(flag, set, "of a request")
        ->default_str(fmt::format("{}K", value >> 10))
        ->option_text("BYTES")
        ->group(name_);
  }
  void add(const char* flag, nlohmann::ordered_json& object, const char* help) {
    const auto set = [flag, &object](const std::string& text) {
      object = nlohmann::ordered_json::parse(text, nullptr, false);
      if (object.is_object()) return;
      throw CLI::ValidationError(flag,
                                 "must be a JSON object, such as {\"enable_thinking\": false}");
    };
    app_.add_option_function<std::string>(flag, set, help)->option_text("JSON")->group(name_);
  }
  // A name of `names`.
  void add(const char* flag, std::string& value, const char* what,
           const std::vector<std::string>& names) {
    add(flag, value,
        fmt::format("{}: {} (default: what fits the model)", what, fmt::join(names, ", ")))
        ->check(CLI::IsMember(names))
        ->option_text("NAME");
  }

 private:
  CLI::App& app_;
  const char* name_;
};

}  // namespace nanovllm::cli
