// The global functions: Jinja's, in the variants that Hugging Face allows, and raise_exception and
// strftime_now.
#include "text/jinja/globals.h"

#include <ctime>

#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // items, as in Jinja's sandbox

// dict(mapping or pairs, **names)
Value make_dict_of(Interpreter& in, std::string_view function, Arguments& arguments) {
  if (arguments.positional.size() > 1) {
    fail(Fault::kType, "{} expected at most 1 argument, got {}", function,
         arguments.positional.size());
  }
  Value result = make_dict(in.budget());
  auto& dict = result.as<Dict>();
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional.front();
    if (from.is(Kind::kDict)) {
      for (const Dict::Entry& entry : from.as<Dict>().entries()) {
        in.budget().step();
        dict.set(entry.key, entry.value);
      }
    } else {
      in.for_each(from, [&](const Value& item) {
        Values pair = in.to_values(item);
        if (pair.size() != 2) {
          fail(Fault::kValue, "{} takes pairs, but one has the length {}", function, pair.size());
        }
        dict.set(std::move(pair[0]), std::move(pair[1]));
        return true;
      });
    }
  }
  for (auto& [name, value] : arguments.named) dict.set(name, value);
  return result;
}

Value global_dict(Interpreter& in, const Value&, Arguments& arguments) {
  return make_dict_of(in, "dict", arguments);
}

Value global_namespace(Interpreter& in, const Value&, Arguments& arguments) {
  Value attributes = make_dict_of(in, "namespace", arguments);
  for (const Dict::Entry& entry : attributes.as<Dict>().entries()) {
    if (entry.key.is_string() && text_of(entry.key).starts_with('_')) {
      fail(Fault::kSecurity,
           "a namespace can't have the attribute '{}': names with an underscore in front are "
           "private",
           text_of(entry.key));
    }
  }
  Value space = make<Namespace>(Kind::kNamespace, in.budget(), std::move(attributes));
  in.keep(space);
  return space;
}

Value global_range(Interpreter& in, const Value&, Arguments& arguments) {
  const auto [first, second, third] = bind<3>(arguments, "range", {"start", "stop?", "step?", "/"});
  const bool has_stop = second != nullptr;
  const int64_t start = has_stop ? int_argument(first, 0, "range") : 0;
  const int64_t stop = int_argument(has_stop ? second : first, 0, "range");
  const int64_t step = int_argument(third, 1, "range");
  if (step == 0) fail(Fault::kValue, "range() arg 3 must not be zero");
  Value range = make<Range>(Kind::kRange, in.budget(), start, stop, step);
  if (range.as<Range>().length > kMaxRange) {
    fail(Fault::kOverflow, "Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).",
         kMaxRange);
  }
  return range;
}

Value global_cycler(Interpreter& in, const Value&, Arguments& arguments) {
  if (!arguments.named.empty()) fail(Fault::kType, "cycler() takes no keyword arguments");
  if (arguments.positional.empty()) {
    fail(Fault::kRuntime, "at least one item has to be provided");
  }
  return make<Cycler>(Kind::kCycler, in.budget(),
                      make_tuple(in.budget(), std::move(arguments.positional)));
}

Value global_joiner(Interpreter& in, const Value&, Arguments& arguments) {
  const auto [separator] = bind<1>(arguments, "joiner", {"sep?"});
  return make<Joiner>(Kind::kJoiner, in.budget(),
                      separator == nullptr ? make_string(in.budget(), ", ") : *separator);
}

Value global_lipsum(Interpreter&, const Value&, Arguments&) {
  fail(Fault::kUnsupported, "lipsum() is not supported: it would make prompts random");
}

Value raise_exception(Interpreter& in, const Value&, Arguments& arguments) {
  const auto [message] = bind<1>(arguments, "raise_exception", {"message"});
  throw Failure(Fault::kRaised, to_str(in.budget(), *message));
}

// datetime.now().strftime(format). Python fills in what a time without zone and with microseconds
// has itself and leaves the rest to the C library.
Value strftime_now(Interpreter& in, const Value&, Arguments& arguments) {
  const auto [format] = bind<1>(arguments, "strftime_now", {"format"});
  const std::string& wanted = text_argument(*format, "strftime_now");
  if (wanted.size() > 1000) fail(Fault::kLimit, "a time format is limited to 1000 bytes");
  std::string pattern;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const char next = i + 1 < wanted.size() ? wanted[i + 1] : '\0';
    if (wanted[i] != '%' || next == '\0') {
      pattern += wanted[i];
      continue;
    }
    ++i;
    if (next == 'f') {
      pattern += "000000";
    } else if (next != 'z' && next != 'Z') {
      pattern += '%';
      pattern += next;
    }
  }
  if (pattern.empty()) return make_string(in.budget(), "");
  // A trailing mark tells an empty result from a buffer that was too small.
  pattern += '|';
  std::string out(pattern.size() * 64, '\0');
  const size_t length = std::strftime(out.data(), out.size(), pattern.c_str(), &in.now());
  if (length == 0) fail(Fault::kValue, "the time format can't be used");
  out.resize(length - 1);
  return make_string(in.budget(), std::move(out));
}

constexpr Builtin kGlobals[] = {
    {"cycler", global_cycler},       {"dict", global_dict},
    {"joiner", global_joiner},       {"lipsum", global_lipsum},
    {"namespace", global_namespace}, {"raise_exception", raise_exception},
    {"range", global_range},         {"strftime_now", strftime_now},
};

}  // namespace

BuiltinTable globals() { return kGlobals; }

}  // namespace nanovllm::jinja
