// The post-processor of tokenizer.json: the special tokens a template puts around the text.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace nanovllm::text {

// Immutable after construction.
class PostProcessor {
 public:
  PostProcessor() = default;  // adds nothing
  // `json` may be null. Throws Error: kCorruptData, or kUnsupported naming the post-processor.
  PostProcessor(const nlohmann::ordered_json& json, const std::string& origin);

  // Makes the template one of this token, the text and that token; -1: no token there.
  void set_ends(int32_t first, int32_t last);

  // Puts the template around the text's ids.
  void apply(std::vector<int32_t>& ids, bool add_special_tokens) const;

 private:
  static constexpr int32_t kText = -1;  // stands for the text's own tokens
  void parse(const class Fields& fields);

  bool has_template_ = false;
  std::vector<int32_t> template_;  // ids and kText
};

}  // namespace nanovllm::text
