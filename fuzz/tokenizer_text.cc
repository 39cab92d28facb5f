// Any bytes as text to encode and as ids to decode. The first byte chooses the tokenizer and where
// the text is cut.
#include <cstring>

#include "check_ids.h"
#include "fuzzing.h"
#include "text/detokenizer.h"
#include "text/testing.h"

namespace nanovllm {
namespace {

using fuzzing::require;
using text::TestJson;

struct Fixture {
  std::unique_ptr<Tokenizer> tokenizer;
  bool is_lossless;  // decode(encode(text)) is the text
};

TestJson with(TestJson json, const char* part, const char* value) {
  json[part] = TestJson::parse(value);
  return json;
}

// The flags that make added tokens take more than their own spelling.
TestJson with_flagged_tokens(TestJson json) {
  for (const char* flag : {"lstrip", "rstrip", "single_word", "normalized"}) {
    json["added_tokens"].push_back(text::added_token_json(std::string("[") + flag[0] + "]", false));
    json["added_tokens"].back()[flag] = true;
  }
  return json;
}

std::vector<Fixture> make_fixtures() {
  std::vector<Fixture> fixtures;
  const auto add = [&](const TestJson& json, bool is_lossless) {
    fixtures.push_back({text::make_tokenizer(json), is_lossless});
  };
  const TestJson bytes = text::byte_level_json();
  const TestJson pieces = text::sentence_piece_json();
  const TestJson qwen = with(bytes, "pre_tokenizer", R"JSON({"type": "Sequence", "pretokenizers": [
      {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
       "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]})JSON");
  const TestJson regex = with(bytes, "pre_tokenizer", R"JSON({"type": "Sequence", "pretokenizers": [
      {"type": "Digits", "individual_digits": true},
      {"type": "Split", "behavior": "MergedWithPrevious", "invert": true,
       "pattern": {"Regex": "\\s?\\p{L}+|[\\p{P}\\p{S}&&[^'_]]"}},
      {"type": "Punctuation", "behavior": "Contiguous"},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]})JSON");
  add(bytes, true);
  add(qwen, true);
  add(regex, true);
  add(with_flagged_tokens(with(qwen, "normalizer", R"({"type": "NFC"})")), false);
  add(with_flagged_tokens(with(bytes, "normalizer", R"({"type": "Sequence", "normalizers": [
      {"type": "NFKC"}, {"type": "Lowercase"},
      {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}]})")),
      false);
  add(pieces, false);
  add(with_flagged_tokens(pieces), false);
  const char* metaspace = R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
                              "split": true})";
  add(with(with(with(pieces, "normalizer", "null"), "pre_tokenizer", metaspace), "decoder",
           metaspace),
      false);
  const TestJson unigram = text::unigram_json();
  add(unigram, false);
  add(with_flagged_tokens(with(unigram, "normalizer", "null")), false);
  // XGLM's shape and XLNet's.
  const char* blanks = R"({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
      {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}]})";
  TestJson xglm = with(unigram, "pre_tokenizer", blanks);
  xglm["normalizer"] = {
      {"type", "Precompiled"},
      {"precompiled_charsmap",
       text::base64_of(text::table_of(
           {{"A", "a"}, {"½", "1⁄2"}, {"ﬁ", "fi"}, {"e\u0301", "é"}, {"\n", " "}, {"\v", ""}}))}};
  add(xglm, false);
  add(with(with(unigram, "normalizer", R"({"type": "Sequence", "normalizers": [
      {"type": "Replace", "pattern": {"String": "``"}, "content": "\""},
      {"type": "NFKD"}, {"type": "StripAccents"},
      {"type": "Strip", "strip_left": true, "strip_right": false}]})"),
           "pre_tokenizer", blanks),
      false);
  return fixtures;
}

void check_text(const Fixture& fixture, std::string_view text) {
  const Tokenizer& tokenizer = *fixture.tokenizer;
  const std::vector<int32_t> ids = tokenizer.encode(text, false);
  const std::string replaced = text::replace_invalid_utf8(text);
  require(tokenizer.encode(replaced, false) == ids, "invalid UTF-8 counts as U+FFFD");
  if (fixture.is_lossless) {
    require(tokenizer.decode(ids, false) == replaced, "decoding gives the text back");
  }
}

// Parts of the text itself as stop strings: what is found must not depend on the pieces.
void check_stops(std::string_view text, size_t cut) {
  const std::vector<std::string> stops = {std::string(text.substr(text.size() / 2, cut % 7)),
                                          std::string(text.substr(text.size() / 3, 2))};
  StopStringMatcher at_once(stops, false), in_pieces(stops, false);
  const auto expected = at_once.append(text);
  std::string shown;
  int matched = -1;
  for (size_t at = 0; at < text.size() && matched < 0; at += 1 + cut % 5) {
    const auto result = in_pieces.append(text.substr(at, 1 + cut % 5));
    shown += result.text;
    matched = result.matched;
  }
  require(matched == expected.matched, "a stop string is found however the text is cut");
  require(shown + in_pieces.finish() == expected.text + at_once.finish(), "and leaves one text");
}

}  // namespace
}  // namespace nanovllm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  static const std::vector<Fixture> kFixtures = make_fixtures();
  if (size == 0) return 0;
  const Fixture& fixture = kFixtures[data[0] % kFixtures.size()];
  const size_t cut = data[0] / kFixtures.size();
  const std::string_view text = fuzzing::as_text(data + 1, size - 1);
  check_text(fixture, text);
  check_stops(text, cut);
  std::vector<int32_t> ids(text.begin(), text.end());  // half of them negative
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i % 3 != 0) ids[i] = static_cast<uint8_t>(text[i]) + 12 * static_cast<int32_t>(cut % 2);
  }
  fuzzing::check_ids(*fixture.tokenizer, ids, cut % 2 == 0);
  ids.resize(text.size() / 4);  // any 32 bits
  if (!ids.empty()) std::memcpy(ids.data(), text.data(), ids.size() * 4);
  fuzzing::check_ids(*fixture.tokenizer, ids, false);
  return 0;
}
