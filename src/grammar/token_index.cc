#include "grammar/token_index.h"

#include <algorithm>
#include <utility>

#include "grammar/char_ranges.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace nanovllm::grammar {
namespace {

constexpr size_t kMaxTokenBytes = 4096;  // longer tokens are no text
// Characters of the slices but the last, which has all.
constexpr uint32_t kSliceChars[] = {4, 8, 16};

bool is_white(std::string_view text) { return text.find_first_not_of(" \t\r\n") == text.npos; }

// Characters of a token of plain ones, the last of which may be cut off; 0: it is none.
uint32_t plain_chars(std::string_view text) {
  uint32_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) {
    const text::Utf8Step step = text::classify_utf8(text.data() + at, text.size() - at);
    if (step.kind == text::Utf8Kind::kInvalid) return 0;
    if (step.kind == text::Utf8Kind::kIncomplete) return count + 1;
    const auto byte = static_cast<uint8_t>(text[at]);
    if (byte < 0x20 || byte == '"' || byte == '\\') return 0;
    at += static_cast<size_t>(step.length);
  }
  return count;
}

}  // namespace

ByteTrie::ByteTrie(const std::vector<std::string>& texts, std::vector<int32_t> ids)
    : ids_(std::move(ids)) {
  std::vector<uint32_t> path = {0};  // nodes, by depth
  nodes_.push_back({0, 0, 0, 0});
  std::string_view before;
  const auto close = [&](size_t depth) {
    for (; path.size() > depth + 1; path.pop_back()) {
      nodes_[path.back()].skip = static_cast<uint32_t>(nodes_.size());
    }
  };
  for (uint32_t i = 0; i < ids_.size(); ++i) {
    const std::string_view text = texts[ids_[i]];
    const size_t shared =
        std::mismatch(text.begin(), text.end(), before.begin(), before.end()).first - text.begin();
    close(shared);
    for (size_t depth = shared; depth < text.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({0, i, static_cast<uint16_t>(depth + 1), static_cast<uint8_t>(text[depth])});
    }
    before = text;
  }
  close(0);
  nodes_[0].skip = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({0, static_cast<uint32_t>(ids_.size()), 0, 0});
}

TokenIndex::TokenIndex(const Tokenizer& tokenizer)
    : texts_(Detokenizer::bytes_of_tokens(tokenizer)) {
  for (int32_t id = 0; id < vocab_size(); ++id) {
    std::string& text = texts_[id];
    const bool is_mark = tokenizer.is_special(id) || (tokenizer.is_added(id) && !is_white(text));
    if (text.empty()) continue;
    if (has_symbol(text)) {
      text.clear();  // a byte of no UTF-8
    } else if (is_mark) {
      marks_.push_back(text);
      text = symbol(text);
    }
  }
  std::ranges::sort(marks_);
  build();
}

std::string TokenIndex::symbol(std::string_view text) {
  return kMarkByte + std::string(text) + kMarkByte;
}

std::string TokenIndex::with_symbols(std::string_view text) const {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    // Marks that go on as the text does, and the longest of those that have ended.
    auto begin = marks_.begin(), end = marks_.end();
    size_t longest = 0;
    for (size_t depth = 0; begin != end; ++depth) {
      if (begin->size() == depth) longest = depth;
      if (at + depth == text.size()) break;
      const auto byte_at = [depth](const std::string& mark) {
        return mark.size() == depth ? -1 : static_cast<int>(static_cast<uint8_t>(mark[depth]));
      };
      const int byte = static_cast<uint8_t>(text[at + depth]);
      begin = std::partition_point(begin, end, [&](const auto& it) { return byte_at(it) < byte; });
      end = std::partition_point(begin, end, [&](const auto& it) { return byte_at(it) == byte; });
    }
    if (longest == 0) {
      out.push_back(text[at++]);
    } else {
      out += symbol(text.substr(at, longest));
      at += longest;
    }
  }
  return out;
}

TokenIndex::TokenIndex(std::vector<std::string> texts) : texts_(std::move(texts)) { build(); }

void TokenIndex::build() {
  std::vector<int32_t> ids;
  std::vector<uint32_t> chars(texts_.size());
  for (int32_t id = 0; id < vocab_size(); ++id) {
    std::string& text = texts_[id];
    if (text.size() > kMaxTokenBytes) text.clear();
    if (text.empty()) continue;
    longest_ = std::max(longest_, static_cast<uint32_t>(text.size()));
    if (text.size() == 1) has_byte_[static_cast<uint8_t>(text[0])] = true;
    chars[id] = plain_chars(text);
    ids.push_back(id);
  }
  std::ranges::sort(ids, [this](int32_t a, int32_t b) {
    const int order = texts_[a].compare(texts_[b]);
    return order != 0 ? order < 0 : a < b;
  });
  const uint32_t most = std::ranges::max(chars.empty() ? std::vector<uint32_t>{0} : chars);
  std::vector<uint32_t> sizes(std::begin(kSliceChars), std::end(kSliceChars));
  std::erase_if(sizes, [&](uint32_t size) { return size >= most; });
  sizes.push_back(most);
  for (const uint32_t size : sizes) {
    Slice& slice = slices_.emplace_back();
    slice.max_chars = size;
    slice.tokens.resize(num_words());
    std::vector<int32_t> others;
    for (const int32_t id : ids) {
      if (chars[id] == 0 || chars[id] > size) {
        others.push_back(id);
      } else {
        slice.tokens[id / 32] |= 1u << id % 32;
      }
    }
    slice.others = ByteTrie(texts_, std::move(others));
  }
  trie_ = ByteTrie(texts_, std::move(ids));
}

const TokenIndex::Slice* TokenIndex::slice(uint32_t chars) const {
  const Slice* best = nullptr;
  for (const Slice& slice : slices_) {
    if (slice.max_chars > 0 && slice.max_chars <= chars) best = &slice;
  }
  return best;
}

}  // namespace nanovllm::grammar
