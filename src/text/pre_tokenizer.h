// The pre-tokenizer of tokenizer.json: cuts text into the words that no token reaches across.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/split.h"

namespace nanovllm::text {

// Words as ranges of one text.
struct Words {
  std::string text;
  std::vector<Span> spans;
  bool first_at_origin = false;  // the first word starts at the first byte of the whole input
};

struct PreTokenizeScratch {
  Words words, rebuilt;
  std::vector<Section> sections;
  std::vector<Span> spans;
};

// Immutable after construction.
class PreTokenizer {
 public:
  PreTokenizer() = default;  // the text is one word
  // `json` may be null. Throws Error: kCorruptData, or kUnsupported naming the pre-tokenizer.
  PreTokenizer(const nlohmann::ordered_json& json, const std::string& origin);

  // Whether words come out as plain text while the vocabulary spells bytes: the last step is a
  // ByteLevel, whose respelling is left to the model.
  bool byte_level() const { return byte_level_; }
  bool empty() const { return steps_.empty(); }
  // Whether there may be text that is in no word.
  bool drops_text() const;
  // Set when cutting by this scanner is all there is to do.
  std::optional<KnownPattern> only_pattern() const { return only_pattern_; }

  // Whether text may be cut before any space without changing its words.
  bool cuts_at_spaces() const { return cuts_at_spaces_; }

  // The words are in scratch.words.
  void apply(std::string_view text, bool at_origin, PreTokenizeScratch& scratch) const;

 private:
  struct Split {
    Pattern pattern;
    SplitBehavior behavior;
    bool invert;
  };
  enum class PrependScheme { kNever, kFirst, kAlways };
  struct Metaspace {
    std::string replacement;
    PrependScheme prepend;
  };
  struct PrefixSpace {};
  struct SpellBytes {};
  using Step = std::variant<Split, Metaspace, PrefixSpace, SpellBytes>;

  void parse(const class Fields& fields);
  void split_at(bool (*test)(uint32_t), SplitBehavior behavior);
  void parse_metaspace(const class Fields& fields);
  static void split(const Split& step, PreTokenizeScratch& scratch);
  static void run_metaspace(const Metaspace& step, PreTokenizeScratch& scratch);
  template <typename Rewrite>
  static void rewrite(PreTokenizeScratch& scratch, Rewrite&& rewrite_word);

  std::vector<Step> steps_;
  bool byte_level_ = false;
  bool cuts_at_spaces_ = false;
  std::optional<KnownPattern> only_pattern_;
};

}  // namespace nanovllm::text
