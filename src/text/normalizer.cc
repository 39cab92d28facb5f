#include "text/normalizer.h"

#include <nlohmann/json.hpp>

#include "text/json_fields.h"
#include "text/pattern_json.h"
#include "text/unicode_versions.h"
#include "text/utf8.h"

namespace nanovllm::text {

namespace {

void append_lowercase(std::string_view text, std::string& out) {
  for (size_t i = 0; i < text.size();) {
    const char lead = text[i];
    if (static_cast<uint8_t>(lead) < 0x80) {
      out.push_back(lead >= 'A' && lead <= 'Z' ? static_cast<char>(lead + 32) : lead);
      ++i;
      continue;
    }
    const uint32_t c = decode_utf8(text.data() + i);
    i += utf8_length(lead);
    if (c == 0x130) {  // the one character whose lower case is two: i and a dot above
      out.append("i\xCC\x87");
    } else {
      append_utf8(out, to_lower(c));
    }
  }
}

bool is_one_character(std::string_view text) {
  return !text.empty() && text.size() == static_cast<size_t>(utf8_length(text[0]));
}

}  // namespace

Normalizer::Normalizer(const Json& json, const std::string& origin) {
  if (!json.is_null()) parse(Fields(json, origin, "normalizer"), 0);
}

void Normalizer::parse(const Fields& fields, int depth) {
  const std::string type = fields.type();
  if (depth > kMaxNesting) fields.unsupported("is nested too deeply");
  if (type == "Sequence") {
    for (size_t i = 0; i < fields.array("normalizers").size(); ++i) {
      parse(fields.element("normalizers", i), depth + 1);
    }
  } else if (type == "NFC") {
    steps_.emplace_back(NormalForm::kNfc);
  } else if (type == "NFKC") {
    steps_.emplace_back(NormalForm::kNfkc);
  } else if (type == "Lowercase") {
    steps_.emplace_back(Lowercase{});
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{parse_pattern(fields, "pattern"), fields.string("content")});
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{fields.string("prepend")});
  } else {
    fields.unsupported(fmt::format(
        "is a '{}', which is not supported (NFC, NFKC, Lowercase, Replace, Prepend and Sequence "
        "are)",
        printable(type)));
  }
}

// False when the step changes nothing; `out` is meaningless then.
bool Normalizer::run(const Step& step, std::string_view text, std::string& out,
                     std::vector<Section>& sections, bool& at_origin) {
  if (const auto* form = std::get_if<NormalForm>(&step)) {
    return normalize_unicode(text, *form, out);
  }
  out.clear();
  if (std::holds_alternative<Lowercase>(step)) {
    append_lowercase(text, out);
    return true;
  }
  if (const auto* prepend = std::get_if<Prepend>(&step)) {
    if (text.empty()) return false;
    out.append(prepend->prefix).append(text);
    return true;
  }
  const auto& replace = std::get<Replace>(step);
  replace.pattern.cut(text, sections);
  if (sections.empty() || (sections.size() == 1 && !sections[0].is_match)) return false;
  out.reserve(text.size());
  for (const Section& section : sections) {
    const std::string_view part = text.substr(section.begin, section.end - section.begin);
    // What replaces a match stands where the last character of the match stood.
    if (section.is_match && section.begin == 0 &&
        (replace.content.empty() ? !part.empty() : !is_one_character(part) && !part.empty())) {
      at_origin = false;
    }
    out.append(section.is_match ? std::string_view(replace.content) : part);
  }
  return true;
}

std::string_view Normalizer::apply(std::string_view text, NormalizeScratch& scratch,
                                   bool& at_origin) const {
  size_t free = 0;
  for (const Step& step : steps_) {
    if (run(step, text, scratch.buffers[free], scratch.sections, at_origin)) {
      text = scratch.buffers[free];
      free ^= 1;
    }
  }
  return text;
}

}  // namespace nanovllm::text
