// The mark that editors of Windows put before UTF-8.
#pragma once

#include <string_view>

namespace nanovllm {

// Without it, which is no part of the text.
inline std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.substr(text.starts_with(kMark) ? kMark.size() : 0);
}

}  // namespace nanovllm
