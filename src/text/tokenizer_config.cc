#include "text/tokenizer_config.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "text/json_fields.h"

namespace nanovllm::text {

namespace {

int32_t find_token(const TokenizerParts& parts, const std::string& content) {
  const int32_t id = parts.added.find(content);
  return id >= 0 ? id : parts.model->vocabulary().find(content);
}

void add_missing_tokens(const Fields& config, TokenizerParts& parts) {
  const Json* table = config.find("added_tokens_decoder");
  if (table == nullptr) return;
  if (!table->is_object()) config.fail("has an added_tokens_decoder that is not an object");
  std::map<uint32_t, AddedToken> missing;  // by id
  for (const auto& [key, value] : table->items()) {
    const Fields fields(value, config.origin(), "added_tokens_decoder." + key);
    uint32_t id = 0;
    for (const char c : key) {
      if (c < '0' || c > '9' || (id = id * 10 + static_cast<uint32_t>(c - '0')) > kMaxTokenId) {
        fields.fail("is not named by a token id");
      }
    }
    AddedToken token = parse_added_token(fields);
    if (parts.added.find(token.content) < 0) missing.emplace(id, std::move(token));
  }
  for (auto& [id, token] : missing) {
    const auto given = static_cast<int32_t>(id);
    const int32_t known = parts.model->vocabulary().find(token.content);
    const bool taken = parts.added.get(given) != nullptr ||
                       (known != given && parts.model->vocabulary().has_id(given));
    if (token.content.empty() || (known >= 0 && known != given) || taken) {
      throw_error(ErrorCode::kCorruptData,
                  "{}: added_tokens_decoder.{} contradicts tokenizer.json, which has another token "
                  "or id there",
                  config.origin(), id);
    }
    parts.added.add_with_id(std::move(token), given);
  }
}

// "<s>" or {"content": "<s>", ...}
std::optional<std::string> token_content(const Fields& config, const char* name) {
  const Json* value = config.find(name);
  if (value == nullptr || value->is_string()) return config.optional_string(name);
  return Fields(*value, config.origin(), name).string("content");
}

std::optional<int32_t> id_of(const Fields& config, const TokenizerParts& parts, const char* name) {
  const auto content = token_content(config, name);
  const int32_t id = content ? find_token(parts, *content) : -1;
  return id < 0 ? std::nullopt : std::optional(id);
}

// The id that `flag` puts at an end of the text, -1: none; nothing when the flag is not set.
std::optional<int32_t> wanted_id(const Fields& config, const TokenizerParts& parts,
                                 const char* flag, const char* token) {
  if (config.find(flag) == nullptr) return std::nullopt;
  const auto content = token_content(config, token);
  if (!config.boolean(flag) || !content) return -1;
  const auto id = id_of(config, parts, token);
  if (!id)
    config.fail(fmt::format("has a {} '{}' that is not a token", token, printable(*content)));
  return id;
}

}  // namespace

void apply_tokenizer_config(std::string_view json, const std::string& origin,
                            TokenizerParts& parts) {
  const Json document = parse_part(json, "the document", origin);
  const Fields config(document, origin, "the document");
  add_missing_tokens(config, parts);
  if (const auto id = id_of(config, parts, "eos_token")) parts.eos_token_ids = {*id};
  const auto bos = wanted_id(config, parts, "add_bos_token", "bos_token");
  const auto eos = wanted_id(config, parts, "add_eos_token", "eos_token");
  if (bos || eos) parts.post_processor.set_ends(bos, eos);
}

}  // namespace nanovllm::text
