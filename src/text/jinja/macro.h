// Macros, and the variables of a function that is running.
#pragma once

#include <string>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace nanovllm::jinja {

// The variables of one call of a Function.
struct Activation {
  Activation(Activation* around, int num_slots)
      : parent(around), slots(static_cast<size_t>(num_slots)) {}
  Activation* parent;
  Values slots;
};

struct Macro : Object {
  Macro(Budget* budget, const MacroBody& what, std::string called, Activation* around)
      : Object(budget), body(what), name(std::move(called)), parent(around) {
    charge(sizeof(Macro));
  }
  const MacroBody& body;
  std::string name;    // empty for the body of a call block
  Activation* parent;  // of the function it was defined in; the interpreter keeps it
};

std::string describe_macro(const Macro& macro);

}  // namespace nanovllm::jinja
