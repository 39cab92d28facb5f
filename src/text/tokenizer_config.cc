#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "text/json_fields.h"
#include "text/tokenizer_impl.h"

namespace nanovllm::text {

namespace {

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

// The id of the token that the configuration names, or else of `otherwise`; -1: none.
int32_t id_of(const Fields& config, const TokenizerParts& parts, const char* name,
              const char* otherwise) {
  const std::string content = token_content(config, name).value_or(otherwise);
  const int32_t id = parts.added.find(content);
  return id >= 0 ? id : parts.model->vocabulary().find(content);
}

// The classes of transformers 4 that write the post-processor anew, with their defaults. All others
// take it as it is and ignore add_bos_token and add_eos_token.
struct TokenizerClass {
  std::string_view name;
  bool adds_bos;
  const char *bos, *eos;
};
constexpr TokenizerClass kClasses[] = {
    {"LlamaTokenizer", true, "<s>", "</s>"},
    {"CodeLlamaTokenizer", true, "<s>", "</s>"},
    {"GemmaTokenizer", true, "<bos>", "<eos>"},
    {"CohereTokenizer", true, "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"},
    {"GPTNeoXTokenizer", false, "<|endoftext|>", "<|endoftext|>"},
};

const TokenizerClass* find_class(std::string_view name) {
  if (name.ends_with("Fast")) name.remove_suffix(4);
  const auto* found = std::ranges::find(kClasses, name, &TokenizerClass::name);
  return found == std::end(kClasses) ? nullptr : found;
}

}  // namespace

void apply_tokenizer_config(std::string_view json, const std::string& origin,
                            TokenizerParts& parts) {
  const Json document = parse_part(json, "the document", origin);
  const Fields config(document, origin, "the document");
  add_missing_tokens(config, parts);
  const int32_t eos = config.find("eos_token") ? id_of(config, parts, "eos_token", "") : -1;
  if (eos >= 0) parts.eos_token_ids = {eos};
  const auto* named = find_class(config.optional_string("tokenizer_class").value_or(""));
  if (named == nullptr) return;
  const auto end_id = [&](const char* flag, bool otherwise, const char* token, const char* usual) {
    if (!config.boolean_or(flag, otherwise)) return -1;
    const int32_t id = id_of(config, parts, token, usual);
    if (id < 0 && config.find(token)) {
      config.fail(fmt::format("has a {} '{}' that is not a token", token,
                              printable(*token_content(config, token))));
    }
    return id;
  };
  parts.post_processor.set_ends(end_id("add_bos_token", named->adds_bos, "bos_token", named->bos),
                                end_id("add_eos_token", false, "eos_token", named->eos));
}

}  // namespace nanovllm::text
