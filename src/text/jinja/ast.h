// The syntax tree of a template, names already resolved to slots.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/jinja/function.h"
#include "text/jinja/operators.h"
#include "text/jinja/value.h"

namespace nanovllm::jinja {

// Where a variable lives: `hops` functions up from the one that runs, in that function's `slot`.
struct Ref {
  int hops = 0;
  int slot = -1;
};

// What to do with a slot when a scope is entered.
struct Load {
  enum class From { kNothing, kContext, kAlias } from = From::kNothing;
  int slot = 0;
  int context_name = 0;  // index into Template::context_names
  Ref alias;
};

// One scope: a loop body, a macro, ...
struct Scope {
  std::vector<Load> loads;
  std::vector<int> slots;  // all that belong to it, to be emptied when it is left
};

// What Jinja compiles to one Python function: the template, a block, a macro, a recursive loop.
struct Function {
  int num_slots = 0;
  // Something within refers to its variables, so that they may outlive a call.
  bool is_captured = false;
};

enum class ExprKind : uint8_t {
  kConst,
  kName,
  kNamespaceRef,
  kTuple,
  kList,
  kDict,
  kNegate,
  kPosit,
  kNot,
  kAnd,
  kOr,
  kBinary,
  kConcat,
  kCompare,
  kCondition,
  kFilter,
  kTest,
  kCall,
  kAttribute,
  kItem,
  kSlice,
};

struct Expr {
  Expr(ExprKind expr_kind, uint32_t at) : kind(expr_kind), offset(at) {}
  virtual ~Expr() = default;
  Expr(const Expr&) = delete;
  Expr& operator=(const Expr&) = delete;

  ExprKind kind;
  uint16_t depth = 1;  // levels of expressions below and including this one
  uint32_t offset;     // bytes into the source
};
using ExprPtr = std::unique_ptr<Expr>;
using ExprList = std::vector<ExprPtr>;

struct Const : Expr {
  Const(uint32_t at, Value v) : Expr(ExprKind::kConst, at), value(std::move(v)) {}
  Value value;
  bool is_data = false;  // template text, never escaped
};

struct Name : Expr {
  Name(uint32_t at, std::string n) : Expr(ExprKind::kName, at), name(std::move(n)) {}
  std::string name;
  enum class Use : uint8_t { kLoad, kStore, kParameter } use = Use::kLoad;
  Ref ref;
  int context_name = -1;  // of a store that blocks can see
};

// The target of {% set namespace.attribute = ... %}.
struct NamespaceRef : Expr {
  NamespaceRef(uint32_t at, std::string n, std::string a)
      : Expr(ExprKind::kNamespaceRef, at), name(std::move(n)), attribute(std::move(a)) {}
  std::string name, attribute;
  Ref ref;
};

struct Sequence : Expr {  // kTuple, kList, kConcat
  Sequence(ExprKind k, uint32_t at) : Expr(k, at) {}
  ExprList items;
};

struct DictLiteral : Expr {
  explicit DictLiteral(uint32_t at) : Expr(ExprKind::kDict, at) {}
  std::vector<std::pair<ExprPtr, ExprPtr>> items;
};

struct Unary : Expr {  // kNegate, kPosit, kNot
  Unary(ExprKind k, uint32_t at) : Expr(k, at) {}
  ExprPtr operand;
};

struct Binary : Expr {  // kBinary, kAnd, kOr
  Binary(ExprKind k, uint32_t at) : Expr(k, at) {}
  BinaryOp op = BinaryOp::kAdd;
  ExprPtr left, right;
};

struct Compare : Expr {
  explicit Compare(uint32_t at) : Expr(ExprKind::kCompare, at) {}
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
};

struct Condition : Expr {
  explicit Condition(uint32_t at) : Expr(ExprKind::kCondition, at) {}
  ExprPtr test, then, otherwise;  // otherwise may be null
};

struct CallArguments {
  ExprList positional;
  std::vector<std::pair<Value, ExprPtr>> named;
  ExprPtr more_positional, more_named;  // *args and **kwargs, or null
};

struct Call : Expr {
  explicit Call(uint32_t at) : Expr(ExprKind::kCall, at) {}
  ExprPtr callee;
  CallArguments arguments;
};

struct FilterOrTest : Expr {  // kFilter, kTest
  FilterOrTest(ExprKind k, uint32_t at) : Expr(k, at) {}
  ExprPtr operand;  // null for the filter of a block
  std::string name;
  const Builtin* builtin = nullptr;  // null when there is none of that name
  CallArguments arguments;
};

struct Attribute : Expr {
  explicit Attribute(uint32_t at) : Expr(ExprKind::kAttribute, at) {}
  ExprPtr object;
  Value name;
};

struct Item : Expr {
  explicit Item(uint32_t at) : Expr(ExprKind::kItem, at) {}
  ExprPtr object, index;  // index may be a Slice
};

struct Slice : Expr {
  explicit Slice(uint32_t at) : Expr(ExprKind::kSlice, at) {}
  ExprPtr start, stop, step;  // each may be null
};

enum class StmtKind : uint8_t {
  kOutput,
  kFor,
  kIf,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kAssign,
  kAssignBlock,
  kBlock,
  kAutoescape,
  kImport,
  kBreak,
  kContinue,
};

struct Stmt {
  Stmt(StmtKind stmt_kind, uint32_t at) : kind(stmt_kind), offset(at) {}
  virtual ~Stmt() = default;
  Stmt(const Stmt&) = delete;
  Stmt& operator=(const Stmt&) = delete;

  StmtKind kind;
  uint32_t offset;
};
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

struct Output : Stmt {
  explicit Output(uint32_t at) : Stmt(StmtKind::kOutput, at) {}
  ExprList items;
};

struct For : Stmt {
  explicit For(uint32_t at) : Stmt(StmtKind::kFor, at) {}
  ExprPtr target, iterable, test;  // test may be null
  Body body, otherwise;
  bool is_recursive = false;
  Scope scope, else_scope, test_scope;
  Function function;  // of the body of a recursive loop
  Function test_function;
  ExprPtr test_target;  // the target within test_function
  int loop_slot = -1;   // of the variable `loop`, -1 when the body does not mention it
};

struct If : Stmt {
  explicit If(uint32_t at) : Stmt(StmtKind::kIf, at) {}
  struct Branch {
    ExprPtr test;
    Body body;
  };
  std::vector<Branch> branches;
  Body otherwise;
};

struct MacroBody {
  std::vector<std::unique_ptr<Name>> parameters;
  ExprList defaults;  // of the last parameters
  Body body;
  Scope scope;
  Function function;
  // Whether the body mentions the special variables, and where they live.
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;
  int caller_slot = -1, kwargs_slot = -1, varargs_slot = -1;
};

struct MacroStmt : Stmt {
  explicit MacroStmt(uint32_t at) : Stmt(StmtKind::kMacro, at) {}
  std::string name;
  Ref ref;
  int context_name = -1;
  MacroBody macro;
};

// {% call %}, and {% generation %}, which has no call: its body is printed as it is.
struct CallBlock : Stmt {
  explicit CallBlock(uint32_t at) : Stmt(StmtKind::kCallBlock, at) {}
  std::unique_ptr<Expr> call;
  MacroBody macro;
};

struct FilterBlock : Stmt {
  explicit FilterBlock(uint32_t at) : Stmt(StmtKind::kFilterBlock, at) {}
  ExprPtr filter;
  Body body;
  Scope scope;
};

struct With : Stmt {
  explicit With(uint32_t at) : Stmt(StmtKind::kWith, at) {}
  ExprList targets, values;
  Body body;
  Scope scope;
};

struct Assign : Stmt {
  explicit Assign(uint32_t at) : Stmt(StmtKind::kAssign, at) {}
  ExprPtr target, value;
};

struct AssignBlock : Stmt {
  explicit AssignBlock(uint32_t at) : Stmt(StmtKind::kAssignBlock, at) {}
  ExprPtr target, filter;  // filter may be null
  Body body;
  Scope scope;
};

struct Block : Stmt {
  explicit Block(uint32_t at) : Stmt(StmtKind::kBlock, at) {}
  std::string name;
  bool is_scoped = false, is_required = false;
  Body body;
  Scope scope;
  Function function;
  int self_slot = -1;
  // Of a scoped block: the variables around it that it sees, by index of context name.
  std::vector<std::pair<int, Ref>> visible;
};

struct Autoescape : Stmt {
  explicit Autoescape(uint32_t at) : Stmt(StmtKind::kAutoescape, at) {}
  ExprPtr enabled;
  Body body;
  Scope scope;
};

// {% include %}, {% import %}, {% from %} and {% extends %}: refused when reached, as there is no
// other template to be found.
struct Import : Stmt {
  explicit Import(uint32_t at) : Stmt(StmtKind::kImport, at) {}
  std::string tag;
  std::vector<std::unique_ptr<Name>> names;  // what it would define
  ExprPtr source;
};

struct Jump : Stmt {  // kBreak, kContinue
  Jump(StmtKind k, uint32_t at) : Stmt(k, at) {}
};

// A parsed template. Constants have no budget and belong to it.
struct Template {
  std::string source;  // normalized
  std::vector<std::unique_ptr<Object>> constants;
  Body body;
  Scope scope;
  Function function;
  int self_slot = -1;
  std::vector<std::string> context_names;  // every name that is looked up among the variables
  std::vector<Block*> blocks;
};

}  // namespace nanovllm::jinja
