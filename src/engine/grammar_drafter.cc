#include "engine/grammar_drafter.h"

#include <algorithm>
#include <string>

#include "engine/request.h"

namespace nanovllm {

namespace {

constexpr size_t kBytesOfToken = 16;  // more than tokens have on average
// Tokens before the text: how it is split depends on the word that it goes on with.
constexpr size_t kTokensBefore = 4;

}  // namespace

void GrammarDrafter::propose(std::span<DraftRequest> requests) {
  for (DraftRequest& request : requests) {
    const Sequence& sequence = *request.sequence;
    const auto& constraint = completion_of(sequence).constraint;
    if (!constraint) continue;
    const size_t most = kBytesOfToken * static_cast<size_t>(request.most);
    const std::string text = constraint->forced_text(most);
    if (text.empty()) continue;
    std::vector<int32_t> ids = tokens_of(text, sequence);
    if (text.size() == most && !ids.empty()) ids.pop_back();  // it may be cut off in a token
    if (std::ssize(ids) > request.most) ids.resize(request.most);
    request.draft = {std::move(ids), 1};
  }
}

// Behind what is there already, unless the two would share a token.
std::vector<int32_t> GrammarDrafter::tokens_of(const std::string& text,
                                               const Sequence& sequence) const {
  const std::span<const int32_t> known = sequence.token_ids;
  const std::string before =
      tokenizer_.decode(known.last(std::min(known.size(), kTokensBefore)), false);
  const std::vector<int32_t> ids_before = tokenizer_.encode(before, false);
  std::vector<int32_t> ids = tokenizer_.encode(before + text, false);
  const auto [end, differs] = std::ranges::mismatch(ids_before, ids);
  if (end != ids_before.end()) return tokenizer_.encode(text, false);
  ids.erase(ids.begin(), differs);
  return ids;
}

}  // namespace nanovllm
