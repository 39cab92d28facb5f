// A literal of Python as JSON, byte by byte: 'a' becomes "a", True true, (1, 2) [1, 2].
#pragma once

#include <string>

namespace nanovllm::server {

class PythonicJson {
 public:
  // The JSON that the byte settles; JSON itself comes out as it is.
  std::string take(char byte);
  // What was held back at the end.
  std::string finish();
  // Whether a byte now is neither within brackets nor within a string.
  bool is_outside() const { return depth_ == 0 && quote_ == 0; }

 private:
  std::string take_in_string(char byte);
  std::string end_word();

  char quote_ = 0;           // of the string that the next byte is in; 0 = in none
  char ended_quote_ = 0;     // of the string that ended with the last byte and may go on
  bool is_empty_ = false;    // that string
  bool is_triple_ = false;   // it ends with three quotes,
  int num_quotes_ = 0;       // of which so many came
  std::string escape_ = {};  // from its backslash on
  std::string word_ = {};    // a number or a name
  int depth_ = 0;            // of brackets
};

}  // namespace nanovllm::server
