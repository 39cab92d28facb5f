#include "server/openai/protocol.h"

#include <optional>

#include "base/version.h"
#include "io/json.h"
#include "nanovllm/tokenizer.h"
#include "server/openai/chat_prompt.h"
#include "server/openai/prompt_tokens.h"

namespace nanovllm::server {
namespace {

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// transformers has special tokens as objects; as vLLM, this tells their texts.
Json with_token_texts(const Json& value) {
  if (value.is_object() && value.contains("content")) return value["content"];
  if (!value.is_structured()) return value;
  Json result = value;
  for (Json& item : result) item = with_token_texts(item);
  return result;
}

Json model_json(const ServedModel& model, const std::string& name) {
  const Json permission = {{"id", "modelperm-" + name},
                           {"object", "model_permission"},
                           {"created", model.created},
                           {"allow_create_engine", false},
                           {"allow_sampling", true},
                           {"allow_logprobs", true},
                           {"allow_search_indices", false},
                           {"allow_view", true},
                           {"allow_fine_tuning", false},
                           {"organization", "*"},
                           {"group", nullptr},
                           {"is_blocking", false}};
  return {{"id", name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "vllm"},  // clients tell by it which extra fields there are
          {"root", model.preparer.model_dir},
          {"parent", nullptr},
          // Less than was asked for where the KV cache holds no more.
          {"max_model_len", model.preparer.info.max_num_tokens()},
          {"permission", Json::array({permission})}};
}

const Tokenizer& tokenizer_of(const ServedModel& model) {
  if (model.preparer.tokenizer == nullptr) refuse("", "{} has no tokenizer.", model.names.front());
  return *model.preparer.tokenizer;
}

}  // namespace

std::string tokenize_body(std::string_view body, const ServedModel& model) {
  const RequestFields fields(body, "TokenizeRequest", model);
  const Tokenizer& tokenizer = tokenizer_of(model);
  std::vector<int32_t> ids;
  if (fields.find("messages") != nullptr) {
    const ChatPrompt prompt = render_chat(fields, model);
    check_fits(prompt.text, model);
    ids = tokenizer.encode(prompt.text, prompt.add_special_tokens);
  } else {
    const auto prompt = fields.text("prompt");
    if (!prompt) refuse("prompt", "prompt or messages must be given.");
    fields.check_model();
    check_fits(*prompt, model);
    ids = tokenizer.encode(*prompt, fields.boolean("add_special_tokens", true));
  }
  Json answer = {{"count", ids.size()},
                 {"max_model_len", model.preparer.info.max_model_len},
                 {"tokens", ids},
                 {"token_strs", nullptr}};
  if (fields.boolean("return_token_strs")) {
    Json& texts = answer["token_strs"] = Json::array();
    for (const int32_t id : ids) texts.push_back(tokenizer.id_to_token(id).value_or(""));
  }
  return dumped(answer);
}

std::string detokenize_body(std::string_view body, const ServedModel& model) {
  const RequestFields fields(body, "DetokenizeRequest", model);
  const auto ids =
      token_ids_of(*fields.find("tokens"), "tokens", model.preparer.info.vocab_size - 1);
  fields.check_model();
  return dumped({{"prompt", tokenizer_of(model).decode(ids, false)}});
}

std::string models_body(const ServedModel& model) {
  Json list = Json::array();
  for (const std::string& name : model.names) list.push_back(model_json(model, name));
  return dumped({{"object", "list"}, {"data", std::move(list)}});
}

std::string model_body(const ServedModel& model, const std::string& name) {
  check_model_name(name, model);
  return dumped(model_json(model, name));
}

std::string tokenizer_info_body(std::string_view config, std::string_view chat_template) {
  Json info = config.empty() ? Json::object() : parse_ordered_json(config, "tokenizer_config.json");
  for (const char* file : {"vocab_file", "merges_file"}) info.erase(file);
  for (Json& item : info) item = with_token_texts(item);
  if (!info.contains("tokenizer_class")) info["tokenizer_class"] = "PreTrainedTokenizerFast";
  if (!chat_template.empty()) info["chat_template"] = chat_template;
  return dumped(info);
}

std::string version_body() { return dumped({{"version", kVersion}}); }

}  // namespace nanovllm::server
