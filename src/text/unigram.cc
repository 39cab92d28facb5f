#include "text/unigram.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "text/byte_alphabet.h"
#include "text/utf8.h"

namespace nanovllm::text {

namespace {

constexpr int32_t kUncovered = -2;  // the id in a path of a character that no token covers

// The edges of a trie of the tokens; edge i leads to node i + 1, node 0 is the root.
std::vector<PairTable::Rule> edges_of(const Vocabulary& vocabulary) {
  std::vector<std::pair<std::string_view, int32_t>> tokens;
  tokens.reserve(static_cast<size_t>(vocabulary.id_end()));
  for (int32_t id = 0; id < vocabulary.id_end(); ++id) {
    tokens.emplace_back(vocabulary.spelling(id), id);
  }
  std::sort(tokens.begin(), tokens.end());
  std::vector<PairTable::Rule> edges;
  std::vector<int32_t> nodes = {0};  // after each byte of the token at hand
  std::string_view last;
  for (const auto& [token, id] : tokens) {
    const auto differs = std::mismatch(token.begin(), token.end(), last.begin(), last.end()).first;
    nodes.resize(static_cast<size_t>(differs - token.begin()) + 1);
    for (size_t i = nodes.size() - 1; i < token.size(); ++i) {
      edges.push_back({nodes[i], static_cast<uint8_t>(token[i]), i + 1 == token.size() ? id : -1});
      nodes.push_back(static_cast<int32_t>(edges.size()));
    }
    last = token;
  }
  return edges;
}

double lowest(const std::vector<double>& scores) {
  return scores.empty() ? std::numeric_limits<double>::infinity()
                        : *std::min_element(scores.begin(), scores.end());
}

}  // namespace

Unigram::Unigram(Vocabulary vocabulary, std::vector<double> scores, int32_t unknown,
                 bool byte_fallback)
    : Model(std::move(vocabulary), byte_fallback),
      scores_(std::move(scores)),
      unknown_score_(lowest(scores_) - 10),
      unknown_(unknown),
      trie_(edges_of(vocabulary_)) {
  const int32_t separator = vocabulary_.find(kSeparator);
  cuts_at_separator_ = separator >= 0 && separator != unknown_;
  for (int32_t id = 0; id < vocabulary_.id_end() && cuts_at_separator_; ++id) {
    cuts_at_separator_ = !has_separator_inside(vocabulary_.spelling(id));
  }
}

// Viterbi's algorithm from a score on; of equal paths the one found first stays. Sums are made from
// the left, so that they round as they do for `tokenizers`. Returns whether all choices were so
// clear that rounding plays no part.
bool Unigram::find_paths(std::string_view word, double score, std::vector<Path>& paths) const {
  constexpr double kClear = 1e-5;  // far above what sums of millions of scores are off by
  bool is_clear = true;
  paths.assign(word.size() + 1, {});
  paths[0].score = score;
  const auto offer = [&](size_t begin, size_t end, double added, int32_t id) {
    const double sum = paths[begin].score + added;
    if (paths[end].length != 0) {
      is_clear = is_clear && std::abs(sum - paths[end].score) > kClear;
      if (!(sum > paths[end].score)) return;
    }
    paths[end] = {sum, id, static_cast<uint32_t>(end - begin)};
  };
  for (size_t begin = 0, next = 0; begin < word.size(); begin = next) {
    next += utf8_length(word[begin]);
    bool has_character = false;
    int32_t node = 0;
    for (size_t end = begin; end < word.size();) {
      const auto* edge = trie_.find(node, static_cast<uint8_t>(word[end]));
      if (edge == nullptr) break;
      node = static_cast<int32_t>(edge->rank) + 1;
      ++end;
      if (edge->id < 0) continue;
      offer(begin, end, scores_[edge->id], edge->id);
      has_character = has_character || end == next;
    }
    if (has_character) continue;
    offer(begin, next, unknown_score_, kUncovered);
    if (paths[next].id == kUncovered && unknown_ < 0) {
      throw_error(ErrorCode::kCorruptData,
                  "the text has a character that the tokenizer's vocabulary lacks, and the "
                  "tokenizer has no unk_id");
    }
  }
  return is_clear;
}

// Unknown characters in a row are one token, unless they are bytes.
std::optional<size_t> Unigram::max_bytes_per_token(bool byte_level) const {
  return has_all_bytes() ? std::optional(longest_spelling(byte_level)) : std::nullopt;
}

bool Unigram::encode(std::string_view word, bool byte_level, ModelScratch& scratch,
                     std::vector<int32_t>& out) const {
  if (byte_level) {
    scratch.spelling.clear();
    append_byte_spelling(scratch.spelling, word);
    word = scratch.spelling;
  }
  const std::vector<Path>& paths = scratch.paths;
  const auto start = static_cast<ptrdiff_t>(out.size());
  const auto add_up_before = [&] {
    for (; scratch.scored < static_cast<size_t>(start); ++scratch.scored) {
      scratch.score += scores_[out[scratch.scored]];
    }
  };
  const bool is_clear = find_paths(word, 0, scratch.paths);
  if (!is_clear) add_up_before();
  if (!is_clear && scratch.score != 0) find_paths(word, scratch.score, scratch.paths);
  // From the last token to the first.
  bool is_known = true;
  scratch.ids.clear();
  size_t run_end = 0;  // of unknown characters, which are one token or bytes; 0: there is no run
  const auto end_run = [&](size_t begin) {
    if (run_end == 0) return;
    const auto first = static_cast<ptrdiff_t>(out.size());
    const std::string_view run = word.substr(begin, run_end - begin);
    const int32_t id = vocabulary_.find(run);
    if (id >= 0 || !append_bytes(run, out)) out.push_back(id >= 0 ? id : unknown_);
    std::reverse(out.begin() + first, out.end());
    run_end = 0;
  };
  for (size_t end = word.size(); end > 0; end -= paths[end].length) {
    const int32_t id = paths[end].id;
    scratch.ids.push_back(id);
    is_known = is_known && id != kUncovered;
    if (id == kUncovered || id == unknown_) {
      run_end = std::max(run_end, end);
    } else {
      end_run(end);
      out.push_back(id);
    }
  }
  end_run(0);
  std::reverse(out.begin() + start, out.end());
  if (is_clear && is_known) return true;
  add_up_before();
  std::for_each(scratch.ids.rbegin(), scratch.ids.rend(), [&](int32_t id) {
    scratch.score += id == kUncovered ? unknown_score_ : scores_[id];
  });
  scratch.scored = out.size();
  return false;
}

}  // namespace nanovllm::text
