// One call of a tool, read byte by byte in whatever syntax its model has. Arguments come out as
// text of JSON.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/transcript/tool_types.h"

namespace nanovllm::server {

// Calls that write each argument between tags: <function=f><parameter=x>1</parameter></function>
struct TaggedSyntax {
  std::string_view name_open = {}, name_close = {};  // empty = as many bytes as fit a name
  std::string_view key_open, key_close;
  std::string_view value_open = {}, value_close;
  std::string_view close = {};         // empty = the tag around the call is its end
  bool values_have_own_lines = false;  // a line break at each end of one is none of its own
};

enum class CallForm {
  kJson,      // {"name": "f", "arguments": {"x": 1}}
  kBareJson,  // f{"x": 1}, f[ARGS]{...} or f[CALL_ID]id[ARGS]{...}
  kTagged,
  kPythonic,  // f(x=1)
};

struct CallSyntax {
  CallForm form = CallForm::kJson;
  bool takes_parameters = false;         // "parameters" is another word for "arguments"
  bool lenient_arguments = false;        // none and null are {}, an object in a string is one
  const TaggedSyntax* tagged = nullptr;  // of kTagged
};

class CallScanner {
 public:
  virtual ~CallScanner() = default;

  // Returns how many bytes it took: all, or those before the one that is no part of the call.
  size_t read(std::string_view text);
  // The tag behind the call has come: what was read is all of it.
  virtual void close() {}
  // The name is known and the arguments have begun: from here on it is a call, however it goes on.
  bool is_call() const { return is_call_; }
  bool is_done() const { return is_call_ && has_stopped_; }  // takes no more
  bool is_no_call() const { return !is_call_ && has_stopped_; }

  const std::string& name() const { return name_; }
  // What came since the last time.
  std::string take_arguments() { return std::exchange(arguments_, {}); }

 protected:
  virtual bool take(char byte) = 0;  // false: not a part of the call
  bool stop();                       // returns false

  std::string name_ = {}, arguments_ = {};
  bool is_call_ = false;

 private:
  bool has_stopped_ = false;
};

// `types` (null = nothing is known of them) must outlive it.
std::unique_ptr<CallScanner> make_call_scanner(const CallSyntax& syntax, const ToolTypes* types);

// What may stand in the name of a tool.
bool is_call_name_byte(char byte);
bool is_json_blank(char byte);

}  // namespace nanovllm::server
