#include "text/normalizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/charsmap.h"
#include "text/json_fields.h"
#include "text/unicode.h"
#include "text/unicode_normalize.h"
#include "text/unicode_versions.h"
#include "text/utf8.h"

namespace nanovllm::text {

namespace {

size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

void append_lowercase(std::string_view text, std::string& out) {
  for (size_t i = 0; i < text.size();) {
    const char lead = text[i];
    if (static_cast<uint8_t>(lead) < 0x80) {
      out.push_back(lead >= 'A' && lead <= 'Z' ? static_cast<char>(lead + 32) : lead);
      ++i;
      continue;
    }
    append_lower(out, decode_utf8(text.data() + i));
    i += utf8_length(lead);
  }
}

bool is_one_character(std::string_view text) {
  return !text.empty() && text.size() == static_cast<size_t>(utf8_length(text[0]));
}

// `at_origin`: as for Normalizer::apply, in these too.
bool replace(std::string_view text, const std::vector<Section>& sections,
             const std::string& content, std::string& out, bool& at_origin) {
  if (sections.empty() || (sections.size() == 1 && !sections[0].is_match)) return false;
  out.reserve(text.size());
  for (const Section& section : sections) {
    const std::string_view part = text.substr(section.begin, section.end - section.begin);
    // What replaces a match stands where the last character of the match stood.
    if (section.is_match && section.begin == 0 &&
        (content.empty() ? !part.empty() : !is_one_character(part) && !part.empty())) {
      at_origin = false;
    }
    out.append(section.is_match ? std::string_view(content) : part);
  }
  return true;
}

bool strip(std::string_view text, bool left, bool right, std::string& out, bool& at_origin) {
  size_t begin = 0, end = text.size();
  while (left && begin < end && is_space(decode_utf8(text.data() + begin))) {
    begin += utf8_length(text[begin]);
  }
  while (right && begin < end && is_space(decode_utf8(text.data() + previous_utf8(text, end)))) {
    end = previous_utf8(text, end);
  }
  at_origin = at_origin && begin == 0;
  out.assign(text.substr(begin, end - begin));
  return out.size() != text.size();
}

bool strip_accents(std::string_view text, std::string& out, const std::vector<Section>&,
                   bool& at_origin) {
  size_t copied = 0;  // text before this is in `out`
  for (size_t i = 0, next = 0; i < text.size(); i = next) {
    next = i + std::max<size_t>(ascii_prefix(text.substr(i)), utf8_length(text[i]));
    if (!is_accent(decode_utf8(text.data() + i))) continue;
    at_origin = at_origin && i != 0;
    out.append(text, copied, i - copied);
    copied = next;
  }
  out.append(text, copied);
  return copied != 0;
}

}  // namespace

Normalizer::Normalizer(const Json& json, const std::string& origin) {
  for_each_part(json, origin, "normalizer", "normalizers",
                [this](const Fields& fields) { parse(fields); });
}

void Normalizer::shrink(std::optional<size_t> factor) {
  if (max_shrinkage_) max_shrinkage_ = factor ? std::optional(*max_shrinkage_ * *factor) : factor;
}

void Normalizer::parse(const Fields& fields) {
  const std::string type = fields.type();
  for (const auto& [name, form] : {std::pair{"NFC", NormalForm::kNfc},
                                   {"NFKC", NormalForm::kNfkc},
                                   {"NFD", NormalForm::kNfd},
                                   {"NFKD", NormalForm::kNfkd}}) {
    if (type != name) continue;
    shrink(kMaxUnicodeShrinkage);
    steps_.emplace_back([form = form](std::string_view text, std::string& out, auto&, bool&) {
      return normalize_unicode(text, form, out);
    });
    return;
  }
  if (type == "Lowercase") {
    shrink(kMaxCharacter);  // a character becomes one at least
    steps_.emplace_back([](std::string_view text, std::string& out, auto&, bool&) {
      append_lowercase(text, out);
      return true;
    });
  } else if (type == "StripAccents") {
    shrink(std::nullopt);
    steps_.emplace_back(strip_accents);
  } else if (type == "Strip") {
    shrink(std::nullopt);
    steps_.emplace_back(
        [left = fields.boolean("strip_left"), right = fields.boolean("strip_right")](
            std::string_view text, std::string& out, auto&, bool& at_origin) {
          return strip(text, left, right, out, at_origin);
        });
  } else if (type == "Precompiled") {
    const auto map = Charsmap::from_base64(fields.string("precompiled_charsmap"));
    if (!map) fields.fail("has a precompiled_charsmap that is damaged");
    shrink(std::nullopt);
    steps_.emplace_back([map = *map](std::string_view text, std::string& out, auto&, bool&) {
      map.apply(text, out);
      return true;
    });
  } else if (type == "Replace") {
    Pattern pattern = parse_pattern(fields, "pattern");
    std::string content = fields.string("content");
    const auto match = content.empty() ? std::nullopt : pattern.max_match();
    shrink(match ? std::optional(std::max<size_t>(1, ceil_div(*match, content.size()))) : match);
    steps_.emplace_back([pattern = std::move(pattern), content = std::move(content)](
                            std::string_view text, std::string& out, std::vector<Section>& sections,
                            bool& at_origin) {
      pattern.cut(text, sections);
      return replace(text, sections, content, out, at_origin);
    });
  } else if (type == "Prepend") {
    steps_.emplace_back(
        [prefix = fields.string("prepend")](std::string_view text, std::string& out, auto&, bool&) {
          if (!text.empty()) out.append(prefix).append(text);
          return !text.empty();
        });
  } else {
    fields.unsupported_type(
        "NFC, NFKC, NFD, NFKD, Lowercase, StripAccents, Strip, Precompiled, Replace, Prepend and "
        "Sequence");
  }
}

std::string_view Normalizer::apply(std::string_view text, NormalizeScratch& scratch,
                                   bool& at_origin) const {
  size_t free = 0;
  for (const Step& step : steps_) {
    scratch.buffers[free].clear();
    if (step(text, scratch.buffers[free], scratch.sections, at_origin)) {
      text = scratch.buffers[free];
      free ^= 1;
    }
  }
  return text;
}

}  // namespace nanovllm::text
