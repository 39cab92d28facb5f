#include "engine/remarks.h"

#include "base/message.h"
#include "engine/bad_words.h"

namespace nanovllm {

bool Remarks::is_new(const std::string& cause) {
  constexpr size_t kMostJudged = 1000;
  constexpr int kMostRemarks = 100;
  if (judged_.size() == kMostJudged || num_remarks_ == kMostRemarks) return false;
  return judged_.insert(cause).second;
}

void Remarks::say(const std::string& remark) {
  print_message("nanovllm: {}\n", remark);
  ++num_remarks_;
}

void Remarks::on_bad_words(const std::vector<std::string>& words, const Tokenizer& tokenizer) {
  for (const std::string& word : words) {
    if (!is_new(word)) continue;
    const std::string remark = remark_on_bad_word(word, tokenizer);
    if (!remark.empty()) say(remark);
  }
}

void Remarks::on_grammar(const Grammar& grammar) {
  for (const std::string& note : grammar.notes()) {
    if (is_new(note)) say(note);
  }
}

}  // namespace nanovllm
