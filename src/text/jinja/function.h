// Calling: arguments, and the signature of everything built in.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace nanovllm::jinja {

class Interpreter;

struct Arguments {
  Values positional;
  std::vector<std::pair<Value, Value>> named;  // name (a string) and value, in order
};

// One call of a builtin, its arguments in the order of its parameters.
struct Call {
  Interpreter& in;
  Budget& budget;
  const Builtin& builtin;
  const Value& self;  // what is filtered or tested, or the object of the method
  Arguments& arguments;

  const Value& operator[](size_t i) const { return arguments.positional[i]; }  // may be missing
  bool has(size_t i) const { return !(*this)[i].is_missing() && !(*this)[i].is_none(); }
  // These fail for arguments of another type.
  int64_t integer(size_t i, int64_t otherwise) const;
  bool flag(size_t i, bool otherwise) const;
  const std::string& text(size_t i) const;
};

// A filter, test, method or global function.
struct Builtin {
  using Run = Value (*)(const Call& call);

  // parameters: names with a space between them, those that end in '?' optional. "..." takes any
  // arguments, and with "/" in front they can't be named.
  constexpr Builtin(std::string_view its_name, std::string_view its_parameters, Run its_run)
      : name(its_name), parameters(its_parameters), run(its_run) {
    if (!parameters.empty()) most = 1;
    for (const char c : parameters) most += c == ' ' ? 1 : 0;
    if (parameters.starts_with('/')) --most;
    least = most - static_cast<size_t>(std::count(parameters.begin(), parameters.end(), '?'));
  }

  std::string_view name;
  std::string_view parameters;
  Run run;
  size_t most = 0, least = 0;  // arguments
};

// The builtin of that name in a table sorted by name; null when there is none.
const Builtin* find_builtin(std::span<const Builtin> table, std::string_view name);
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_global(std::string_view name);
// A method of object; methods that would modify a list or dict are none.
const Builtin* find_method(const Value& object, std::string_view name);

// What Jinja and Python have and this engine does not: it is refused by name.
enum class Refused { kTag, kFilter, kTest, kName, kMethod };
bool is_refused(Refused what, std::string_view name);

// Puts the named arguments behind the positional ones, in the order of the parameters; missing
// values where none is given. Fails for more of either than the callee takes.
void bind_arguments(std::string_view callee, const std::vector<std::string_view>& parameters,
                    Arguments& arguments);

// Puts the arguments into the order of the parameters, as Python does, and calls.
Value invoke(Interpreter& in, const Builtin& builtin, const Value& self, Arguments& arguments);

}  // namespace nanovllm::jinja
