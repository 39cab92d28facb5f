// Runs a template.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/budget.h"
#include "text/jinja/value.h"

namespace nanovllm::jinja {

// The variables of a loop's iteration, of a macro's call or of a block; those of the template
// itself are in the interpreter.
struct Scope {
  Scope* parent;
  std::vector<std::pair<int, Value>> variables;  // by symbol
};

struct Macro : Object {
  Macro(Budget* budget, const Stmt& what, Scope* around)
      : Object(budget, sizeof(Macro)), node(what), parent(around) {}
  const Stmt& node;
  Scope* parent;  // it was defined in; the interpreter keeps it
};

// The variable `loop`.
struct Loop : Object {
  Loop(Budget* budget, Value over, const Stmt& what, Scope* parent)
      : Object(budget, sizeof(Loop), &over), items(std::move(over)), node(what), around(parent) {}
  Value items;  // a list
  const Stmt& node;
  Scope* around;
  const Expr* test = node.branches[0].test.get();  // null where all items pass
  size_t next = 0;                                 // of items, to be looked at
  size_t index = 0;                                // from 1 on
  Value before, current, after;  // missing when there is none, or when it is not looked for yet
};

// One rendering of a template: make it, set the variables, call render() once.
class Interpreter {
 public:
  // now: what strftime_now() shows, in local time.
  Interpreter(const Template& source, Budget& budget, const std::tm& now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Takes the place of a global function of the same name.
  void set_variable(std::string_view name, Value value);
  std::string render();
  // Byte of the source that is being run; after a fault, where it happened.
  uint32_t offset() const { return offset_; }

  // What builtins use.
  Budget& budget() { return budget_; }
  const std::tm& now() const { return now_; }
  // A filter or a test by its name.
  const Builtin& find_named(Refused what, const Value& name);
  // object.name and object[key]; undefined when there is none.
  Value get_attribute(const Value& object, const Value& name);
  Value get_item(const Value& object, const Value& key);
  // A list, tuple or view with the items of value; an iterator is used up.
  Value to_list(const Value& value);
  // Keeps a value that may refer to itself until the rendering is over.
  void keep(const Value& value) { kept_values_.push_back(value); }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // Statements (interpreter.cc)
  Flow run(const Body& body);
  Flow run(const Stmt& statement);
  void run_output(const Stmt& node);
  Flow run_if(const Stmt& node);
  void run_for(const Stmt& node);
  Flow run_block(const Stmt& node);
  void write(std::string_view text);
  void assign(const Expr& target, Value value);
  void set(int symbol, Value value);
  // The text that a body writes, which runs in `scope`.
  Value capture(const Body& body, Scope& scope, Flow& flow);
  // `local`, or a scope that outlives it for a body with macros in it.
  Scope& enter(bool has_macros, Scope& local);

  // Expressions (evaluator.cc)
  Value evaluate(const Expr& expr);
  Value evaluate_composite(const Expr& expr);
  Value evaluate_name(const Expr& name);
  Values evaluate_all(const Expr& expr);  // its parts, missing values for null ones
  Value evaluate_dict(const Expr& expr);
  Value evaluate_concat(const Expr& expr);
  Value evaluate_compare(const Expr& expr);
  Value evaluate_filter_or_test(const Expr& expr);
  Value evaluate_slice(const Expr& expr);
  void evaluate_arguments(const Expr& call, Arguments& arguments);

  // Calls
  Value evaluate_call(const Expr& expr);
  Value call_macro(const Macro& macro, Arguments& arguments);
  bool peek(Loop& loop);
  bool advance(Loop& loop);
  Value loop_attribute(Loop& loop, std::string_view name);

  // Attributes and items (access.cc)
  Value find_attribute(const Value& object, const Value& name);
  Value take_items(const Value& object, int64_t start, int64_t step, int64_t count);
  Value undefined_item(const Value& owner, const Value& name);

  const Template& template_;
  Budget& budget_;
  const std::tm now_;
  uint32_t offset_ = 0;
  Values globals_;              // by symbol, missing when there is none
  Scope* scope_ = nullptr;      // the innermost one
  std::string* out_ = nullptr;  // what is being written to
  Value block_text_;            // of the block whose filter is evaluated
  std::vector<std::unique_ptr<Scope>> kept_scopes_;
  Values kept_values_;
};

}  // namespace nanovllm::jinja
