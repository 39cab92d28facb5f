// Bracketed paste: the terminal marks where a pasted text begins and ends, so that its newlines are
// not taken for Enter.
#pragma once

#include <histedit.h>

#include <optional>
#include <string>

namespace nanovllm::cli {

inline constexpr const char* kPasteBegin = "\\e[200~";  // as el_set(EL_BIND) has it

// What follows kPasteBegin up to the end of the paste, with "\n" for each newline and without
// characters 0; of a text longer than any message may be, only so much that it is still longer.
// Nothing when the input ended or, with errno EINTR, a signal or `interrupt_key` came before the
// paste's end.
std::optional<std::wstring> read_paste(EditLine* line, wchar_t interrupt_key);

}  // namespace nanovllm::cli
