#include <array>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "io/file.h"
#include "io/gguf.h"
#include "io/json.h"
#include "nanovllm/chat.h"
#include "text/added_tokens.h"
#include "text/jinja/jinja.h"
#include "text/tokenizer_gguf.h"

namespace nanovllm {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

// Names a message's reasoning is passed under; the first is the one templates read.
constexpr std::array<const char*, 3> kReasoningNames = {"reasoning_content", "thinking",
                                                        "reasoning"};

std::optional<std::string> read_file(const fs::path& path) {
  if (!file_exists(path)) return std::nullopt;
  return read_text_file(path);
}

std::optional<Json> read_json(const fs::path& path) {
  const std::optional<std::string> text = read_file(path);
  if (!text.has_value()) return std::nullopt;
  Json json = parse_ordered_json(*text, path.string());
  if (!json.is_object()) {
    throw_error(ErrorCode::kCorruptData, "{}: not a JSON object", path.string());
  }
  return json;
}

using Sources = std::map<std::string, std::string>;  // name to template

// A template, or a list of named ones.
void add_sources(const Json& config, const fs::path& path, Sources& sources) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return;
  if (found->is_string()) {
    sources["default"] = found->get<std::string>();
    return;
  }
  if (!found->is_array()) {
    throw_error(ErrorCode::kCorruptData, "{}: chat_template must be a string or a list",
                path.string());
  }
  for (const Json& entry : *found) {
    const bool is_valid = entry.is_object() && entry.contains("name") &&
                          entry["name"].is_string() && entry.contains("template") &&
                          entry["template"].is_string();
    if (!is_valid) {
      throw_error(ErrorCode::kCorruptData,
                  "{}: every entry of chat_template must have a name and a template",
                  path.string());
    }
    sources[entry["name"].get<std::string>()] = entry["template"].get<std::string>();
  }
}

Sources find_sources(const fs::path& folder, const std::optional<Json>& config) {
  Sources sources;
  if (auto text = read_file(folder / "chat_template.jinja")) sources["default"] = std::move(*text);
  const fs::path additional = folder / "additional_chat_templates";
  if (file_exists(additional)) {
    if (auto text = read_file(additional / "tool_use.jinja"))
      sources["tool_use"] = std::move(*text);
  }
  if (!sources.empty()) return sources;
  const fs::path legacy = folder / "chat_template.json";
  if (const auto json = read_json(legacy)) add_sources(*json, legacy, sources);
  if (sources.empty() && config.has_value()) {
    add_sources(*config, folder / "tokenizer_config.json", sources);
  }
  return sources;
}

// tokenizer.chat_template, and others as tokenizer.chat_template.NAME.
Sources find_sources(const GgufMetadata& gguf) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  Sources sources;
  for (const std::string_view key : gguf.keys()) {
    if (!key.starts_with(kKey)) continue;
    const std::string_view rest = key.substr(kKey.size());
    if (!rest.empty() && rest[0] != '.') continue;
    sources[rest.empty() ? "default" : std::string(rest.substr(1))] = gguf.string(key).value();
  }
  return sources;
}

void add_special_tokens(const Json& source, Json& tokens) {
  for (const char* name : text::kSpecialTokens) {
    const auto found = source.find(name);
    if (found == source.end()) continue;
    if (found->is_string()) {
      tokens[name] = *found;
    } else if (found->is_object() && found->contains("content")) {
      tokens[name] = (*found)["content"];
    }
  }
}

// Folders from before added_tokens_decoder keep them in a file of their own, which goes first.
Json find_special_tokens(const fs::path& folder, const std::optional<Json>& config) {
  Json tokens = Json::object();
  if (config.has_value()) add_special_tokens(*config, tokens);
  if (config.has_value() && config->contains("added_tokens_decoder")) return tokens;
  if (const auto map = read_json(folder / "special_tokens_map.json")) {
    add_special_tokens(*map, tokens);
  }
  return tokens;
}

// What clients send is not what every template expects: keys without a value are left out, but for
// the content, which templates tell from an empty one, and reasoning is there under the names that
// templates read, whichever name it came under.
Json prepare_message(const Json& message, size_t index) {
  if (!message.is_object()) {
    throw_error(ErrorCode::kInvalidArgument, "message {} is not an object", index);
  }
  Json prepared = Json::object();
  for (const auto& [name, value] : message.items()) {
    if (!value.is_null() || name == "content") prepared[name] = value;
  }
  for (const char* name : kReasoningNames) {
    const auto found = prepared.find(name);
    if (found == prepared.end()) continue;
    const Json reasoning = *found;
    if (!prepared.contains("thinking")) prepared["thinking"] = reasoning;
    prepared["reasoning_content"] = reasoning;
    break;
  }
  return prepared;
}

}  // namespace

struct ChatTemplate::Impl {
  std::map<std::string, jinja::Program> programs;  // by name
  std::string source;                              // of all of them
  Json special_tokens = Json::object();

  const jinja::Program& choose(bool has_tools) const {
    if (has_tools) {
      const auto tool_use = programs.find("tool_use");
      if (tool_use != programs.end()) return tool_use->second;
    }
    const auto found = programs.find("default");
    if (found != programs.end()) return found->second;
    throw_error(ErrorCode::kInvalidArgument,
                "the model has several chat templates and none of them is named 'default'");
  }
};

std::unique_ptr<ChatTemplate> ChatTemplate::load(const std::string& model) {
  Sources sources;
  auto result = std::unique_ptr<ChatTemplate>(new ChatTemplate());
  if (const auto path = find_gguf(model)) {
    const Gguf gguf(*path);
    sources = find_sources(gguf);
    result->impl_->special_tokens = text::gguf_special_tokens(gguf);
  } else {
    const fs::path folder(model);
    const std::optional<Json> config = read_json(folder / "tokenizer_config.json");
    sources = find_sources(folder, config);
    result->impl_->special_tokens = find_special_tokens(folder, config);
  }
  if (sources.empty()) {
    throw_error(ErrorCode::kNotFound,
                "{}: no chat template (looked for chat_template.jinja, chat_template.json and "
                "chat_template in tokenizer_config.json, or tokenizer.chat_template in a GGUF "
                "file); give one with --chat-template",
                model);
  }
  for (const auto& [name, source] : sources) {
    result->impl_->programs.emplace(name, jinja::Program(source));
    result->impl_->source += source;
  }
  return result;
}

std::unique_ptr<ChatTemplate> ChatTemplate::from_source(const std::string& source,
                                                        const std::string& model) {
  auto result = std::make_unique<ChatTemplate>(source);
  const auto gguf = find_gguf(model);
  result->impl_->special_tokens =
      gguf ? text::gguf_special_tokens(Gguf(*gguf))
           : find_special_tokens(model, read_json(fs::path(model) / "tokenizer_config.json"));
  return result;
}

ChatTemplate::ChatTemplate() : impl_(std::make_unique<Impl>()) {}

ChatTemplate::ChatTemplate(const std::string& source) : ChatTemplate() {
  impl_->programs.emplace("default", jinja::Program(source));
  impl_->source = source;
}

ChatTemplate::~ChatTemplate() = default;

const std::string& ChatTemplate::source() const { return impl_->source; }

std::string ChatTemplate::render(const Json& messages, const Json& tools,
                                 bool add_generation_prompt, const Json& kwargs) const {
  if (!messages.is_array() || messages.empty()) {
    throw_error(ErrorCode::kInvalidArgument, "messages must be an array of at least one message");
  }
  if (!tools.is_null() && !tools.is_array()) {
    throw_error(ErrorCode::kInvalidArgument, "tools must be an array");
  }
  if (!kwargs.is_null() && !kwargs.is_object()) {
    throw_error(ErrorCode::kInvalidArgument, "chat_template_kwargs must be an object");
  }
  Json variables = impl_->special_tokens;
  variables["documents"] = nullptr;
  for (const auto& [name, value] : kwargs.items()) variables[name] = value;
  Json prepared = Json::array();
  for (const Json& message : messages)
    prepared.push_back(prepare_message(message, prepared.size()));
  variables["messages"] = std::move(prepared);
  variables["tools"] = tools;
  variables["add_generation_prompt"] = add_generation_prompt;
  return impl_->choose(!tools.is_null()).render(variables);
}

}  // namespace nanovllm
