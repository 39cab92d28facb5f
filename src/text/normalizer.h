// The normalizer of tokenizer.json: what is done to the text before it is cut.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/split.h"

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
  // By how much less bytes a text may have afterwards, at most: it is divided by this. None where
  // any number of bytes may go.
  std::optional<size_t> max_shrinkage() const { return max_shrinkage_; }
  // The result is `text` itself or lies in the scratch. `at_origin` (in and out): whether the first
  // character stems from the first byte of the input, which Metaspace's prepend_scheme "first"
  // asks.
  std::string_view apply(std::string_view text, NormalizeScratch& scratch, bool& at_origin) const;

 private:
  // False when the step changes nothing; `out`, empty before, is meaningless then.
  using Step = std::function<bool(std::string_view text, std::string& out,
                                  std::vector<Section>& sections, bool& at_origin)>;
  void parse(const class Fields& fields);
  void shrink(std::optional<size_t> factor);

  std::vector<Step> steps_;
  std::optional<size_t> max_shrinkage_ = 1;
};

}  // namespace nanovllm::text
