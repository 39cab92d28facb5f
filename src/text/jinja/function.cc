#include "text/jinja/function.h"

#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/strings.h"

namespace nanovllm::jinja {
namespace {

// What the chat templates of published models do not use.
constexpr std::string_view kNoTags[] = {"autoescape", "block",   "call",  "do",  "extends", "from",
                                        "import",     "include", "print", "raw", "trans",   "with"};
constexpr std::string_view kNoFilters[] = {
    "attr", "batch",    "center",    "filesizeformat", "format",    "forceescape", "groupby",
    "max",  "min",      "pprint",    "random",         "round",     "slice",       "striptags",
    "sum",  "truncate", "urlencode", "urlize",         "wordcount", "wordwrap",    "xmlattr"};
constexpr std::string_view kNoTests[] = {"escaped", "filter", "test"};
constexpr std::string_view kNoNames[] = {"caller", "cycler", "joiner", "kwargs",
                                         "lipsum", "self",   "varargs"};
constexpr std::string_view kNoMethods[] = {
    "bit_length",   "casefold",   "conjugate", "cycle",       "is_integer", "center",
    "changed",      "copy",       "encode",    "expandtabs",  "format",     "format_map",
    "fromkeys",     "isalnum",    "isalpha",   "isascii",     "isdecimal",  "isdigit",
    "isidentifier", "islower",    "isnumeric", "isprintable", "isspace",    "isupper",
    "istitle",      "ljust",      "maketrans", "partition",   "rfind",      "rindex",
    "rjust",        "rpartition", "rsplit",    "splitlines",  "swapcase",   "translate",
    "zfill"};

std::span<const std::string_view> names_of(Refused what) {
  switch (what) {
    case Refused::kTag:
      return kNoTags;
    case Refused::kFilter:
      return kNoFilters;
    case Refused::kTest:
      return kNoTests;
    case Refused::kName:
      return kNoNames;
    case Refused::kMethod:
      return kNoMethods;
  }
  return {};
}

// Binds what does not stand in the order of the parameters already.
void bind_builtin(const Builtin& builtin, Arguments& arguments, Budget& budget) {
  Pieces names = split(budget, builtin.parameters, "", -1);
  if (builtin.parameters.starts_with('/')) {
    if (!arguments.named.empty()) fail("{}() takes no keyword arguments", builtin.name);
    names.erase(names.begin());
  }
  for (std::string_view& name : names) name = name.substr(0, name.find('?'));
  bind_arguments(builtin.name, names, arguments);
  for (size_t i = 0; i < builtin.least; ++i) {
    if (arguments.positional[i].is_missing()) {
      fail("{}() misses the argument '{}'", builtin.name, names[i]);
    }
  }
}

}  // namespace

void bind_arguments(std::string_view callee, const std::vector<std::string_view>& parameters,
                    Arguments& arguments) {
  Values& values = arguments.positional;
  if (values.size() > parameters.size()) {
    fail("{}() takes at most {} argument{}, but {} were given", callee, parameters.size(),
         parameters.size() == 1 ? "" : "s", values.size());
  }
  values.resize(parameters.size());
  size_t used = 0;
  for (size_t i = 0; i < parameters.size() && used < arguments.named.size(); ++i) {
    for (const auto& [name, value] : arguments.named) {
      if (text_of(name) != parameters[i]) continue;
      if (!values[i].is_missing()) {
        fail("{}() got multiple values for argument '{}'", callee, parameters[i]);
      }
      values[i] = value;
      ++used;
    }
  }
  if (used < arguments.named.size()) fail("{}() takes no such keyword argument", callee);
}

bool is_refused(Refused what, std::string_view name) {
  const auto names = names_of(what);
  return std::find(names.begin(), names.end(), name) != names.end();
}

const Builtin* find_builtin(std::span<const Builtin> table, std::string_view name) {
  const auto found = std::lower_bound(
      table.begin(), table.end(), name,
      [](const Builtin& builtin, std::string_view value) { return builtin.name < value; });
  return found != table.end() && found->name == name ? &*found : nullptr;
}

Value invoke(Interpreter& in, const Builtin& builtin, const Value& self, Arguments& arguments) {
  const size_t given = arguments.positional.size();
  if (arguments.named.empty() && given >= builtin.least && given <= builtin.most) {
    arguments.positional.resize(builtin.most);
  } else if (builtin.parameters != "...") {
    bind_builtin(builtin, arguments, in.budget());
  }
  // Most of them read all of a text.
  if (self.is_string()) in.budget().work(text_of(self).size());
  return builtin.run({in, in.budget(), builtin, self, arguments});
}

int64_t Call::integer(size_t i, int64_t otherwise) const {
  const Value& value = (*this)[i];
  if (value.is_missing()) return otherwise;
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_integer()) {
    fail("{}() takes an integer, not '{}'", builtin.name, type_name(value));
  }
  return value.as_int();
}

bool Call::flag(size_t i, bool otherwise) const {
  return (*this)[i].is_missing() ? otherwise : is_truthy((*this)[i]);
}

const std::string& Call::text(size_t i) const {
  if (!(*this)[i].is_string()) {
    fail("{}() takes a string, not '{}'", builtin.name, type_name((*this)[i]));
  }
  return text_of((*this)[i]);
}

}  // namespace nanovllm::jinja
