// The normalizer of tokenizer.json: NFC, NFKC, Lowercase, Replace, Prepend and Sequences of them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/split.h"
#include "text/unicode_normalize.h"

namespace nanovllm::text {

struct NormalizeScratch {
  std::string buffers[2];
  std::vector<Section> sections;
};

// Immutable after construction.
class Normalizer {
 public:
  Normalizer() = default;  // leaves text as it is
  // `json` may be null. Throws Error: kCorruptData, or kUnsupported naming the normalizer.
  Normalizer(const nlohmann::ordered_json& json, const std::string& origin);

  bool empty() const { return steps_.empty(); }
  // The result is `text` itself or lies in the scratch. `at_origin` (in and out): whether the first
  // character stems from the first byte of the input, which Metaspace's prepend_scheme "first"
  // asks.
  std::string_view apply(std::string_view text, NormalizeScratch& scratch, bool& at_origin) const;

 private:
  struct Lowercase {};
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Prepend {
    std::string prefix;
  };
  using Step = std::variant<NormalForm, Lowercase, Replace, Prepend>;

  void parse(const class Fields& fields, int depth);
  static bool run(const Step& step, std::string_view text, std::string& out,
                  std::vector<Section>& sections, bool& at_origin);

  std::vector<Step> steps_;
};

}  // namespace nanovllm::text
