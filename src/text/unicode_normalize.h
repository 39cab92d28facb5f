// The four normal forms in linear time, whatever the text: runs of combining marks are sorted, not
// bubbled.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nanovllm::text {

enum class NormalForm { kNfc, kNfkc, kNfd, kNfkd };

// False, with `out` untouched, when the text is in the form already. The text is well-formed UTF-8.
bool normalize_unicode(std::string_view text, NormalForm form, std::string& out);

// Whether a character can stand in the form as it is and does not join an earlier one
// (Quick_Check=Yes of UAX #15).
bool is_stable(uint32_t c, NormalForm form);

}  // namespace nanovllm::text
