// What whoever runs an engine should know of its requests.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "nanovllm/tokenizer.h"

namespace nanovllm {

// Says on stderr what is worth a remark, once for each cause, and no more than somebody may read,
// or than time should be spent on.
class Remarks {
 public:
  // Of words that can come all the same.
  void on_bad_words(const std::vector<std::string>& words, const Tokenizer& tokenizer);
  // Of what a grammar does not enforce.
  void on_grammar(const Grammar& grammar);

 private:
  bool is_new(const std::string& cause);
  void say(const std::string& remark);

  std::set<std::string> judged_;
  int num_remarks_ = 0;
};

}  // namespace nanovllm
