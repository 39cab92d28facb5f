#include "text/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "text/json_fields.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace nanovllm::text {

AddedToken parse_added_token(const Fields& fields) {
  return {.content = fields.string("content"),
          .single_word = fields.boolean_or("single_word", false),
          .lstrip = fields.boolean_or("lstrip", false),
          .rstrip = fields.boolean_or("rstrip", false),
          .normalized = fields.boolean_or("normalized", !fields.boolean_or("special", false)),
          .special = fields.boolean_or("special", false)};
}

void TokenTrie::add(std::string_view key, int32_t id) {
  uint32_t at = 0;
  for (const char c : key) {
    const auto byte = static_cast<uint8_t>(c);
    auto& children = nodes_[at].children;
    const auto child = std::find_if(children.begin(), children.end(),
                                    [&](auto& edge) { return edge.first == byte; });
    if (child != children.end()) {
      at = child->second;
      continue;
    }
    const auto next = static_cast<uint32_t>(nodes_.size());
    children.emplace_back(byte, next);
    nodes_.emplace_back();
    at = next;
  }
  if (nodes_[at].id < 0) nodes_[at].id = id;  // of equal ones the first is found
}

void TokenTrie::finish() {
  for (const auto& [byte, child] : nodes_[0].children) first_child_[byte] = child;
  only_first_ = nodes_[0].children.size() == 1 ? nodes_[0].children[0].first : -1;
}

TokenTrie::Match TokenTrie::find(std::string_view text, size_t from) const {
  for (size_t i = from; i < text.size(); ++i) {
    if (only_first_ >= 0) {
      const void* hit = std::memchr(text.data() + i, only_first_, text.size() - i);
      if (hit == nullptr) break;
      i = static_cast<size_t>(static_cast<const char*>(hit) - text.data());
    }
    uint32_t at = first_child_[static_cast<uint8_t>(text[i])];
    if (at == 0) continue;
    Match longest{i, i, -1};
    for (size_t j = i + 1; at != 0; ++j) {
      if (nodes_[at].id >= 0) longest = {i, j, nodes_[at].id};
      if (j == text.size()) break;
      const auto byte = static_cast<uint8_t>(text[j]);
      uint32_t next = 0;
      for (const auto& [label, child] : nodes_[at].children) {
        if (label == byte) next = child;
      }
      at = next;
    }
    if (longest.id >= 0) return longest;
  }
  return {text.size(), text.size(), -1};
}

void AddedTokens::add(AddedToken token, const Vocabulary& vocabulary) {
  if (token.content.empty()) return;
  if (next_id_ < 0) next_id_ = static_cast<int32_t>(vocabulary.size());
  int32_t id = find(token.content);
  if (id < 0) id = vocabulary.find(token.content);
  add_with_id(std::move(token), id >= 0 ? id : next_id_++);
}

void AddedTokens::add_with_id(AddedToken token, int32_t id) {
  if (static_cast<size_t>(id) >= index_.size()) index_.resize(static_cast<size_t>(id) + 1, -1);
  by_content_[token.content] = id;
  if (index_[id] >= 0) {
    AddedToken& known = tokens_[index_[id]];
    // `tokenizers` forgets neither of a special token.
    token.normalized = known.special ? known.normalized : token.normalized;
    token.special = token.special || known.special;
    known = std::move(token);
    return;
  }
  index_[id] = static_cast<int32_t>(tokens_.size());
  ids_.push_back(id);
  tokens_.push_back(std::move(token));
}

void AddedTokens::finish(const Normalizer& normalizer) {
  NormalizeScratch scratch;
  for (const bool special : {true, false}) {  // in this order, which counts where forms are equal
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (tokens_[i].special != special) continue;
      bool at_origin = true;
      std::string_view form = tokens_[i].content;
      if (tokens_[i].normalized) form = normalizer.apply(form, scratch, at_origin);
      if (form.empty()) continue;
      (tokens_[i].normalized ? normalized_ : verbatim_).add(form, ids_[i]);
      if (tokens_[i].lstrip || tokens_[i].rstrip) max_bytes_.reset();
      if (max_bytes_) max_bytes_ = std::max(*max_bytes_, form.size());
    }
  }
  verbatim_.finish();
  normalized_.finish();
}

void AddedTokens::split(std::string_view text, bool normalized, std::vector<Piece>& pieces) const {
  pieces.clear();
  const TokenTrie& trie = normalized ? normalized_ : verbatim_;
  size_t done = 0;  // end of the last piece
  for (size_t from = 0; !trie.empty();) {
    const TokenTrie::Match match = trie.find(text, from);
    if (match.id < 0) break;
    from = match.end;
    size_t begin = match.begin, end = match.end;
    const AddedToken& token = tokens_[index_[match.id]];
    if (token.single_word) {
      const bool after_word =
          begin > 0 && is_word(decode_utf8(text.data() + previous_utf8(text, begin)));
      const bool before_word = end < text.size() && is_word(decode_utf8(text.data() + end));
      if (after_word || before_word) continue;
    }
    while (token.lstrip && begin > done) {
      const size_t previous = previous_utf8(text, begin);
      if (previous < done || !is_space(decode_utf8(text.data() + previous))) break;
      begin = previous;
    }
    if (token.lstrip) begin = std::max(begin, done);
    if (token.rstrip && begin < done) end = std::max(end, done);  // a run that is known to be blank
    while (token.rstrip && end < text.size() && is_space(decode_utf8(text.data() + end))) {
      end += utf8_length(text[end]);
    }
    if (begin >= end) continue;  // the token before has taken all of it, as its blanks
    if (done < begin) pieces.push_back({done, begin, -1});
    pieces.push_back({begin, end, match.id});
    done = end;
  }
  if (done < text.size()) pieces.push_back({done, text.size(), -1});
}

int32_t AddedTokens::find(std::string_view content) const {
  const auto it = by_content_.find(std::string(content));
  return it == by_content_.end() ? -1 : it->second;
}

const AddedToken* AddedTokens::get(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= index_.size() || index_[id] < 0) return nullptr;
  return &tokens_[index_[id]];
}

}  // namespace nanovllm::text
