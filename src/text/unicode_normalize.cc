#include "text/unicode_normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "text/code_point_ranges.h"
#include "text/unicode_versions.h"
#include "text/utf8.h"

namespace nanovllm::text {

namespace {

// clang-format off
// Characters that can join an earlier one (NFC_Quick_Check=Maybe).
constexpr CodePointRange kJoining[] = {
    {0x300, 0x304}, {0x306, 0x30C}, {0x30F, 0x30F}, {0x311, 0x311}, {0x313, 0x314}, {0x31B, 0x31B},
    {0x323, 0x328}, {0x32D, 0x32E}, {0x330, 0x331}, {0x338, 0x338}, {0x342, 0x342}, {0x345, 0x345},
    {0x653, 0x655}, {0x93C, 0x93C}, {0x9BE, 0x9BE}, {0x9D7, 0x9D7}, {0xB3E, 0xB3E}, {0xB56, 0xB57},
    {0xBBE, 0xBBE}, {0xBD7, 0xBD7}, {0xC56, 0xC56}, {0xCC2, 0xCC2}, {0xCD5, 0xCD6}, {0xD3E, 0xD3E},
    {0xD57, 0xD57}, {0xDCA, 0xDCA}, {0xDCF, 0xDCF}, {0xDDF, 0xDDF}, {0x102E, 0x102E},
    {0x1161, 0x1175}, {0x11A8, 0x11C2}, {0x1B35, 0x1B35}, {0x3099, 0x309A}, {0x110BA, 0x110BA},
    {0x11127, 0x11127}, {0x1133E, 0x1133E}, {0x11357, 0x11357}, {0x113B8, 0x113B8},
    {0x113BB, 0x113BB}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113C9},
    {0x114B0, 0x114B0}, {0x114BA, 0x114BA}, {0x114BD, 0x114BD}, {0x115AF, 0x115AF},
    {0x1611E, 0x16129}, {0x11930, 0x11930}, {0x16D67, 0x16D68},
};

// Characters that NFC replaces by others (NFC_Quick_Check=No).
constexpr CodePointRange kReplaced[] = {
    {0x340, 0x341}, {0x343, 0x344}, {0x374, 0x374}, {0x37E, 0x37E}, {0x387, 0x387}, {0x958, 0x95F},
    {0x9DC, 0x9DD}, {0x9DF, 0x9DF}, {0xA33, 0xA33}, {0xA36, 0xA36}, {0xA59, 0xA5B}, {0xA5E, 0xA5E},
    {0xB5C, 0xB5D}, {0xF43, 0xF43}, {0xF4D, 0xF4D}, {0xF52, 0xF52}, {0xF57, 0xF57}, {0xF5C, 0xF5C},
    {0xF69, 0xF69}, {0xF73, 0xF73}, {0xF75, 0xF76}, {0xF78, 0xF78}, {0xF81, 0xF81}, {0xF93, 0xF93},
    {0xF9D, 0xF9D}, {0xFA2, 0xFA2}, {0xFA7, 0xFA7}, {0xFAC, 0xFAC}, {0xFB9, 0xFB9},
    {0x1F71, 0x1F71}, {0x1F73, 0x1F73}, {0x1F75, 0x1F75}, {0x1F77, 0x1F77}, {0x1F79, 0x1F79},
    {0x1F7B, 0x1F7B}, {0x1F7D, 0x1F7D}, {0x1FBB, 0x1FBB}, {0x1FBE, 0x1FBE}, {0x1FC9, 0x1FC9},
    {0x1FCB, 0x1FCB}, {0x1FD3, 0x1FD3}, {0x1FDB, 0x1FDB}, {0x1FE3, 0x1FE3}, {0x1FEB, 0x1FEB},
    {0x1FEE, 0x1FEF}, {0x1FF9, 0x1FF9}, {0x1FFB, 0x1FFB}, {0x1FFD, 0x1FFD}, {0x2000, 0x2001},
    {0x2126, 0x2126}, {0x212A, 0x212B}, {0x2329, 0x232A}, {0x2ADC, 0x2ADC}, {0xF900, 0xFA0D},
    {0xFA10, 0xFA10}, {0xFA12, 0xFA12}, {0xFA15, 0xFA1E}, {0xFA20, 0xFA20}, {0xFA22, 0xFA22},
    {0xFA25, 0xFA26}, {0xFA2A, 0xFA6D}, {0xFA70, 0xFAD9}, {0xFB1D, 0xFB1D}, {0xFB1F, 0xFB1F},
    {0xFB2A, 0xFB36}, {0xFB38, 0xFB3C}, {0xFB3E, 0xFB3E}, {0xFB40, 0xFB41}, {0xFB43, 0xFB44},
    {0xFB46, 0xFB4E}, {0x1D15E, 0x1D164}, {0x1D1BB, 0x1D1C0}, {0x2F800, 0x2FA1D},
};
// clang-format on

const utf8proc_property_t* property_of(uint32_t c) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
}

int combining_class(uint32_t c) {
  const int value = property_of(c)->combining_class;
  return value != 0 && unknown_to_normalizers(c) ? 0 : value;
}

// What has neither a combining class nor a decomposition and joins nothing, and is common.
bool is_plain(uint32_t c) {
  return c < 0xA0 || (c >= 0x3400 && c <= 0x9FFF) || (c >= 0xAC00 && c <= 0xD7A3) ||
         (c >= 0x400 && c < 0x482 && c != 0x450 && c != 0x45D);
}

bool is_composed(NormalForm form) { return form == NormalForm::kNfc || form == NormalForm::kNfkc; }

struct Mark {
  uint32_t c;
  int combining_class;
};

void decompose(uint32_t c, NormalForm form, std::vector<Mark>& out) {
  if (unknown_to_normalizers(c)) {
    out.push_back({c, 0});
    return;
  }
  utf8proc_int32_t buffer[32];  // no character decomposes to more than 18
  int boundary = 0;
  const int options =
      UTF8PROC_DECOMPOSE | UTF8PROC_STABLE |
      (form == NormalForm::kNfkc || form == NormalForm::kNfkd ? UTF8PROC_COMPAT : 0);
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), buffer, 32,
                                             static_cast<utf8proc_option_t>(options), &boundary);
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    const auto part = static_cast<uint32_t>(buffer[i]);
    out.push_back({part, combining_class(part)});
  }
}

// Canonical composition of two characters, or 0.
uint32_t compose(uint32_t first, uint32_t second) {
  if (unknown_to_normalizers(second)) return 0;
  utf8proc_int32_t pair[] = {static_cast<utf8proc_int32_t>(first),
                             static_cast<utf8proc_int32_t>(second)};
  const auto count = utf8proc_normalize_utf32(
      pair, 2, static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  return count == 1 ? static_cast<uint32_t>(pair[0]) : 0;
}

void sort_marks(std::vector<Mark>& marks) {
  const auto is_starter = [](const Mark& mark) { return mark.combining_class == 0; };
  for (auto run = marks.begin(); run != marks.end();) {
    if (is_starter(*run)) {
      ++run;
      continue;
    }
    const auto end = std::find_if(run, marks.end(), is_starter);
    std::stable_sort(run, end, [](const Mark& a, const Mark& b) {
      return a.combining_class < b.combining_class;
    });
    run = end;
  }
}

void compose(std::vector<Mark>& marks) {
  size_t starter = marks.size();  // none yet
  int last_class = -1;            // of what was kept after the starter, -1: nothing
  size_t kept = 0;
  for (const Mark mark : marks) {
    if (starter < kept && (last_class < mark.combining_class || last_class == -1)) {
      if (const uint32_t joined = compose(marks[starter].c, mark.c)) {
        marks[starter].c = joined;
        continue;
      }
    }
    if (mark.combining_class == 0) {
      starter = kept;
      last_class = -1;
    } else {
      last_class = mark.combining_class;
    }
    marks[kept++] = mark;
  }
  marks.resize(kept);
}

}  // namespace

bool is_stable(uint32_t c, NormalForm form) {
  if (is_composed(form) ? is_plain(c) : c < 0xA0) return true;
  const bool is_hangul = c >= 0xAC00 && c <= 0xD7A3;
  if (form != NormalForm::kNfc && (is_hangul || property_of(c)->decomp_seqindex != UINT16_MAX)) {
    return unknown_to_normalizers(c);  // some that are stable are not told from the others here
  }
  if (!is_composed(form)) return true;
  return !contains(kReplaced, c) && !contains(kJoining, c);
}

bool normalize_unicode(std::string_view text, NormalForm form, std::string& out) {
  size_t copied = 0;    // text before this is in `out`
  size_t boundary = 0;  // nothing from here on depends on what is before
  int last_class = 0;
  bool changed = false;
  std::vector<Mark> marks;
  for (size_t i = 0; i < text.size();) {
    if (const size_t ascii = ascii_prefix(text.substr(i))) {
      i += ascii;
      boundary = i - 1;
      last_class = 0;
      continue;
    }
    const uint32_t c = decode_utf8(text.data() + i);
    const size_t next = i + utf8_length(text[i]);
    const int this_class = is_plain(c) ? 0 : combining_class(c);
    const bool stable = is_stable(c, form);
    if (stable && (this_class == 0 || last_class <= this_class)) {
      if (this_class == 0) boundary = i;
      last_class = this_class;
      i = next;
      continue;
    }
    // The segment runs to the next character that starts anew.
    size_t end = next;
    while (end < text.size()) {
      const uint32_t other = decode_utf8(text.data() + end);
      if (is_stable(other, form) && combining_class(other) == 0) break;
      end += utf8_length(text[end]);
    }
    if (!changed) out.clear();
    changed = true;
    out.append(text.substr(copied, boundary - copied));
    marks.clear();
    for (size_t j = boundary; j < end; j += utf8_length(text[j])) {
      decompose(decode_utf8(text.data() + j), form, marks);
    }
    sort_marks(marks);
    if (is_composed(form)) compose(marks);
    for (const Mark mark : marks) append_utf8(out, mark.c);
    copied = boundary = i = end;
    last_class = 0;
  }
  if (changed) out.append(text.substr(copied));
  return changed;
}

}  // namespace nanovllm::text
