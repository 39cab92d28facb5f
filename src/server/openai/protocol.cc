#include "server/openai/protocol.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/version.h"
#include "io/json.h"
#include "nanovllm/tokenizer.h"
#include "server/openai/answer.h"
#include "server/openai/chat_prompt.h"

namespace nanovllm::server {
namespace {

const char* type_of(int status) {
  constexpr std::pair<int, const char*> kTypes[] = {{401, "Unauthorized"},
                                                    {403, "Forbidden"},
                                                    {404, "NotFoundError"},
                                                    {405, "Method Not Allowed"},
                                                    {413, "Request Entity Too Large"},
                                                    {415, "Unsupported Media Type"},
                                                    {429, "Too Many Requests"},
                                                    {503, "ServiceUnavailableError"}};
  for (const auto& [known, type] : kTypes) {
    if (status == known) return type;
  }
  return status >= 500 ? "InternalServerError" : "BadRequestError";
}

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

const Tokenizer& tokenizer_of(const ServedModel& model) {
  if (model.preparer.tokenizer == nullptr) refuse("", "{} has no tokenizer.", model.names.front());
  return *model.preparer.tokenizer;
}

}  // namespace

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
    case ErrorCode::kCorruptData:
      return 400;
    case ErrorCode::kUnavailable:
      return 503;
    case ErrorCode::kNotFound:
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
      return 500;
  }
  return 500;
}

std::string error_body(int status, const std::string& message, const std::string& param,
                       const std::string& type) {
  Json error = {{"message", message},
                {"type", type.empty() ? type_of(status) : type},
                {"param", nullptr},
                {"code", status}};
  if (!param.empty()) error["param"] = param;
  return dumped({{"error", std::move(error)}});
}

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
  for (const std::string& name : model.names) {
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
    list.push_back({{"id", name},
                    {"object", "model"},
                    {"created", model.created},
                    {"owned_by", "vllm"},  // clients tell by it which extra fields there are
                    {"root", model.preparer.model_dir},
                    {"parent", nullptr},
                    {"max_model_len", model.preparer.info.max_model_len},
                    {"permission", Json::array({permission})}});
  }
  return dumped({{"object", "list"}, {"data", std::move(list)}});
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

std::string missing_path(std::string_view path) {
  if (path == kTokenizerInfo)
    return "/tokenizer_info is there where the server has --enable-tokenizer-info-endpoint.";
  // clang-format off
  constexpr std::string_view kOfVllm[] = {
      "/v1/responses", "/v1/embeddings", "/v1/messages", "/v1/audio", "/v1/score", "/v1/rerank",
      "/v2/rerank", "/v2/embed", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
      "/v1/realtime", "/score", "/rerank", "/pooling", "/classify", "/invocations", "/inference",
      "/load", "/sleep", "/wake_up", "/reset_prefix_cache", "/start_profile"};
  // clang-format on
  const bool is_of_vllm = std::ranges::any_of(kOfVllm, [&](std::string_view known) {
    return path.starts_with(known) && (path.size() == known.size() || path[known.size()] == '/');
  });
  return fmt::format(
      "{} is {}; there are /v1/completions, /v1/chat/completions, /v1/models, /tokenize, "
      "/detokenize, /health, /version, /metrics and /openapi.json.",
      printable(path),
      is_of_vllm ? "an endpoint of vLLM that this server does not have" : "not found");
}

}  // namespace nanovllm::server
