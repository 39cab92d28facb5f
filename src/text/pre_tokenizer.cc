#include "text/pre_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/byte_alphabet.h"
#include "text/json_fields.h"
#include "text/unicode.h"
#include "text/unicode_versions.h"
#include "text/utf8.h"

namespace nanovllm::text {

namespace {

SplitBehavior parse_behavior(const Fields& fields) {
  const std::string name = fields.string("behavior");
  constexpr std::pair<const char*, SplitBehavior> kNames[] = {
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous},
  };
  for (const auto& [known, behavior] : kNames) {
    if (name == known) return behavior;
  }
  fields.fail(fmt::format("has the unknown behavior '{}'", printable(name)));
}

}  // namespace

PreTokenizer::PreTokenizer(const Json& json, const std::string& origin) {
  for_each_part(json, origin, "pre_tokenizer", "pretokenizers",
                [this](const Fields& fields) { parse(fields); });
  if (!steps_.empty() && std::holds_alternative<SpellBytes>(steps_.back())) {
    steps_.pop_back();
    byte_level_ = true;
  }
  if (steps_.size() != 1) return;
  const Split* step = std::get_if<Split>(&steps_[0]);
  // These patterns leave nothing between their matches, so inverting them changes nothing.
  if (step && step->behavior == SplitBehavior::kIsolated) only_pattern_ = step->pattern.known();
}

void PreTokenizer::split_at(bool (*test)(uint32_t), SplitBehavior behavior) {
  steps_.emplace_back(Split{Pattern::character(test), behavior, false});
}

void PreTokenizer::parse(const Fields& fields) {
  const std::string type = fields.type();
  if (type == "ByteLevel") {
    if (fields.boolean("add_prefix_space")) steps_.emplace_back(PrefixSpace{});
    if (fields.boolean_or("use_regex", true)) {
      steps_.emplace_back(
          Split{Pattern::regex(std::string(regex_of(KnownPattern::kGpt2)), fields.where()),
                SplitBehavior::kIsolated, false});
    }
    steps_.emplace_back(SpellBytes{});
  } else if (type == "Split") {
    steps_.emplace_back(
        Split{parse_pattern(fields, "pattern"), parse_behavior(fields), fields.boolean("invert")});
  } else if (type == "Digits") {
    split_at(is_numeric, fields.boolean("individual_digits") ? SplitBehavior::kIsolated
                                                             : SplitBehavior::kContiguous);
  } else if (type == "Punctuation") {
    split_at(is_split_punctuation,
             fields.find("behavior") ? parse_behavior(fields) : SplitBehavior::kIsolated);
  } else if (type == "WhitespaceSplit" || type == "Whitespace") {
    cuts_at_spaces_ = cuts_at_spaces_ || steps_.empty();
    split_at(is_space, SplitBehavior::kRemoved);
    if (type == "Whitespace") split_at(is_word, SplitBehavior::kContiguous);  // \w+|[^\w\s]+
  } else if (type == "Metaspace") {
    parse_metaspace(fields);
  } else {
    fields.unsupported_type(
        "Split, ByteLevel, Digits, Punctuation, Whitespace, WhitespaceSplit, Metaspace and "
        "Sequence");
  }
}

bool PreTokenizer::drops_text() const {
  return std::ranges::any_of(steps_, [](const Step& step) {
    const auto* split = std::get_if<Split>(&step);
    return split != nullptr && split->behavior == SplitBehavior::kRemoved;
  });
}

void PreTokenizer::parse_metaspace(const Fields& fields) {
  Metaspace step;
  append_utf8(step.replacement, fields.character("replacement"));
  const std::string scheme = fields.optional_string("prepend_scheme").value_or("always");
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    fields.fail(fmt::format("has the unknown prepend_scheme '{}'", printable(scheme)));
  }
  step.prepend = scheme == "always"  ? PrependScheme::kAlways
                 : scheme == "first" ? PrependScheme::kFirst
                                     : PrependScheme::kNever;
  if (!fields.boolean_or("add_prefix_space", true)) {
    if (fields.find("prepend_scheme") && step.prepend != PrependScheme::kNever) {
      fields.fail("has an add_prefix_space that contradicts its prepend_scheme");
    }
    step.prepend = PrependScheme::kNever;
  }
  const std::string replacement = step.replacement;
  const bool splits = fields.boolean_or("split", true);
  cuts_at_spaces_ = cuts_at_spaces_ || (splits && steps_.empty());
  steps_.emplace_back(std::move(step));
  if (splits) {
    steps_.emplace_back(Split{Pattern::literal(replacement, fields.where()),
                              SplitBehavior::kMergedWithNext, false});
  }
}

// Writes every word anew: rewrite_word(word, is_first, out) appends it.
template <typename Rewrite>
void PreTokenizer::rewrite(PreTokenizeScratch& scratch, Rewrite&& rewrite_word) {
  Words& from = scratch.words;
  Words& to = scratch.rebuilt;
  to.text.clear();
  to.spans.clear();
  for (const Span span : from.spans) {
    const size_t begin = to.text.size();
    rewrite_word(std::string_view(from.text).substr(span.begin, span.end - span.begin),
                 to.spans.empty() && from.first_at_origin, to.text);
    to.spans.push_back({begin, to.text.size()});
  }
  from.text.swap(to.text);
  from.spans.swap(to.spans);
}

void PreTokenizer::split(const Split& step, PreTokenizeScratch& scratch) {
  Words& words = scratch.words;
  std::vector<Section>& sections = scratch.sections;
  scratch.spans.clear();
  for (const Span span : words.spans) {
    step.pattern.cut(std::string_view(words.text).substr(span.begin, span.end - span.begin),
                     sections);
    if (step.invert) {
      for (Section& section : sections) section.is_match = !section.is_match;
    }
    apply_behavior(step.behavior, sections);
    for (const Section& section : sections) {
      if (section.begin < section.end) {
        scratch.spans.push_back({span.begin + section.begin, span.begin + section.end});
      }
    }
  }
  const bool same_start = !words.spans.empty() && !scratch.spans.empty() &&
                          words.spans[0].begin == scratch.spans[0].begin;
  words.first_at_origin = words.first_at_origin && same_start;
  words.spans.swap(scratch.spans);
}

void PreTokenizer::run_metaspace(const Metaspace& step, PreTokenizeScratch& scratch) {
  rewrite(scratch, [&](std::string_view word, bool at_origin, std::string& out) {
    const bool prepend = step.prepend == PrependScheme::kAlways ||
                         (step.prepend == PrependScheme::kFirst && at_origin);
    if (prepend && word[0] != ' ' && !word.starts_with(step.replacement)) {
      out.append(step.replacement);
    }
    for (size_t at = word.find(' '); at != word.npos; at = word.find(' ')) {
      out.append(word.substr(0, at)).append(step.replacement);
      word.remove_prefix(at + 1);
    }
    out.append(word);
  });
}

void PreTokenizer::apply(std::string_view text, bool at_origin, PreTokenizeScratch& scratch) const {
  Words& words = scratch.words;
  words.text.assign(text);
  words.spans.assign(1, {0, text.size()});
  words.first_at_origin = at_origin;
  for (const Step& step : steps_) {
    if (const auto* cut = std::get_if<Split>(&step)) {
      split(*cut, scratch);
    } else if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
      run_metaspace(*metaspace, scratch);
    } else if (std::holds_alternative<PrefixSpace>(step)) {
      rewrite(scratch, [](std::string_view word, bool, std::string& out) {
        if (word[0] != ' ') out.push_back(' ');
        out.append(word);
      });
    } else {
      rewrite(scratch, [](std::string_view word, bool, std::string& out) {
        append_byte_spelling(out, word);
      });
    }
  }
}

}  // namespace nanovllm::text
