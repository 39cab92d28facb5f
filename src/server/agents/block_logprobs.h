// The log-probabilities of an answer's texts, as far as pieces of several tokens tell which tokens
// they are of.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/agents/agent_call.h"
#include "server/openai/logprob_text.h"

namespace nanovllm::server {

class BlockLogprobs {
 public:
  // The model outlives it.
  BlockLogprobs(const ServedModel& model, int num_top) : model_(&model), num_top_(num_top) {}

  // A piece that has been added to the blocks. Tokens that show nothing are of what is shown next;
  // those of tags are of nothing.
  void take(const RequestDelta& delta, const std::vector<AnswerBlock>& blocks);
  // [{token, logprob, bytes, top_logprobs}, ...]: all of the block, and what came since the last
  // time.
  std::string all(const AnswerBlock& block) const;
  std::string news(const AnswerBlock& block);

 private:
  LogprobText new_writer() const;
  bool is_tag(int32_t token_id) const;
  std::string list(const AnswerBlock& block, size_t from, LogprobText& writer) const;

  const ServedModel* model_;
  int num_top_;
  std::map<size_t, PackedLogprobs> by_block_ = {};
  std::vector<PositionLogprobs> held_ = {};  // of tokens that have shown nothing yet
  std::pair<size_t, size_t> shown_ = {};     // blocks, and bytes of the last one

  size_t told_block_ = 0;  // whose news were told last,
  size_t num_told_ = 0;    // so many of them
  LogprobText writer_ = new_writer();
};

}  // namespace nanovllm::server
