// What one completion of a chat says, as any API draws it: reasoning, text, calls, usage.
#pragma once

#include <memory>
#include <utility>

#include "nanovllm/engine_loop.h"
#include "server/transcript/transcript_parser.h"

namespace nanovllm::server {

struct TurnOptions {
  bool include_reasoning = true;
  bool parallel_tool_calls = true;  // else the first call alone is shown
  bool calls_alone = false;         // come behind a thought: what breaks off is one, and no content
};

class Turn {
 public:
  // parser: null = all is content. The tags are those of its format, and outlive this.
  Turn(std::unique_ptr<TranscriptParser> parser, const TranscriptTags& tags, TurnOptions options)
      : parser_(std::move(parser)), tags_(&tags), options_(options) {}

  void append(const RequestDelta& delta);
  void finish();
  // What was not taken yet: of an answer that is not streamed, all of it.
  const TranscriptDelta& news() const { return news_; }
  void clear_news() { news_ = {}; }

  bool is_parsed() const { return parser_ != nullptr; }
  bool has_called() const { return has_called_; }
  // Known where the end of the reasoning is a token.
  size_t num_reasoning_tokens() const { return has_reasoned_ ? num_before_end_ : 0; }

 private:
  void add(TranscriptDelta&& delta);

  std::unique_ptr<TranscriptParser> parser_;
  const TranscriptTags* tags_;
  TurnOptions options_;
  TranscriptDelta news_ = {};
  bool has_called_ = false, has_reasoned_ = false;
  bool may_reason_ = true;     // the end of its reasoning has not come
  size_t num_before_end_ = 0;  // tokens
};

}  // namespace nanovllm::server
