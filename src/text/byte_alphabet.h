// GPT-2's printable spelling of the 256 bytes, in which byte-level vocabularies are written.
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/utf8.h"

namespace nanovllm::text {

// Code point for each byte: printable Latin-1 stands for itself, the others follow from U+0100 on.
inline constexpr std::array<uint16_t, 256> kByteToChar = [] {
  std::array<uint16_t, 256> table{};
  uint16_t next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    table[b] = printable ? static_cast<uint16_t>(b) : next++;
  }
  return table;
}();

// The byte that "<0xE2>" stands for, -1 for any other token.
inline int byte_of(std::string_view token) {
  int value = 0;
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  return std::from_chars(&token[3], &token[5], value, 16).ptr == &token[5] && token[3] != '-'
             ? value
             : -1;
}

// The byte for each code point below 324, -1 where there is none.
inline constexpr std::array<int16_t, 324> kCharToByte = [] {
  std::array<int16_t, 324> table{};
  for (auto& entry : table) entry = -1;
  for (int b = 0; b < 256; ++b) table[kByteToChar[b]] = static_cast<int16_t>(b);
  return table;
}();

inline void append_byte_spelling(std::string& out, std::string_view bytes) {
  for (const char byte : bytes) append_utf8(out, kByteToChar[static_cast<uint8_t>(byte)]);
}

// Appends the bytes that `token` spells, or `token` itself when a character of it spells none.
inline void append_spelled_bytes(std::string& out, std::string_view token) {
  const size_t start = out.size();
  for (size_t i = 0; i < token.size();) {
    const auto lead = static_cast<uint8_t>(token[i]);
    uint32_t c = lead;
    if (lead >= 0x80) {
      // Two bytes reach U+07FF; a longer character is outside the alphabet anyway.
      c = lead < 0xE0 ? decode_utf8(token.data() + i) : 0xFFFF;
    }
    const int byte = c < kCharToByte.size() ? kCharToByte[c] : -1;
    if (byte < 0) {
      out.resize(start);
      out.append(token);
      return;
    }
    out.push_back(static_cast<char>(byte));
    i += lead < 0x80 ? 1 : 2;
  }
}

}  // namespace nanovllm::text
