#include "text/split.h"

#include <algorithm>

#include "text/json_fields.h"
#include "text/utf8.h"

namespace nanovllm::text {

namespace {

void cut_regex(const Regex& regex, std::string_view text, std::vector<Section>& sections) {
  size_t done = 0;  // end of the last section
  size_t from = 0;
  std::optional<size_t> last_end;  // of the last match
  while (from <= text.size()) {
    const auto match = regex.find(text, from);
    if (!match) break;
    if (match->begin == match->end && last_end == match->end) {
      // An empty match right after a match does not count; look on from the next character.
      if (from >= text.size()) break;
      from += utf8_length(text[from]);
      continue;
    }
    if (done < match->begin) sections.push_back({done, match->begin, false});
    sections.push_back({match->begin, match->end, true});
    done = from = match->end;
    last_end = match->end;
  }
  if (done < text.size()) sections.push_back({done, text.size(), false});
}

void cut_literal(std::string_view literal, std::string_view text, std::vector<Section>& sections) {
  size_t done = 0;
  while (done < text.size()) {
    const size_t at = text.find(literal, done);
    if (at == text.npos) break;
    if (done < at) sections.push_back({done, at, false});
    done = at + literal.size();
    sections.push_back({at, done, true});
  }
  if (done < text.size()) sections.push_back({done, text.size(), false});
}

void cut_characters(bool (*test)(uint32_t), std::string_view text, std::vector<Section>& sections) {
  size_t done = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t next = i + utf8_length(text[i]);
    if (test(decode_utf8(text.data() + i))) {
      if (done < i) sections.push_back({done, i, false});
      sections.push_back({i, next, true});
      done = next;
    }
    i = next;
  }
  if (done < text.size()) sections.push_back({done, text.size(), false});
}

}  // namespace

Pattern Pattern::literal(std::string text, const std::string& origin) {
  // An empty literal matches between all characters, as an empty regular expression does.
  if (text.empty()) return Pattern(Regex("", origin));
  return Pattern(std::move(text));
}

Pattern Pattern::regex(const std::string& source, const std::string& origin) {
  if (const auto known = known_pattern(source)) return Pattern(*known);
  if (source.find_first_of(R"(\^$.|?*+()[]{})") == source.npos) return literal(source, origin);
  return Pattern(Regex(source, origin));
}

Pattern Pattern::character(bool (*test)(uint32_t)) { return Pattern(test); }

std::optional<size_t> Pattern::max_match() const {
  if (const auto* literal = std::get_if<std::string>(&matcher_)) return literal->size();
  return std::holds_alternative<Test>(matcher_) ? std::optional(kMaxCharacter) : std::nullopt;
}

std::optional<KnownPattern> Pattern::known() const {
  const auto* known = std::get_if<KnownPattern>(&matcher_);
  return known ? std::optional(*known) : std::nullopt;
}

void Pattern::cut(std::string_view text, std::vector<Section>& sections) const {
  sections.clear();
  if (text.empty()) return;
  if (const auto* literal = std::get_if<std::string>(&matcher_)) {
    cut_literal(*literal, text, sections);
  } else if (const auto* regex = std::get_if<Regex>(&matcher_)) {
    cut_regex(*regex, text, sections);
  } else if (const auto* known = std::get_if<KnownPattern>(&matcher_)) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = scan(*known, text, at);
      sections.push_back({at, end, true});
      at = end;
    }
  } else {
    cut_characters(std::get<Test>(matcher_), text, sections);
  }
}

Pattern parse_pattern(const Fields& fields, const char* name) {
  const Fields pattern = fields.part(name);
  if (pattern.find("String")) return Pattern::literal(pattern.string("String"), pattern.where());
  if (pattern.find("Regex")) return Pattern::regex(pattern.string("Regex"), pattern.where());
  pattern.fail("has neither 'String' nor 'Regex'");
}

void apply_behavior(SplitBehavior behavior, std::vector<Section>& sections) {
  if (behavior == SplitBehavior::kIsolated) return;
  if (behavior == SplitBehavior::kRemoved) {
    std::erase_if(sections, [](const Section& section) { return section.is_match; });
    return;
  }
  const bool backwards = behavior == SplitBehavior::kMergedWithNext;
  if (backwards) std::reverse(sections.begin(), sections.end());
  size_t kept = 0;
  bool previous_match = false;
  for (const Section section : sections) {
    const bool joins = behavior == SplitBehavior::kContiguous ? section.is_match == previous_match
                                                              : section.is_match && !previous_match;
    previous_match = section.is_match;
    if (!joins || kept == 0) {
      sections[kept++] = section;
    } else if (backwards) {
      sections[kept - 1].begin = section.begin;
    } else {
      sections[kept - 1].end = section.end;
    }
  }
  sections.resize(kept);
  if (backwards) std::reverse(sections.begin(), sections.end());
}

}  // namespace nanovllm::text
