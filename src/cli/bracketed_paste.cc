#include "cli/bracketed_paste.h"

#include <cerrno>
#include <string_view>

#include "cli/input_lines.h"

namespace nanovllm::cli {

std::optional<std::wstring> read_paste(EditLine* line, wchar_t interrupt_key) {
  constexpr std::wstring_view kEnd = L"\x1b[201~";
  constexpr size_t kMaxCharacters = InputLines::kMaxLineBytes + 1;
  std::wstring text;
  bool after_return = false;  // which a newline belongs to
  while (!text.ends_with(kEnd)) {
    wchar_t character = 0;
    if (el_wgetc(line, &character) != 1) return {};
    if (character != 0 && character == interrupt_key) {
      errno = EINTR;
      return {};
    }
    const bool second_half = after_return && character == L'\n';
    after_return = character == L'\r';
    if (character == 0 || second_half) continue;
    text += after_return ? L'\n' : character;
    if (text.size() > kMaxCharacters + kEnd.size()) text.erase(kMaxCharacters, 1);
  }
  text.resize(text.size() - kEnd.size());
  return text;
}

}  // namespace nanovllm::cli
