#include "server/transcript/turn.h"

namespace nanovllm::server {

void Turn::append(const RequestDelta& delta) {
  for (const int32_t id : delta.token_ids) {
    may_reason_ = may_reason_ && id != tags_->end_of_thought;
    if (may_reason_ && id != tags_->begin_of_thought) ++num_before_end_;
  }
  if (parser_) {
    add(parser_->append(delta.text, delta.marks));
  } else {
    news_.content += delta.text;
  }
}

void Turn::finish() {
  if (!parser_) return;
  TranscriptDelta rest = parser_->finish();
  if (options_.calls_alone) rest.content.clear();
  add(std::move(rest));
}

void Turn::add(TranscriptDelta&& delta) {
  has_reasoned_ = has_reasoned_ || !delta.reasoning.empty();
  if (options_.include_reasoning) news_.reasoning += delta.reasoning;
  news_.content += delta.content;
  std::vector<ToolCallDelta>& calls = news_.tool_calls;
  for (ToolCallDelta& call : delta.tool_calls) {
    if (!options_.parallel_tool_calls && call.index > 0) continue;
    has_called_ = true;
    if (!calls.empty() && calls.back().index == call.index) {
      calls.back().name += call.name;
      calls.back().arguments += call.arguments;
    } else {
      calls.push_back(std::move(call));
    }
  }
}

}  // namespace nanovllm::server
