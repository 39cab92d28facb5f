#include "text/jinja/loop.h"

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"

namespace nanovllm::jinja {
namespace {

Value loop_cycle(Interpreter&, const Value& self, Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.named.empty()) {
    fail(Fault::kType, "loop.cycle() needs items to cycle through");
  }
  const auto index = static_cast<size_t>(self.as<Loop>().index0);
  return arguments.positional[index % arguments.positional.size()];
}

Value loop_changed(Interpreter& in, const Value& self, Arguments& arguments) {
  if (!arguments.named.empty()) fail(Fault::kType, "loop.changed() takes no keyword arguments");
  auto& loop = self.as<Loop>();
  Value now = make_tuple(in.budget(), std::move(arguments.positional));
  if (!loop.last_changed.is_missing() && equal(in.budget(), loop.last_changed, now)) {
    return Value::boolean(false);
  }
  loop.last_changed = std::move(now);
  return Value::boolean(true);
}

constexpr Builtin kCycle = {"cycle", loop_cycle};
constexpr Builtin kChanged = {"changed", loop_changed};

}  // namespace

bool Loop::peek(Interpreter& in) {
  if (!after.is_missing()) return true;
  if (!has_more || items.is_missing()) return false;
  has_more = items.as<Iterator>().next(in, after);
  return has_more;
}

bool Loop::advance(Interpreter& in) {
  if (!peek(in)) return false;
  ++index0;
  before = std::move(current);
  current = std::move(after);
  after = Value();
  return true;
}

int64_t Loop::length(Interpreter& in) {
  if (known_length >= 0) return known_length;
  if (has_length(iterable)) return known_length = length_of(iterable);
  // An iterator has to be used up to be counted.
  Values rest;
  const int64_t seen = index0 + 1 + (after.is_missing() ? 0 : 1);
  Value item;
  while (has_more && !items.is_missing() && items.as<Iterator>().next(in, item)) {
    in.budget().step();
    rest.push_back(std::move(item));
  }
  known_length = seen + static_cast<int64_t>(rest.size());
  items = in.iterate(make_list(in.budget(), std::move(rest)));
  return known_length;
}

void Loop::finish() {
  if (known_length < 0 && has_length(iterable)) known_length = length_of(iterable);
  if (known_length < 0) known_length = index0 + 1;
  items = Value();
  has_more = false;
}

void Loop::clear() {
  finish();
  iterable = Value();
  before = Value();
  current = Value();
  after = Value();
  last_changed = Value();
}

Value loop_attribute(Interpreter& in, const Value& self, std::string_view name) {
  auto& loop = self.as<Loop>();
  if (name == "index") return Value::integer(loop.index0 + 1);
  if (name == "index0") return Value::integer(loop.index0);
  if (name == "first") return Value::boolean(loop.index0 == 0);
  if (name == "last") return Value::boolean(!loop.peek(in));
  if (name == "length") return Value::integer(loop.length(in));
  if (name == "revindex") return Value::integer(loop.length(in) - loop.index0);
  if (name == "revindex0") return Value::integer(loop.length(in) - loop.index0 - 1);
  if (name == "depth") return Value::integer(loop.depth0 + 1);
  if (name == "depth0") return Value::integer(loop.depth0);
  if (name == "previtem") {
    if (loop.index0 > 0) return loop.before;
    return make_undefined(in.budget(), "there is no previous item", "previtem");
  }
  if (name == "nextitem") {
    if (loop.peek(in)) return loop.after;
    return make_undefined(in.budget(), "there is no next item", "nextitem");
  }
  if (name == "cycle") return make<Method>(Kind::kMethod, in.budget(), self, kCycle);
  if (name == "changed") return make<Method>(Kind::kMethod, in.budget(), self, kChanged);
  return {};
}

std::string describe_loop(const Loop& loop) {
  const int64_t length = loop.known_length >= 0      ? loop.known_length
                         : has_length(loop.iterable) ? length_of(loop.iterable)
                                                     : loop.index0 + 1;
  return fmt::format("<LoopContext {}/{}>", loop.index0 + 1, length);
}

}  // namespace nanovllm::jinja
