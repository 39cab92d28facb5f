// One call of a tool, read byte by byte: {"name": "f", "arguments": {...}} or f{...}.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace nanovllm::server {

inline constexpr std::string_view kJsonBlanks = " \t\r\n";

struct CallSyntax {
  bool takes_parameters = false;   // "parameters" is another word for "arguments"
  bool lenient_arguments = false;  // none and null are {}, a string is what it holds
  bool is_bare = false;            // f{...}, f[ARGS]{...} or f[CALL_ID]id[ARGS]{...}
};

class CallScanner {
 public:
  explicit CallScanner(CallSyntax syntax) : syntax_(syntax) {}

  // Returns how many bytes it took: all, or those before the one that is no part of the call.
  size_t read(std::string_view text);
  // The name is known and the arguments have begun: from here on it is a call, however it goes on.
  bool is_call() const { return has_name_ && has_arguments_; }
  bool is_done() const { return step_ == Step::kDone; }  // takes no more
  bool is_no_call() const { return step_ == Step::kNoCall; }

  const std::string& name() const { return name_; }
  // What came since the last time.
  std::string take_arguments() { return std::exchange(arguments_, {}); }

 private:
  enum class Step {
    kBegin,
    kBareName,
    kKey,
    kInKey,
    kColon,
    kValue,
    kInValue,
    kComma,
    kDone,
    kNoCall
  };

  bool take(char byte);  // false: not a part of the call, which is_done() or is_no_call()
  bool take_bare_name(char byte);
  bool is_arguments() const {
    return key_ == "arguments" || (syntax_.takes_parameters && key_ == "parameters");
  }
  bool begin_value(char byte);
  bool take_value(char byte);
  bool end_value();
  bool stop();  // returns false

  CallSyntax syntax_;
  Step step_ = Step::kBegin;
  std::string text_ = {};  // of the name, key or value being read
  std::string key_ = {}, name_ = {}, arguments_ = {};
  bool has_name_ = false, has_arguments_ = false;
  bool is_streamed_ = false;  // the value goes to arguments_ as it comes
  int depth_ = 0;             // of brackets around the next byte of the value
  bool in_string_ = false, is_escaped_ = false;
};

}  // namespace nanovllm::server
