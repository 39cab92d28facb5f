// What the parameter `attribute` of filters means: "a.b.0", an index, or nothing.
#pragma once

#include <vector>

#include "text/jinja/interpreter.h"
#include "text/jinja/value.h"

namespace nanovllm::jinja {

class AttributeGetter {
 public:
  // otherwise: takes the place of what is undefined on the way; may be missing.
  AttributeGetter(Interpreter& in, const Value* attribute, bool ignores_case,
                  Value otherwise = Value());
  Value operator()(Interpreter& in, const Value& item) const;

 private:
  Values parts_;
  bool ignores_case_;
  Value otherwise_;
};

// Strings in lower case, all else as it is.
Value ignore_case(Interpreter& in, const Value& value);

}  // namespace nanovllm::jinja
