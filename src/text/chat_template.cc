#include <algorithm>
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
#include "text/chat_messages.h"
#include "text/jinja/jinja.h"
#include "text/json_fields.h"
#include "text/template_habits.h"
#include "text/tokenizer_gguf.h"

namespace nanovllm {
namespace {

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

struct Source {
  std::string text;
  std::string origin;  // the file, for errors
};
using Sources = std::map<std::string, Source>;  // by name

// A template, or a list of named ones.
void add_sources(const Json& config, const std::string& origin, Sources& sources) {
  const text::Fields fields(config, origin + ": the file");
  const Json* found = fields.find("chat_template");
  if (found == nullptr) return;
  if (found->is_string()) {
    sources["default"] = {found->get<std::string>(), origin};
    return;
  }
  for (size_t i = 0; i < fields.array("chat_template").size(); ++i) {
    const text::Fields entry = fields.element("chat_template", i);
    sources[entry.string("name")] = {entry.string("template"), origin};
  }
}

Sources find_sources(const fs::path& folder, const Json& config) {
  Sources sources;
  const auto add_file = [&](const char* name, const fs::path& path) {
    if (auto text = read_file(path)) sources[name] = {std::move(*text), path.string()};
  };
  add_file("default", folder / "chat_template.jinja");
  const fs::path additional = folder / "additional_chat_templates";
  if (file_exists(additional)) add_file("tool_use", additional / "tool_use.jinja");
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
    const std::string text(gguf.string(key).value());
    sources[rest.empty() ? "default" : std::string(rest.substr(1))] = {
        text, fmt::format("{}: {}", gguf.path(), printable(key))};
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

// Of a dialogue of a few words, which takes thousands.
constexpr int64_t kMaxProbeSteps = 200'000;

}  // namespace

struct ChatTemplate::Impl {
  // A template, what it takes, or why it can't be used.
  struct Compiled {
    std::optional<jinja::Program> program = {};
    text::TemplateHabits habits = {};
    std::string fault = {};
  };

  std::map<std::string, Compiled> templates;  // by name
  std::string source;                         // of all of them
  Json special_tokens = Json::object();
  std::string added_bos;  // that a GGUF file wants before a prompt; empty = none

  void compile(const std::string& name, const Source& from) {
    source += from.text;
    Compiled& compiled = templates[name];
    try {
      compiled.program.emplace(from.text);
      compiled.habits = text::find_habits([&](const Json& messages, const Json& tools) {
        return compiled.program->render(variables(messages, tools, true, tokens_for_probes()),
                                        {.limits = {.max_steps = kMaxProbeSteps}, .now = {}});
      });
    } catch (const Error& error) {
      compiled.fault =
          fmt::format("{}{}{}", from.origin, from.origin.empty() ? "" : ": ", error.what());
    }
  }

  void check(const char* name) const {
    const std::string& fault = templates.at(name).fault;
    if (!fault.empty()) throw_error(ErrorCode::kCorruptData, "{}", fault);
  }

  const Compiled& choose(bool has_tools) const {
    const auto tool_use = templates.find("tool_use");
    if (has_tools && tool_use != templates.end()) return tool_use->second;
    const auto found = templates.find("default");
    if (found != templates.end()) return found->second;
    throw_error(ErrorCode::kInvalidArgument,
                "the model has several chat templates and none of them is named 'default'");
  }

  // Templates without a model have none, and fail where they write them.
  Json tokens_for_probes() const {
    Json tokens = Json::object();
    for (const char* name : text::kSpecialTokens) {
      tokens[name] = special_tokens.value(name, Json(fmt::format("<{}>", name)));
    }
    return tokens;
  }

  Json variables(Json messages, const Json& tools, bool add_generation_prompt,
                 const Json& kwargs) const {
    Json variables = special_tokens;
    variables["documents"] = nullptr;
    for (const auto& [name, value] : kwargs.items()) variables[name] = value;
    variables["messages"] = std::move(messages);
    variables["tools"] = tools;
    variables["add_generation_prompt"] = add_generation_prompt;
    return variables;
  }

  // What a model's folder or file says beside its templates. Returns the templates.
  Sources read(const std::string& model) {
    if (const auto path = find_gguf(model)) {
      const Gguf gguf(*path);
      special_tokens = text::gguf_special_tokens(gguf);
      added_bos = text::gguf_added_bos(gguf);
      return find_sources(gguf);
    }
    const fs::path folder(model);
    const Json config = read_json(folder / "tokenizer_config.json");
    special_tokens = find_special_tokens(folder, config);
    return find_sources(folder, config);
  }
};

std::unique_ptr<ChatTemplate> ChatTemplate::load(const std::string& model) {
  auto result = std::unique_ptr<ChatTemplate>(new ChatTemplate());
  const Sources sources = result->impl_->read(model);
  if (sources.empty()) {
    throw_error(ErrorCode::kNotFound,
                "{}: no chat template (looked for chat_template.jinja, chat_template.json and "
                "chat_template in tokenizer_config.json, or tokenizer.chat_template in a GGUF "
                "file); give one with --chat-template",
                model);
  }
  for (const auto& [name, source] : sources) result->impl_->compile(name, source);
  return result;
}

std::unique_ptr<ChatTemplate> ChatTemplate::from_source(const std::string& source,
                                                        const std::string& model,
                                                        const std::string& origin) {
  auto result = std::unique_ptr<ChatTemplate>(new ChatTemplate());
  result->impl_->read(model);
  result->impl_->compile("default", {source, origin});
  result->impl_->check("default");
  return result;
}

ChatTemplate::ChatTemplate() : impl_(std::make_unique<Impl>()) {}

ChatTemplate::ChatTemplate(const std::string& source) : ChatTemplate() {
  impl_->compile("default", {source, {}});
  impl_->check("default");
}

ChatTemplate::~ChatTemplate() = default;

const std::string& ChatTemplate::source() const { return impl_->source; }

std::string ChatTemplate::fault(bool has_tools) const {
  try {
    return impl_->choose(has_tools).fault;
  } catch (const Error& error) {
    return error.what();
  }
}

bool ChatTemplate::adds_bos() const { return !impl_->added_bos.empty(); }

bool ChatTemplate::wants_short_call_ids() const {
  return std::ranges::any_of(
      impl_->templates, [](const auto& entry) { return entry.second.habits.wants_short_call_ids; });
}

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
  const Impl::Compiled& chosen = impl_->choose(!tools.is_null());
  if (!chosen.program) throw_error(ErrorCode::kCorruptData, "{}", chosen.fault);
  const Json described =
      chosen.habits.wants_descriptions ? text::with_descriptions(tools) : nullptr;
  std::string text = chosen.program->render(
      impl_->variables(text::prepare_messages(messages, chosen.habits),
                       described.is_null() ? tools : described, add_generation_prompt, kwargs));
  const std::string& bos = impl_->added_bos;
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  if (text.compare(begin, bos.size(), bos) != 0) text.insert(0, bos);
  return text;
}

}  // namespace nanovllm
