// UTF-8 in and out, with the replacement rule of Python's errors="replace": one U+FFFD for each
// maximal prefix of a character that is cut short.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace nanovllm::text {

inline constexpr size_t kMaxCharacter = 4;  // bytes
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

enum class Utf8Kind { kValid, kInvalid, kIncomplete };

struct Utf8Step {
  Utf8Kind kind;
  int length;  // bytes; of the ill-formed prefix for kInvalid, all that is left for kIncomplete
};

// What the bytes [p, p + n) start with; n > 0.
inline Utf8Step classify_utf8(const char* p, size_t n) {
  const auto byte = [p](size_t i) { return static_cast<uint8_t>(p[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Utf8Kind::kValid, 1};
  int needed = 0;
  uint8_t low = 0x80, high = 0xBF;  // range of the second byte
  if (lead >= 0xC2 && lead <= 0xDF) {
    needed = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    needed = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    needed = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8Kind::kInvalid, 1};
  }
  for (int i = 1; i < needed; ++i) {
    if (static_cast<size_t>(i) == n) return {Utf8Kind::kIncomplete, i};
    if (byte(i) < low || byte(i) > high) return {Utf8Kind::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Kind::kValid, needed};
}

// Bytes at the start of `text` that are ASCII for certain, a multiple of eight.
inline size_t ascii_prefix(std::string_view text) {
  size_t i = 0;
  for (uint64_t word; i + 8 <= text.size(); i += 8) {
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080u) break;
  }
  return i;
}

// Offset of the first ill-formed byte, or text.size().
inline size_t find_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    i += ascii_prefix(text.substr(i));
    for (const size_t stop = i + 64; i < text.size() && i < stop;) {
      const Utf8Step step = classify_utf8(text.data() + i, text.size() - i);
      if (step.kind != Utf8Kind::kValid) return i;
      i += step.length;
    }
  }
  return text.size();
}

inline std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  while (!text.empty()) {
    const size_t valid = find_invalid_utf8(text);
    out.append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) break;
    out.append(kReplacement);
    text.remove_prefix(classify_utf8(text.data(), text.size()).length);
  }
  return out;
}

// Bytes of the character that starts with `lead`, in well-formed text.
inline int utf8_length(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The character at p, which is followed by its whole well-formed sequence.
inline uint32_t decode_utf8(const char* p) {
  const auto byte = [p](int i) { return static_cast<uint32_t>(static_cast<uint8_t>(p[i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return lead;
  if (lead < 0xE0) return (lead & 0x1F) << 6 | (byte(1) & 0x3F);
  if (lead < 0xF0) return (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  return (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
}

// The character at text[pos], pos advanced past it. A byte that is no part of well-formed UTF-8
// counts as one, kInvalidByte + byte.
inline constexpr uint32_t kInvalidByte = 0x110000;
inline uint32_t next_character(std::string_view text, size_t& pos) {
  const char* p = text.data() + pos;
  if (static_cast<uint8_t>(*p) < 0x80) {
    ++pos;
    return static_cast<uint8_t>(*p);
  }
  const Utf8Step step = classify_utf8(p, text.size() - pos);
  if (step.kind != Utf8Kind::kValid) {
    ++pos;
    return kInvalidByte + static_cast<uint8_t>(*p);
  }
  pos += static_cast<size_t>(step.length);
  return decode_utf8(p);
}

// Start of the character that ends before `end` > 0.
inline size_t previous_utf8(std::string_view text, size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80);
  return end;
}

inline void append_utf8(std::string& out, uint32_t c) {
  const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

}  // namespace nanovllm::text
