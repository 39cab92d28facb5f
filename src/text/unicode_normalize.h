// The four normal forms in linear time, whatever the text: runs of combining marks are sorted, not
// bubbled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nanovllm::text {

enum class NormalForm { kNfc, kNfkc, kNfd, kNfkd };

// No text has fewer bytes in a normal form than it has itself, divided by this: for each character
// c of the form, the longest characters whose decompositions begin with the parts of c have no more
// than this many times its bytes. (A long character's bytes count where its first part ends up.)
inline constexpr size_t kMaxUnicodeShrinkage = 4;

// False, with `out` untouched, when the text is in the form already. The text is well-formed UTF-8.
bool normalize_unicode(std::string_view text, NormalForm form, std::string& out);

// Whether a character can stand in the form as it is and does not join an earlier one
// (Quick_Check=Yes of UAX #15).
bool is_stable(uint32_t c, NormalForm form);

}  // namespace nanovllm::text
