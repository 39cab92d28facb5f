// The interpreter's calls: macros, recursive loops, blocks, functions and methods.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter_scopes.h"
#include "text/jinja/operators.h"

namespace nanovllm::jinja {
namespace {

// self.name: a block that can be called.
struct BlockReference : Object {
  BlockReference(Budget* budget, const Block& what) : Object(budget), block(what) {
    charge(sizeof(BlockReference));
  }
  const Block& block;
};

}  // namespace

std::string describe_macro(const Macro& macro) {
  return macro.name.empty() ? "<Macro anonymous>" : fmt::format("<Macro '{}'>", macro.name);
}

Value Interpreter::call(const Value& callee, Arguments& arguments) {
  switch (callee.kind()) {
    case Kind::kMacro:
      return call_macro(callee.as<Macro>(), arguments);
    case Kind::kFunction:
      return callee.as_function().call(*this, Value(), arguments);
    case Kind::kMethod:
      return callee.as<Method>().builtin.call(*this, callee.as<Method>().self, arguments);
    case Kind::kLoop:
      return call_loop(callee, arguments);
    case Kind::kBlock:
      bind_none(arguments, "block");
      return call_block(callee);
    case Kind::kJoiner: {
      bind_none(arguments, "joiner");
      auto& joiner = callee.as<Joiner>();
      if (std::exchange(joiner.used, true)) return joiner.separator;
      return make_string(budget_, "");
    }
    case Kind::kUndefined:
      fail_undefined(callee);
    default:
      fail(Fault::kType, "'{}' object is not callable", type_name(callee));
  }
}

Value Interpreter::call_filter(const Value& name, const Value& value, Arguments arguments) {
  const Builtin* filter = name.is_string() ? find_filter(text_of(name)) : nullptr;
  if (filter == nullptr) {
    fail(Fault::kRuntime, "No filter named {}.", to_repr(budget_, name));
  }
  return filter->call(*this, value, arguments);
}

bool Interpreter::call_test(const Value& name, const Value& value, Arguments arguments) {
  const Builtin* test = name.is_string() ? find_test(text_of(name)) : nullptr;
  if (test == nullptr) fail(Fault::kRuntime, "No test named {}.", to_repr(budget_, name));
  return is_truthy(test->call(*this, value, arguments));
}

Value Interpreter::call_macro(const Macro& macro, Arguments& arguments) {
  budget_.step();
  const Nesting nesting(budget_);
  const uint32_t called_at = offset_;
  std::unique_ptr<Activation> owner;
  Activation* activation = new_activation(macro.body.function, macro.parent, owner);
  bind_macro_arguments(macro, arguments, *activation);
  Value text = run_buffered([&] {
    activation_ = activation;
    enter(macro.body.scope);
    const size_t required = macro.body.parameters.size() - macro.body.defaults.size();
    for (size_t i = 0; i < macro.body.parameters.size(); ++i) {
      const Name& parameter = *macro.body.parameters[i];
      if (!slot(parameter.ref).is_missing()) continue;
      Value value =
          i < required
              ? make_undefined(budget_,
                               fmt::format("parameter '{}' was not provided", parameter.name),
                               parameter.name)
              : evaluate(*macro.body.defaults[i - required]);
      slot(parameter.ref) = std::move(value);
    }
    run(macro.body.body);
  });
  offset_ = called_at;
  return text;
}

// Into the slots of the macro's parameters; those not given stay missing.
void Interpreter::bind_macro_arguments(const Macro& macro, Arguments& arguments,
                                       Activation& activation) {
  const MacroBody& body = macro.body;
  const auto set = [&](int index, Value value) {
    activation.slots[static_cast<size_t>(index)] = std::move(value);
  };
  const auto take = [&](std::string_view name) {
    for (auto it = arguments.named.begin(); it != arguments.named.end(); ++it) {
      if (text_of(it->first) != name) continue;
      Value value = std::move(it->second);
      arguments.named.erase(it);
      return value;
    }
    return Value();
  };
  const size_t count = body.parameters.size();
  const size_t given = std::min(count, arguments.positional.size());
  for (size_t i = 0; i < given; ++i) {
    set(body.parameters[i]->ref.slot, std::move(arguments.positional[i]));
  }
  for (size_t i = given; i < count; ++i) {
    set(body.parameters[i]->ref.slot, take(body.parameters[i]->name));
  }
  if (body.uses_caller) {
    Value caller = take("caller");
    if (caller.is_missing() || caller.is_none()) {
      caller = make_undefined(budget_, "No caller defined", "caller");
    }
    set(body.caller_slot, std::move(caller));
  }
  if (body.uses_kwargs) {
    const Value kwargs = make_dict(budget_);
    for (auto& [name, value] : arguments.named) {
      kwargs.as<Dict>().set(std::move(name), std::move(value));
    }
    set(body.kwargs_slot, kwargs);
  } else if (!arguments.named.empty()) {
    fail(Fault::kType, "macro '{}' takes no keyword argument '{}'", macro.name,
         text_of(arguments.named.front().first));
  }
  if (body.uses_varargs) {
    Values rest(
        std::make_move_iterator(arguments.positional.begin() + static_cast<std::ptrdiff_t>(given)),
        std::make_move_iterator(arguments.positional.end()));
    set(body.varargs_slot, make_tuple(budget_, std::move(rest)));
  } else if (arguments.positional.size() > count) {
    fail(Fault::kType, "macro '{}' takes not more than {} argument(s)", macro.name, count);
  }
}

Value Interpreter::call_loop(const Value& callee, Arguments& arguments) {
  const auto [iterable] = bind<1>(arguments, "loop", {"iterable"});
  const auto& loop = callee.as<Loop>();
  if (!loop.node.is_recursive) {
    fail(Fault::kType, "The loop must have the 'recursive' marker to be called recursively.");
  }
  const Nesting nesting(budget_);
  const Value over = *iterable;
  return run_buffered([&] { run_loop(loop.node, over, loop.parent, loop.depth0 + 1); });
}

Value Interpreter::block_reference(const Value& name) {
  for (const Block* block : template_.blocks) {
    if (block->name == text_of(name)) return make<BlockReference>(Kind::kBlock, budget_, *block);
  }
  return {};
}

Value Interpreter::call_block(const Value& block) {
  const Nesting nesting(budget_);
  return run_buffered([&] { run_block_body(block.as<BlockReference>().block); });
}

}  // namespace nanovllm::jinja
