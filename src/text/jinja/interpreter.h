// Runs a template.
#pragma once

#include <ctime>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/budget.h"
#include "text/jinja/loop.h"
#include "text/jinja/macro.h"
#include "text/jinja/value.h"

namespace nanovllm::jinja {

// One rendering of a template: make it, set the variables, call render() once.
class Interpreter {
 public:
  // now: what strftime_now() shows, in local time.
  Interpreter(const Template& source, Budget& budget, const std::tm& now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Takes the place of a global function of the same name.
  void set_variable(const std::string& name, Value value);
  std::string render();
  // Byte of the source that is being run; after a fault, where it happened.
  uint32_t offset() const { return offset_; }

  // What builtins use.
  Budget& budget() { return budget_; }
  bool autoescape() const { return autoescape_; }
  const std::tm& now() const { return now_; }
  Value call(const Value& callee, Arguments& arguments);
  Value call_filter(const Value& name, const Value& value, Arguments arguments);
  bool call_test(const Value& name, const Value& value, Arguments arguments);
  // object.name and object[key]; undefined when there is none.
  Value get_attribute(const Value& object, const Value& name);
  Value get_item(const Value& object, const Value& key);
  // An Iterator over value; throws kType for what has no items.
  Value iterate(const Value& value);
  Values to_values(const Value& iterable);
  // Calls visit(const Value&) for each item until it returns false.
  template <typename Visit>
  void for_each(const Value& iterable, const Visit& visit);
  // The attribute alone, without items; missing when there is none.
  Value find_attribute(const Value& object, const Value& name);
  Value make_undefined_item(const Value& owner, const Value& name);
  // Keeps a value that may refer to itself until the rendering is over.
  void keep(const Value& value) { kept_values_.push_back(value); }

 private:
  friend class FilteredIterator;
  enum class Flow { kNext, kBreak, kContinue };
  class Buffer;
  class Running;

  // Statements (interpreter.cc)
  Flow run(const Body& body);
  Flow run(const Stmt& statement);
  // A statement of a known kind; what returns nothing goes on with the next one.
  template <typename Node, typename Result>
  Flow run_as(const Stmt& statement, Result (Interpreter::*handle)(const Node&));
  void run_output(const Output& node);
  Flow run_if(const If& node);
  void define_macro(const MacroStmt& node);
  void run_call_block(const CallBlock& node);
  Flow run_filter_block(const FilterBlock& node);
  Flow run_with(const With& node);
  Flow run_assign_block(const AssignBlock& node);
  void run_assign(const Assign& node);
  void run_block(const Block& node);
  void run_block_body(const Block& node);
  Flow run_autoescape(const Autoescape& node);
  [[noreturn]] void refuse_import(const Import& node);
  void enter(const Scope& scope);
  void leave(const Scope& scope);
  void write(std::string_view text);
  void write_value(const Value& value);
  void assign(const Expr& target, const Value& value);
  void unpack(const Sequence& target, const Value& value);
  Value& slot(const Ref& ref);
  Activation* new_activation(const Function& function, Activation* parent,
                             std::unique_ptr<Activation>& owner);

  // Loops (interpreter_loops.cc)
  void run_for(const For& node);
  void run_loop(const For& node, const Value& iterable, Activation* around, int depth0);
  bool run_loop_items(const For& node, const Value& iterable, Activation* around, int depth0);
  bool run_item(const For& node, const Value& item, bool& completed);

  // Expressions (evaluator.cc)
  Value evaluate(const Expr& expr);
  Value evaluate_composite(const Expr& expr);
  Value evaluate_name(const Name& name);
  Values evaluate_all(const ExprList& list);
  Value evaluate_dict(const DictLiteral& node);
  Value evaluate_concat(const Sequence& node);
  Value evaluate_compare(const Compare& node);
  Value evaluate_filter(const FilterOrTest& node);
  Value evaluate_test(const FilterOrTest& node);
  Value evaluate_call(const Call& node, const Value* caller);
  Value evaluate_item(const Item& node);
  Value evaluate_slice(const Value& object, const Slice& slice);
  void evaluate_arguments(const CallArguments& from, Arguments& to);
  void add_named_arguments(const Value& mapping, Arguments& to);

  // Calls (calls.cc)
  // The text that write() writes; the running activation is restored.
  template <typename Write>
  Value run_buffered(const Write& write);
  Value call_macro(const Macro& macro, Arguments& arguments);
  void bind_macro_arguments(const Macro& macro, Arguments& arguments, Activation& activation);
  Value call_loop(const Value& loop, Arguments& arguments);
  Value call_block(const Value& block);
  Value block_reference(const Value& name);

  const Template& template_;
  Budget& budget_;
  const std::tm now_;
  uint32_t offset_ = 0;
  bool autoescape_ = false;
  Values context_;                    // by index of context name, missing when there is none
  std::string* out_ = nullptr;        // what is being written to
  Activation* activation_ = nullptr;  // of the function that runs
  Value filter_input_;                // of the filter of a block
  std::deque<std::unique_ptr<Activation>> kept_activations_;
  Values kept_values_;
};

template <typename Visit>
void Interpreter::for_each(const Value& iterable, const Visit& visit) {
  switch (iterable.kind()) {
    case Kind::kUndefined:
      return;
    case Kind::kList:
    case Kind::kTuple:
      for (const Value& item : items_of(iterable)) {
        budget_.step();
        if (!visit(item)) return;
      }
      return;
    case Kind::kDict:
      for (const Dict::Entry& entry : iterable.as<Dict>().entries()) {
        budget_.step();
        if (!visit(entry.key)) return;
      }
      return;
    default: {
      const Value iterator = iterate(iterable);
      Value item;
      while (iterator.as<Iterator>().next(*this, item)) {
        budget_.step();
        if (!visit(item)) return;
      }
    }
  }
}

}  // namespace nanovllm::jinja
