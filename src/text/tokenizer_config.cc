#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/json_fields.h"
#include "text/tokenizer_impl.h"

namespace nanovllm::text {

namespace {

// "<s>" or {"content": "<s>", ...}
AddedToken special_token(const Fields& config, const Json& value, const char* name) {
  if (!value.is_string() && !value.is_object()) {
    config.fail(fmt::format("has a '{}' that is neither a string nor an object", name));
  }
  AddedToken token = value.is_string()
                         ? AddedToken{.content = value.get<std::string>()}
                         : parse_added_token({value, fmt::format("{}.{}", config.where(), name)});
  token.special = true;
  return token;
}

// Makes it an added token where the vocabulary alone has it. Its id, -1: it is nowhere.
int32_t add_special(TokenizerParts& parts, AddedToken token) {
  const int32_t added = parts.added.find(token.content);
  const int32_t id = added >= 0 ? added : parts.model->vocabulary().find(token.content);
  if (added < 0 && id >= 0) parts.added.add(std::move(token), parts.model->vocabulary());
  return id;
}

// As transformers does after it has read tokenizer.json: what the configuration says of a token
// holds, and a token that it alone knows has the id of its content, or the next free one.
void add_configured_tokens(const Fields& config, TokenizerParts& parts) {
  const Vocabulary& vocabulary = parts.model->vocabulary();
  std::map<uint32_t, AddedToken> tokens;  // by id, which only orders them
  if (constexpr const char* kTable = "added_tokens_decoder"; config.find(kTable)) {
    const Fields table = config.part(kTable);
    for (const auto& [key, value] : config.required(kTable).items()) {
      const Fields fields(value, fmt::format("{}.{}", table.where(), printable(key)));
      uint32_t id = 0;
      const char* end = key.data() + key.size();
      if (std::from_chars(key.data(), end, id).ptr != end) {
        fields.fail("is not named by a token id");
      }
      tokens.emplace(id, parse_added_token(fields));
    }
  }
  for (auto& [id, token] : tokens) parts.added.add(std::move(token), vocabulary);
  for (const char* name : kSpecialTokens) {
    const Json* value = config.find(name);
    if (value != nullptr) add_special(parts, special_token(config, *value, name));
  }
  if (constexpr const char* kMore = "additional_special_tokens"; config.find(kMore)) {
    for (const Json& value : config.array(kMore)) {
      add_special(parts, special_token(config, value, kMore));
    }
  }
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
  const Fields config(document, origin + ": the file");
  add_configured_tokens(config, parts);
  if (const Json* eos = config.find("eos_token")) {
    const int32_t id = add_special(parts, special_token(config, *eos, "eos_token"));
    if (id >= 0) parts.eos_token_ids = {id};
  }
  const auto* named = find_class(config.optional_string("tokenizer_class").value_or(""));
  if (named == nullptr) return;
  const auto end_id = [&](const char* flag, bool otherwise, const char* name, const char* usual) {
    const Json* value = config.find(name);
    AddedToken token =
        value ? special_token(config, *value, name) : AddedToken{.content = usual, .special = true};
    const int32_t id = add_special(parts, std::move(token));
    if (!config.boolean_or(flag, otherwise)) return -1;
    if (id < 0 && value) {
      config.fail(fmt::format("has a '{}' that is no token of tokenizer.json", name));
    }
    return id;
  };
  parts.post_processor.set_ends(end_id("add_bos_token", named->adds_bos, "bos_token", named->bos),
                                end_id("add_eos_token", false, "eos_token", named->eos));
}

}  // namespace nanovllm::text
