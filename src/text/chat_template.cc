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
#include "text/json_fields.h"
#include "text/tokenizer_gguf.h"

namespace nanovllm {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

std::optional<std::string> read_file(const fs::path& path) {
  if (!file_exists(path)) return std::nullopt;
  return read_text_file(path);
}

// An empty object where there is no such file.
Json read_json(const fs::path& path) {
  Json json = parse_ordered_json(read_file(path).value_or("{}"), path.string());
  if (!json.is_object()) {
    throw_error(ErrorCode::kCorruptData, "{}: not a JSON object", path.string());
  }
  return json;
}

using Sources = std::map<std::string, std::string>;  // name to template

// A template, or a list of named ones.
void add_sources(const Json& config, const std::string& origin, Sources& sources) {
  const text::Fields fields(config, origin, "the file");
  const Json* found = fields.find("chat_template");
  if (found == nullptr) return;
  if (found->is_string()) {
    sources["default"] = found->get<std::string>();
    return;
  }
  for (size_t i = 0; i < fields.array("chat_template").size(); ++i) {
    const text::Fields entry = fields.element("chat_template", i);
    sources[entry.string("name")] = entry.string("template");
  }
}

Sources find_sources(const fs::path& folder, const Json& config) {
  Sources sources;
  if (auto text = read_file(folder / "chat_template.jinja")) sources["default"] = std::move(*text);
  const fs::path additional = folder / "additional_chat_templates";
  if (file_exists(additional)) {
    if (auto text = read_file(additional / "tool_use.jinja"))
      sources["tool_use"] = std::move(*text);
  }
  const fs::path legacy = folder / "chat_template.json";
  if (sources.empty()) add_sources(read_json(legacy), legacy.string(), sources);
  if (sources.empty()) add_sources(config, folder / "tokenizer_config.json", sources);
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
    const Json value = source.value(name, Json());
    const Json content = value.is_object() ? value.value("content", Json()) : value;
    if (content.is_string()) tokens[name] = content;
  }
}

// Folders from before added_tokens_decoder keep them in a file of their own, which goes first.
Json find_special_tokens(const fs::path& folder, const Json& config) {
  Json tokens = Json::object();
  add_special_tokens(config, tokens);
  if (!config.contains("added_tokens_decoder")) {
    add_special_tokens(read_json(folder / "special_tokens_map.json"), tokens);
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
  constexpr const char* kRead = "reasoning_content";
  for (const char* name : {"thinking", "reasoning"}) {
    if (prepared.contains(name)) prepared.emplace(kRead, Json(prepared[name]));
  }
  if (prepared.contains(kRead)) prepared.emplace("thinking", Json(prepared[kRead]));
  return prepared;
}

}  // namespace

struct ChatTemplate::Impl {
  std::map<std::string, jinja::Program> programs;  // by name
  std::string source;                              // of all of them
  Json special_tokens = Json::object();

  const jinja::Program& choose(bool has_tools) const {
    const auto tool_use = programs.find("tool_use");
    if (has_tools && tool_use != programs.end()) return tool_use->second;
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
    const Json config = read_json(folder / "tokenizer_config.json");
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
