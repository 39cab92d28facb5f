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

  // What apply() does to ids that hold the text's tokens from `start` on.
  void apply(std::vector<int32_t>& ids, size_t start, bool add_special_tokens) const;

 private:
  static constexpr int32_t kText = -1;  // stands for the text's own tokens
  void parse(const class Fields& fields, int depth);

  bool has_template_ = false;
  std::vector<int32_t> template_;  // ids and kText
};

}  // namespace nanovllm::text
