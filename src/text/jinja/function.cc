#include "text/jinja/function.h"

#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"

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

constexpr std::span<const std::string_view> kTables[] = {kNoTags, kNoFilters, kNoTests, kNoNames,
                                                         kNoMethods};

// Puts named arguments behind the positional ones, missing values where none is given.
void bind_arguments(const Builtin& builtin, Arguments& arguments) {
  Values& values = arguments.positional;
  const auto most = static_cast<size_t>(builtin.most);
  if (values.size() > most) {
    fail("{}() takes at most {} argument{}, but {} were given", builtin.name, most,
         most == 1 ? "" : "s", values.size());
  }
  values.resize(most);
  std::string_view parameters = builtin.parameters;
  if (parameters.starts_with('/')) {
    if (!arguments.named.empty()) fail("{}() takes no keyword arguments", builtin.name);
    parameters.remove_prefix(std::min<size_t>(2, parameters.size()));
  }
  size_t used = 0;
  for (size_t i = 0; i < most; ++i) {
    const size_t end = std::min(parameters.find(' '), parameters.size());
    std::string_view name = parameters.substr(0, end);
    parameters.remove_prefix(std::min(end + 1, parameters.size()));
    const bool is_optional = name.ends_with('?');
    if (is_optional) name.remove_suffix(1);
    for (const auto& [key, value] : arguments.named) {
      if (text_of(key) != name) continue;
      if (!values[i].is_missing()) {
        fail("{}() got multiple values for argument '{}'", builtin.name, name);
      }
      values[i] = value;
      ++used;
    }
    if (values[i].is_missing() && !is_optional) {
      fail("{}() misses the argument '{}'", builtin.name, name);
    }
  }
  if (used < arguments.named.size()) {
    fail("{}() got an unexpected keyword argument", builtin.name);
  }
}

}  // namespace

bool is_refused(Refused what, std::string_view name) {
  const auto& names = kTables[static_cast<size_t>(what)];
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
  const bool is_bound = arguments.named.empty() && given == static_cast<size_t>(builtin.most);
  if (!is_bound && builtin.parameters != "...") bind_arguments(builtin, arguments);
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
