#include "text/gguf_pre_tokenizers.h"

#include <algorithm>
#include <vector>

#include "text/json_fields.h"
#include "text/scanner.h"

namespace nanovllm::text {

namespace {

constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Letters with case. Six are escaped, for normalizing this file would change them.
constexpr std::string_view kDeepSeekLetters =
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵ"
    "Ϸ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕ"
    "Ἐ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1F7Dᾀ-ᾴᾶ-ᾼ\u1FBEῂ-ῄ"
    "ῆ-ῌῐ-\u1FD3ῖ-\u1FDBῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126"
    "ℨ\u212A-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭ"
    "Ꚁ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏"
    "𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";

constexpr std::string_view kDeepSeekChinese = "[一-龥\u0800-一가-\uD7FF]+";

constexpr std::string_view kDeepSeek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
    R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kEachDigit;  // stands for the pre-tokenizer Digits

struct Entry {
  std::vector<std::string_view> names;
  std::vector<std::string_view> splits;  // regular expressions; each cuts what the ones before left
  bool nfc = false;
  bool ignore_merges = false;
  bool adds_bos = false;
};

// As the models' own tokenizer.json have them.
std::vector<Entry> all_entries() {
  const std::string_view gpt2 = regex_of(KnownPattern::kGpt2);
  const std::string_view three_digits = regex_of(KnownPattern::kThreeDigits);
  return {
      {.names = {"gpt-2"}, .splits = {gpt2}},
      {.names = {"smollm", "starcoder", "refact"}, .splits = {kEachDigit, gpt2}},
      {.names = {"llama-bpe", "llama3", "llama-v3"},
       .splits = {three_digits},
       .ignore_merges = true,
       .adds_bos = true},
      {.names = {"qwen2", "deepseek-r1-qwen"},
       .splits = {regex_of(KnownPattern::kOneDigit)},
       .nfc = true},
      {.names = {"qwen35"}, .splits = {kQwen35}, .nfc = true},
      {.names = {"tekken"}, .splits = {kTekken}, .ignore_merges = true, .adds_bos = true},
      {.names = {"gpt-4o"}, .splits = {kGpt4o}},
      {.names = {"glm4", "chatglm-bpe", "dbrx", "smaug-bpe"}, .splits = {three_digits}},
      {.names = {"deepseek-llm"},
       .splits = {"[\r\n]", kDeepSeekLetters, "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", R"(\s+$)",
                  kDeepSeekChinese, kEachDigit}},
      {.names = {"deepseek-coder"},
       .splits = {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepSeekChinese, kEachDigit}},
      {.names = {"deepseek-v3"}, .splits = {R"(\p{N}{1,3})", "[一-龥\u3040-ゟ゠-ヿ]+", kDeepSeek3}},
  };
}

Json json_of(const std::vector<std::string_view>& splits) {
  Json steps = Json::array();
  for (const std::string_view split : splits) {
    if (split == kEachDigit) {
      steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
    } else {
      steps.push_back({{"type", "Split"},
                       {"pattern", {{"Regex", split}}},
                       {"behavior", "Isolated"},
                       {"invert", false}});
    }
  }
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

}  // namespace

GgufPreTokenizer gguf_pre_tokenizer(std::string_view name, const std::string& origin) {
  std::string known;
  for (const Entry& entry : all_entries()) {
    for (const std::string_view its_name : entry.names) {
      if (its_name == name) {
        return {.pre_tokenizer = PreTokenizer(json_of(entry.splits), origin),
                .normalizer = entry.nfc ? Normalizer({{"type", "NFC"}}, origin) : Normalizer(),
                .ignore_merges = entry.ignore_merges};
      }
      known += fmt::format("{}{}", known.empty() ? "" : ", ", its_name);
    }
  }
  throw_error(ErrorCode::kUnsupported,
              "{}: tokenizer.ggml.pre is '{}', which is not supported ({} are)", origin,
              printable(name), known);
}

bool gguf_adds_bos(std::string_view name) {
  return std::ranges::any_of(all_entries(), [&](const Entry& entry) {
    return entry.adds_bos && std::ranges::find(entry.names, name) != entry.names.end();
  });
}

}  // namespace nanovllm::text
