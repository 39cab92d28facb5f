// The decoder's steps. Each writes to `next`, which outlives it. Parts hold whole characters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/decoder.h"
#include "text/split.h"

namespace nanovllm::text {

// The end of a chain: appends everything to a string.
class AppendStep : public DecodeStep {
 public:
  AppendStep(std::string& out, bool spaces_between) : out_(out), spaces_(spaces_between) {}
  void part(std::string_view text) override;
  void end_token() override { after_token_ = true; }
  void end_prompt() override {}
  void finish() override {}

 private:
  std::string& out_;
  bool spaces_;
  bool after_token_ = false;  // a further token needs a space first
};

class ForwardingStep : public DecodeStep {
 public:
  explicit ForwardingStep(DecodeStep& next) : next_(next) {}
  void part(std::string_view text) override { next_.part(text); }
  void end_token() override { next_.end_token(); }
  void end_prompt() override { next_.end_prompt(); }
  void finish() override { next_.finish(); }

 protected:
  DecodeStep& next_;
};

// All tokens become one.
class FuseStep : public ForwardingStep {
 public:
  using ForwardingStep::ForwardingStep;
  void end_token() override {}
  void finish() override;
};

// Spelled bytes to text; all tokens become one.
class ByteLevelStep : public FuseStep {
 public:
  using FuseStep::FuseStep;
  void part(std::string_view text) override { spelling_.append(text); }
  void end_token() override;
  void token(std::string_view text) override;
  void end_prompt() override;
  void finish() override;

 private:
  void flush();           // hands on what is certain
  std::string spelling_;  // of a token that has not ended
  std::string bytes_;
  std::string text_;
};

// Runs of tokens such as <0xE2> to the text they are when they are UTF-8, else to one U+FFFD each.
class ByteFallbackStep : public ForwardingStep {
 public:
  using ForwardingStep::ForwardingStep;
  void part(std::string_view text) override;
  void end_token() override;
  void token(std::string_view text) override;
  void end_prompt() override;
  void finish() override;

 private:
  void flush();
  std::string start_;      // of a token that may turn out to be a byte
  bool ordinary_ = false;  // the token at hand is no byte, its parts are handed on
  std::string bytes_;      // of the run
  bool broken_ = false;    // what the prompt had of the run is no UTF-8
};

// Within a token.
class ReplaceLiteralStep : public ForwardingStep {
 public:
  ReplaceLiteralStep(DecodeStep& next, std::string literal, std::string content)
      : ForwardingStep(next), literal_(std::move(literal)), content_(std::move(content)) {}
  void part(std::string_view text) override;
  void end_token() override;
  void end_prompt() override;

 private:
  void release();
  std::string literal_, content_;
  std::string held_;  // may be the start of the literal
};

class ReplaceRegexStep : public ForwardingStep {
 public:
  ReplaceRegexStep(DecodeStep& next, Pattern pattern, std::string content)
      : ForwardingStep(next), pattern_(std::move(pattern)), content_(std::move(content)) {}
  void part(std::string_view text) override { token_.append(text); }
  void end_token() override { next_.token(take_replaced()); }
  void end_prompt() override;

 private:
  std::string take_replaced();
  Pattern pattern_;
  std::string content_;
  std::string token_;
};

// Up to `start` leading characters of each token, where they are `content`.
class StripStep : public ForwardingStep {
 public:
  StripStep(DecodeStep& next, std::string content, uint32_t start)
      : ForwardingStep(next), content_(std::move(content)), start_(start) {}
  void part(std::string_view text) override;
  void end_token() override;

 private:
  std::string content_;  // one character
  uint32_t start_;
  uint32_t cut_ = 0;  // characters cut so far; start_ once another came
};

// Replacement characters to spaces; none for those of the first token when a space was prepended.
class MetaspaceStep : public ForwardingStep {
 public:
  MetaspaceStep(DecodeStep& next, std::string replacement, bool prepended)
      : ForwardingStep(next), replacement_(std::move(replacement)), drop_(prepended) {}
  void part(std::string_view text) override;
  void end_token() override;

 private:
  std::string replacement_;
  bool drop_;
  std::string text_;
};

}  // namespace nanovllm::text
