#include "runner/decode_graphs.h"

namespace nanovllm {

Tensor DecodeGraphs::run(const DecodeShape& shape, const std::function<Tensor()>& ops) {
  Entry& entry = entries_[shape];
  if (entry.graph) {
    backend_.launch(*entry.graph);
  } else {
    entry.logits = ops();
    entry.graph = backend_.capture([&] { ops(); });
  }
  return entry.logits;
}

}  // namespace nanovllm
