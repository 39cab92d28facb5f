// Requests with the outputs that they had, for benchmarks of drafts on real texts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "nanovllm/llm_engine.h"

namespace nanovllm::cli {

class Replay {
 public:
  // A file of lines {"prompt": str} or {"prompt_token_ids": [int]} with "token_ids": [int], as a
  // request and its result have them; other members are of no account. Throws Error(kIo), and
  // Error(kCorruptData) with the line.
  explicit Replay(const std::string& path);

  // For EngineParts; filled in by resolve().
  std::shared_ptr<const DictatedTexts> dictated() const { return dictated_; }
  // Tokenises the prompts. Throws Error(kUnsupported) where a text comes to a model without a
  // tokenizer, Error(kInvalidArgument), with the line, for ids that the model does not know, for a
  // prompt without tokens and for one with two outputs.
  void resolve(const LLMEngine& engine);

  int64_t size() const { return static_cast<int64_t>(lines_.size()); }
  int64_t input_tokens(int64_t i) const;
  int64_t output_tokens(int64_t i) const;
  // Of any number, in the order of the file, over and over.
  Prompt prompt(int64_t i) const;
  // They share nothing with those of other passes: what was cached, or written, in one is not found
  // in the next.
  SamplingParams params(int64_t i, int64_t pass) const;

 private:
  struct Line {
    Prompt prompt;
    std::vector<int32_t> token_ids;
    int64_t number = 0;  // in the file, from 1
  };
  std::string where(const Line& line) const;
  const Line& line(int64_t i) const { return lines_[static_cast<size_t>(i % size())]; }

  const std::string path_;
  std::vector<Line> lines_;
  std::shared_ptr<DictatedTexts> dictated_ = std::make_shared<DictatedTexts>();
};

}  // namespace nanovllm::cli
