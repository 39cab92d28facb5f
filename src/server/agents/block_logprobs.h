// The log-probabilities of an answer's texts.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "server/agents/agent_call.h"
#include "server/openai/logprob_text.h"
#include "text/detokenizer.h"

namespace nanovllm::server {

// Pieces have a text and tokens, any number of them: which bytes are a token's is found as the
// engine finds the text.
class BlockLogprobs {
 public:
  // The model outlives it. The request may ask for none.
  BlockLogprobs(const ServedModel& model, const AddRequest& request);

  // A piece of the model's text.
  void take(const RequestDelta& delta);
  // The bytes [begin, end) of it are in the block now, in order. Tokens of which no text shows any
  // byte, such as tags and what ended the answer, are of nothing.
  void take_words(const AnswerBlock& block, size_t begin, size_t end);
  // [{token, logprob, bytes, top_logprobs}, ...]: all of the block, and what came since the last
  // time.
  std::string all(const AnswerBlock& block) const;
  std::string news(const AnswerBlock& block);

 private:
  struct Token {
    size_t begin, end;  // bytes of the model's text; with half a character, none
    PositionLogprobs logprobs;
  };

  LogprobText new_writer() const;
  std::string list(const AnswerBlock& block, size_t from, LogprobText& writer) const;

  const ServedModel* model_;
  int num_top_ = 0;
  std::vector<int32_t> tags_ = {};               // ids, which are text whatever else is left out
  std::optional<Detokenizer> detokenizer_ = {};  // where there are any
  size_t num_bytes_ = 0;                         // that it has given
  std::deque<Token> tokens_ = {};                // not shown yet
  std::map<size_t, PackedLogprobs> by_block_ = {};

  size_t told_block_ = 0;  // whose news were told last,
  size_t num_told_ = 0;    // so many of them
  LogprobText writer_;
};

}  // namespace nanovllm::server
