#include "text/charsmap.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "text/unicode.h"
#include "text/utf8.h"

namespace nanovllm::text {

namespace {

std::optional<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;  // of bits that wait
  while (text.ends_with('=')) text.remove_suffix(1);
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if ((count += 6) < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count));
  }
  return bytes;
}

// The end of the character that a reader sees at `begin`: what follows may combine with it.
size_t grapheme_end(std::string_view text, size_t begin) {
  utf8proc_int32_t state = 0;
  auto last = static_cast<utf8proc_int32_t>(next_character(text, begin));
  for (size_t end = begin; end < text.size(); begin = end) {
    const auto c = static_cast<utf8proc_int32_t>(next_character(text, end));
    // Marks that are newer than the library combine too.
    const bool is_new_mark = utf8proc_category(c) == UTF8PROC_CATEGORY_CN && is_mark(c);
    if (utf8proc_grapheme_break_stateful(last, c, &state) && !is_new_mark) break;
    last = c;
  }
  return begin;
}

}  // namespace

std::optional<Charsmap> Charsmap::from_base64(std::string_view base64) {
  const auto bytes = decode_base64(base64);
  if (!bytes || bytes->size() < 4) return std::nullopt;
  uint32_t size = 0;  // of the trie, in bytes
  std::memcpy(&size, bytes->data(), 4);
  if (size < 4 || size > bytes->size() - 4) return std::nullopt;
  Charsmap map;
  map.units_.resize(size / 4);
  std::memcpy(map.units_.data(), bytes->data() + 4, map.units_.size() * 4);
  map.replacements_ = bytes->substr(4 + map.units_.size() * 4);
  if (find_invalid_utf8(map.replacements_) != map.replacements_.size()) return std::nullopt;
  for (int i = 0; i < 128; ++i) {
    const char c = static_cast<char>(i);
    map.is_plain_[i] = c != '\r' && !map.find({&c, 1});
  }
  return map;
}

// What the shortest prefix of `key` that the table has is replaced by, as in `tokenizers`.
std::optional<std::string_view> Charsmap::find(std::string_view key) const {
  const auto offset_of = [](uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); };
  size_t at = offset_of(units_[0]);
  for (const char c : key) {
    at ^= static_cast<uint8_t>(c);
    if (at >= units_.size() || (units_[at] & 0x800000FF) != static_cast<uint8_t>(c)) break;
    const bool ends = units_[at] >> 8 & 1;
    at ^= offset_of(units_[at]);
    if (!ends) continue;
    if (at >= units_.size()) break;
    const size_t begin = units_[at] & 0x7FFFFFFF;
    const char* text = replacements_.c_str() + std::min(begin, replacements_.size());
    if ((*text & 0xC0) == 0x80) break;  // within a character
    return text;
  }
  return std::nullopt;
}

// A short grapheme is replaced as a whole where the table has a prefix of it; else each of its
// characters is looked up.
void Charsmap::apply(std::string_view text, std::string& out) const {
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    while (end < text.size() && is_plain_[static_cast<uint8_t>(text[end])]) ++end;
    // What is not ASCII may combine with the character before it.
    if (end > begin && end < text.size() && static_cast<uint8_t>(text[end]) >= 0x80) --end;
    out.append(text, begin, end - begin);
    if (end > begin || end == text.size()) continue;
    end = grapheme_end(text, begin);
    const std::string_view grapheme = text.substr(begin, end - begin);
    if (const auto whole = grapheme.size() < 6 ? find(grapheme) : std::nullopt) {
      out.append(*whole);
      continue;
    }
    for (size_t at = 0; at < grapheme.size();) {
      const std::string_view character = grapheme.substr(at, utf8_length(grapheme[at]));
      out.append(find(character).value_or(character));
      at += character.size();
    }
  }
}

}  // namespace nanovllm::text
