// The decoder of tokenizer.json as a chain of steps that text flows through token by token, so that
// decoding a growing list costs no more than decoding it once.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm::text {

// A step of a running chain, and the interface it writes to. A token arrives as one or more parts
// and an end; after the last token comes finish().
class DecodeStep {
 public:
  virtual ~DecodeStep() = default;
  virtual void part(std::string_view text) = 0;
  virtual void end_token() = 0;
  // Hands on what is held back but the start of a character: the text so far is the prompt's, and
  // what follows goes on from there.
  virtual void end_prompt() = 0;
  virtual void finish() = 0;
  virtual void token(std::string_view text) {
    part(text);
    end_token();
  }
};

// One decoding under way. Not thread-safe.
class DecodeStream {
 public:
  explicit DecodeStream(std::vector<std::unique_ptr<DecodeStep>> steps,
                        std::unique_ptr<std::string> out)
      : out_(std::move(out)), steps_(std::move(steps)) {}
  void token(std::string_view spelling) { steps_.back()->token(spelling); }
  void end_prompt() { steps_.back()->end_prompt(); }
  void finish() { steps_.back()->finish(); }
  // What became certain since the last call; the caller empties it.
  std::string& out() { return *out_; }

 private:
  std::unique_ptr<std::string> out_;                // the last step writes here
  std::vector<std::unique_ptr<DecodeStep>> steps_;  // last step first, each knows the one before
};

// Immutable after construction.
class Decoder {
 public:
  Decoder() = default;  // joins tokens with spaces, as Hugging Face does without a decoder
  // `json` may be null. Throws Error: kCorruptData, or kUnsupported naming the decoder.
  Decoder(const nlohmann::ordered_json& json, const std::string& origin);

  DecodeStream start() const;
  // Whether tokens are spelled in the alphabet of bytes, and whether tokens such as <0xE2> are
  // bytes.
  bool spells_bytes() const { return spells_bytes_; }
  bool falls_back_to_bytes() const { return falls_back_to_bytes_; }

 private:
  void parse(const class Fields& fields);
  template <typename Step, typename... Options>
  void add(Options... options);

  // Each makes a step that writes to the one given, which outlives it.
  std::vector<std::function<std::unique_ptr<DecodeStep>(DecodeStep&)>> steps_;
  bool join_with_spaces_ = true;
  bool spells_bytes_ = false;
  bool falls_back_to_bytes_ = false;
};

}  // namespace nanovllm::text
