// What the tests of the API share: a model of letters, events of an engine, and answers taken
// apart.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_test_support.h"
#include "grammar/grammar.h"
#include "nanovllm/chat.h"
#include "server/openai/json_body.h"
#include "server/openai/protocol.h"

namespace nanovllm::server {

// Between "<" and ">" it is reasoning; "[name arguments]" is a call.
class BracketParser final : public TranscriptParser {
 public:
  explicit BracketParser(bool with_tools) : with_tools_(with_tools) {}
  TranscriptDelta append(std::string_view text, std::span<const TokenMark>) override {
    TranscriptDelta delta;
    for (const char c : text) take(c, delta);
    return delta;
  }
  TranscriptDelta finish() override { return {}; }

 private:
  void take(char c, TranscriptDelta& delta) {
    if (c == '<' || c == '>') {
      reasons_ = c == '<';
    } else if (with_tools_ && c == '[') {
      name_ = "";
      calls_ = true;
    } else if (calls_ && c == ']') {
      calls_ = false;
      ++index_;
    } else if (calls_ && c == ' ' && !name_.empty()) {
      delta.tool_calls.push_back({.index = index_, .name = name_, .arguments = {}});
      name_.clear();
      named_ = true;
    } else if (calls_ && !named_) {
      name_ += c;
    } else if (calls_) {
      if (delta.tool_calls.empty() || delta.tool_calls.back().index != index_) {
        delta.tool_calls.push_back({.index = index_, .name = {}, .arguments = {}});
      }
      delta.tool_calls.back().arguments += c;
    } else {
      (reasons_ ? delta.reasoning : delta.content) += c;
    }
    if (!calls_) named_ = false;
  }

  bool with_tools_, reasons_ = false, calls_ = false, named_ = false;
  std::string name_;
  int index_ = 0;
};

// Letters "a" to "X" are ids 0 to 49.
struct LetterModel {
  LetterModel() {
    served.names = {"letters", "alias"};
    served.preparer = {"letters", {}, tokenizer.get(), &chat_template, &grammars};
    served.preparer.info.vocab_size = 50;
    served.preparer.info.max_model_len = 100;
    served.preparer.info.num_kvcache_blocks = 100;
    served.preparer.info.kvcache_block_size = 16;
    served.system_fingerprint = "fp";
    served.make_parser = [](const TranscriptFormat&, const TranscriptTags&, std::string_view,
                            const ToolTypes* tools) {
      return std::make_unique<BracketParser>(tools != nullptr);
    };
  }
  LetterModel(const LetterModel&) = delete;
  LetterModel& operator=(const LetterModel&) = delete;

  std::unique_ptr<const Tokenizer> tokenizer = alphabet();
  GrammarCompiler grammars{*tokenizer};
  ChatTemplate chat_template{
      "{% for m in messages %}{{ m.content }}{% if m.reasoning_content %}R{{ m.reasoning_content "
      "}}{% endif %}{% for c in m.tool_calls %}{{ c.function.arguments.x }}{% endfor %}X{% endfor "
      "%}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{{ more }}{% if "
      "enable_thinking is defined %}{{ 'T' if enable_thinking else 'F' }}{% endif %}{% if "
      "add_generation_prompt %}G{% endif %}"};
  ServedModel served;
};

inline RequestDelta delta(int index, std::string text, std::vector<int32_t> ids) {
  return {.id = 0,
          .index = index,
          .text = std::move(text),
          .token_ids = std::move(ids),
          .logprobs = {}};
}

inline RequestEnd end(int index, FinishReason reason = FinishReason::kStop,
                      StopReason stop_reason = {}) {
  RequestEnd result;
  result.index = index;
  result.finish_reason = reason;
  result.stop_reason = std::move(stop_reason);
  return result;
}

inline TokenLogprob logprob(int32_t id, float value, int rank, std::string text) {
  return {.token_id = id, .logprob = value, .rank = rank, .decoded_token = std::move(text)};
}

// The chunks of a stream, [DONE] as a text.
inline std::vector<Json> chunks_of(std::string_view stream) {
  std::vector<Json> chunks;
  while (!stream.empty()) {
    const size_t end_of_line = stream.find("\n\n");
    EXPECT_TRUE(stream.starts_with("data: "));
    EXPECT_NE(end_of_line, std::string_view::npos);
    const std::string_view data = stream.substr(6, end_of_line - 6);
    chunks.push_back(data == "[DONE]" ? Json("[DONE]") : Json::parse(data));
    stream.remove_prefix(end_of_line + 2);
  }
  return chunks;
}

template <typename Call>
ApiError api_error_of(Call&& call) {
  try {
    call();
  } catch (const ApiError& error) {
    return error;
  }
  ADD_FAILURE() << "no ApiError was thrown";
  return ApiError(0, "");
}

}  // namespace nanovllm::server
