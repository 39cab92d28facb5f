// What Jinja and Python have and the chat templates of published models do not use.
#include "text/jinja/refused.h"

#include <algorithm>
#include <span>

namespace nanovllm::jinja {
namespace {

constexpr std::string_view kTags[] = {"autoescape", "block",   "call",  "do",    "extends", "from",
                                      "import",     "include", "print", "trans", "with"};
constexpr std::string_view kFilters[] = {
    "attr",     "batch",     "center", "filesizeformat", "format",   "forceescape",
    "groupby",  "pprint",    "random", "round",          "slice",    "striptags",
    "truncate", "urlencode", "urlize", "wordcount",      "wordwrap", "xmlattr"};
constexpr std::string_view kTests[] = {"escaped", "filter", "test"};
constexpr std::string_view kNamesOfJinja[] = {"caller", "cycler", "joiner", "kwargs",
                                              "lipsum", "self",   "varargs"};
constexpr std::string_view kMethods[] = {
    "bit_length", "casefold",     "conjugate", "is_integer",  "center",   "changed",
    "encode",     "expandtabs",   "format",    "format_map",  "fromkeys", "isascii",
    "isdecimal",  "isidentifier", "isnumeric", "isprintable", "istitle",  "ljust",
    "maketrans",  "rjust",        "swapcase",  "translate",   "zfill"};

constexpr std::span<const std::string_view> kTables[] = {kTags, kFilters, kTests, kNamesOfJinja,
                                                         kMethods};

}  // namespace

bool is_refused(Refused what, std::string_view name) {
  const auto& names = kTables[static_cast<size_t>(what)];
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace nanovllm::jinja
