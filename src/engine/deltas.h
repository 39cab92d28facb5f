// How what is new of a request joins what came before it, wherever somebody keeps both: outputs of
// RequestOutputKind::kDelta and events of an EngineLoop alike.
#pragma once

#include "nanovllm/engine_loop.h"

namespace nanovllm {

// Of one completion: text, ids and log-probabilities behind those of `total`, marks where their
// text stands then; an output also says how the completion ended.
void append_delta(RequestDelta& total, RequestDelta&& delta);
void append_delta(CompletionOutput& total, RequestDelta&& delta);
void append_delta(CompletionOutput& total, CompletionOutput&& delta);

// Of a whole request. A `total` without completions is one to which nothing came yet.
void append_delta(RequestOutput& total, RequestOutput&& delta);

}  // namespace nanovllm
