// The text that a custom tool gets, out of the arguments of the function that the model knows.
#pragma once

#include <string>
#include <string_view>

namespace nanovllm::server {

// Of {"input": "..."} it is the string, which is told as it comes. What begins otherwise is known
// at the end: an object that has such a string gives it, all else is the input itself. Any split of
// the arguments adds up to the same.
class CustomInput {
 public:
  // What the piece adds to the input.
  std::string append(std::string_view arguments);
  std::string finish();

 private:
  enum class Mode {
    kHead,
    kString,
    kBehind,  // the string
    kOther,
  };

  void take(char byte, std::string& out);
  void take_in_string(char byte, std::string& out);
  void take_in_escape(char byte, std::string& out);
  void end_escape(std::string& out);

  Mode mode_ = Mode::kHead;
  std::string arguments_ = {};  // where they are needed: up to the string, or all
  std::string head_ = {};       // the same without blanks outside of quotes
  std::string escape_ = {};     // in the string, from its backslash on; of a pair both
};

}  // namespace nanovllm::server
