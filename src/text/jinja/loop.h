// The variable `loop`.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/ast.h"
#include "text/jinja/macro.h"
#include "text/jinja/value.h"

namespace nanovllm::jinja {

struct Loop : Object {
  Loop(Budget* budget, const For& what, Value over, Value iterator, Activation* around, int level)
      : Object(budget),
        node(what),
        iterable(std::move(over)),
        items(std::move(iterator)),
        parent(around),
        depth0(level) {
    charge(sizeof(Loop));
  }

  // Advances; false at the end.
  bool advance(Interpreter& in);
  // Whether there is an item after the current one, which is taken in advance.
  bool peek(Interpreter& in);
  int64_t length(Interpreter& in);
  // Drops what a loop that is over holds on to; it can no longer advance.
  void finish();
  void clear();

  const For& node;
  Value iterable;      // what it runs over, missing when its length is not known before
  Value items;         // Iterator
  Activation* parent;  // of the function around a recursive loop
  int depth0;
  int64_t index0 = -1;
  int64_t known_length = -1;
  Value before, current, after;  // missing when there is none
  bool has_more = true;          // items may have another one
  Value last_changed;            // tuple, missing before the first call of changed()
};

// An attribute of `loop`, missing when there is none of that name.
Value loop_attribute(Interpreter& in, const Value& loop, std::string_view name);
std::string describe_loop(const Loop& loop);

}  // namespace nanovllm::jinja
