#include "server/config_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/check.h"

namespace nanovllm::server {

namespace {

constexpr std::string_view kFlag = "--config";

// Takes --config and its value away; the last one holds.
std::optional<std::string> take_config(std::vector<std::string>& words) {
  std::optional<std::string> path;
  std::vector<std::string> others;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == kFlag && i + 1 < words.size()) {
      path = words[++i];
    } else if (words[i].starts_with("--config=")) {
      path = words[i].substr(kFlag.size() + 1);
    } else {
      others.push_back(std::move(words[i]));
    }
  }
  words = std::move(others);
  return path;
}

nlohmann::ordered_json to_json(const YAML::Node& node) {
  if (node.IsMap()) {
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    for (const auto& entry : node) object[entry.first.as<std::string>()] = to_json(entry.second);
    return object;
  }
  if (node.IsSequence()) {
    nlohmann::ordered_json array = nlohmann::ordered_json::array();
    for (const YAML::Node& item : node) array.push_back(to_json(item));
    return array;
  }
  // What is a number, true, false or null there is the same in JSON; all else is a text.
  const std::string text = node.IsNull() ? "null" : node.Scalar();
  auto value = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (node.Tag() == "!" || value.is_discarded() || value.is_structured()) return text;
  return value;
}

std::string text_of(const YAML::Node& node) {
  return node.IsScalar() ? node.Scalar() : to_json(node).dump();
}

void append_flag(const std::string& name, const YAML::Node& value, std::vector<std::string>& out) {
  const std::string flag = "--" + name;
  if (value.IsNull() && name == "api-key") out.insert(out.end(), {flag, ""});  // to be refused
  if (value.IsNull()) return;
  const auto append = [&](const std::string& text) {
    if (text.empty()) {
      out.insert(out.end(), {flag, text});
    } else {
      out.push_back(flag + "=" + text);  // one word: what is wrong with it is told with its name
    }
  };
  if (value.IsSequence()) {
    for (const YAML::Node& item : value) append(text_of(item));
    return;
  }
  bool is_on = false;
  // YAML's words for it, without its "y" and "n": true, yes, on, ...
  const bool is_bool = value.IsScalar() && value.Tag() != "!" && value.Scalar().size() > 1 &&
                       YAML::convert<bool>::decode(value, is_on);
  append(!is_bool ? text_of(value) : is_on ? "true" : "false");
}

std::vector<std::string> flags_of(const std::string& path, bool with_model) {
  if (path.empty()) {
    throw_error(ErrorCode::kInvalidArgument,
                "--config: must not be empty; leave the option out if that is meant");
  }
  YAML::Node file;
  try {
    file = YAML::LoadFile(path);
  } catch (const YAML::BadFile&) {
    throw_error(ErrorCode::kNotFound, "{}: the file of --config can't be read.", path);
  } catch (const YAML::Exception& error) {
    throw_error(ErrorCode::kCorruptData, "{}: not YAML: {}.", path, error.what());
  }
  std::vector<std::string> flags;
  if (file.IsNull()) return flags;
  if (!file.IsMap()) {
    throw_error(ErrorCode::kCorruptData,
                "{}: a --config file is a map of flags to their values, such as \"port: 8000\".",
                path);
  }
  for (const auto& entry : file) {
    std::string name = entry.first.as<std::string>("");
    std::replace(name.begin(), name.end(), '_', '-');
    if (name != "model" && name != "model-tag") {
      append_flag(name, entry.second, flags);
    } else if (with_model) {
      flags.insert(flags.begin(), text_of(entry.second));
    }
  }
  return flags;
}

}  // namespace

std::string path_of_config(std::vector<std::string> words) {
  return take_config(words).value_or("");
}

std::vector<std::string> with_config_file(std::vector<std::string> words) {
  const std::optional<std::string> path = take_config(words);
  if (!path) return words;
  const bool has_model = !words.empty() && !words.front().starts_with("-");
  std::vector<std::string> flags = flags_of(*path, !has_model);
  // MODEL stays in front: a flag of several values would take it for one.
  const auto place = words.begin() + (has_model ? 1 : 0);
  words.insert(place, std::make_move_iterator(flags.begin()), std::make_move_iterator(flags.end()));
  return words;
}

}  // namespace nanovllm::server
