// The global functions: Jinja's, in the variants that Hugging Face allows, and raise_exception and
// strftime_now.
#include <ctime>

#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"

namespace nanovllm::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // items, as in Jinja's sandbox

// dict(mapping, name=value, ...)
Value global_dict(const Call& call) {
  const Values& from = call.arguments.positional;
  if (from.size() > 1 || (from.size() == 1 && !from[0].is(Kind::kDict))) {
    fail("{}() takes a mapping and keyword arguments", call.builtin.name);
  }
  Value result = make_dict(call.budget);
  auto& dict = result.as<Dict>();
  if (!from.empty()) {
    for (const Dict::Entry& entry : entries_of(from[0])) dict.set(entry.key, entry.value);
  }
  call.budget.work(dict.size() * sizeof(Dict::Entry));
  for (const auto& [name, value] : call.arguments.named) dict.set(name, value);
  return result;
}

Value global_namespace(const Call& call) {
  Value attributes = global_dict(call);
  for (const Dict::Entry& entry : entries_of(attributes)) {
    if (entry.key.is_string() && text_of(entry.key).starts_with('_')) {
      fail("names that begin with an underscore are private in a namespace");
    }
  }
  Value space = make<Namespace>(Kind::kNamespace, call.budget, std::move(attributes));
  call.in.keep(space);
  return space;
}

// A list, which only differs from Python's range where a template prints it.
Value global_range(const Call& call) {  // start stop? step?
  const bool has_stop = !call[1].is_missing();
  const int64_t start = has_stop ? call.integer(0, 0) : 0;
  const int64_t stop = call.integer(has_stop ? 1 : 0, 0);
  const int64_t step = call.integer(2, 1);
  if (step == 0) fail("range() arg 3 must not be zero");
  Values items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (items.size() >= static_cast<size_t>(kMaxRange)) {
      fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", kMaxRange);
    }
    items.push_back(Value::integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  call.budget.work(items.size() * sizeof(Value));
  return make_list(call.budget, std::move(items));
}

Value raise_exception(const Call& call) { throw Failure(to_str(call.budget, call[0])); }

// datetime.now().strftime(format), which Python leaves to the C library.
Value strftime_now(const Call& call) {
  const std::string& wanted = call.text(0);
  if (wanted.size() > 1000) fail("a time format is limited to 1000 bytes");
  for (const char* zone : {"%f", "%z", "%Z"}) {
    if (wanted.find(zone) != std::string::npos) fail("the time format '{}' is not supported", zone);
  }
  // A trailing mark tells an empty result from a buffer that was too small.
  const std::string pattern = wanted + "|";
  std::string out(pattern.size() * 64, '\0');
  const size_t length = std::strftime(out.data(), out.size(), pattern.c_str(), &call.in.now());
  if (length == 0) fail("the time format can't be used");
  out.resize(length - 1);
  return make_string(call.budget, std::move(out));
}

constexpr Builtin kGlobals[] = {
    {"dict", "...", global_dict},
    {"namespace", "...", global_namespace},
    {"raise_exception", "message", raise_exception},
    {"range", "/ start stop? step?", global_range},
    {"strftime_now", "format", strftime_now},
};

}  // namespace

const Builtin* find_global(std::string_view name) { return find_builtin(kGlobals, name); }

}  // namespace nanovllm::jinja
