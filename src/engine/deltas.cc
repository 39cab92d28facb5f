#include "engine/deltas.h"

#include <iterator>
#include <utility>

namespace nanovllm {
namespace {

template <typename T>
void append(std::vector<T>& to, std::vector<T>&& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

// What outputs and events both have.
template <typename Total, typename Delta>
void append_content(Total& total, Delta&& delta) {
  for (const TokenMark& mark : delta.marks) {
    total.marks.push_back({total.text.size() + mark.offset, mark.token_id});
  }
  total.text += delta.text;
  append(total.token_ids, std::move(delta.token_ids));
  append(total.logprobs, std::move(delta.logprobs));
}

}  // namespace

void append_delta(RequestDelta& total, RequestDelta&& delta) {
  append_content(total, std::move(delta));
}

void append_delta(CompletionOutput& total, RequestDelta&& delta) {
  append_content(total, std::move(delta));
}

void append_delta(CompletionOutput& total, CompletionOutput&& delta) {
  total.finish_reason = delta.finish_reason;
  total.stop_reason = std::move(delta.stop_reason);
  append_content(total, std::move(delta));
}

void append_delta(RequestOutput& total, RequestOutput&& delta) {
  if (total.outputs.empty()) {
    total = std::move(delta);
    return;
  }
  total.finished = delta.finished;
  total.num_preemptions = delta.num_preemptions;
  total.num_cached_tokens = delta.num_cached_tokens;
  total.metrics = delta.metrics;
  for (size_t i = 0; i < total.outputs.size(); ++i) {
    append_delta(total.outputs[i], std::move(delta.outputs[i]));
  }
}

}  // namespace nanovllm
