// The syntax tree of a template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/function.h"
#include "text/jinja/operators.h"
#include "text/jinja/value.h"

namespace nanovllm::jinja {

enum class ExprKind : uint8_t {
  kConst,      // value
  kName,       // symbol
  kBlockText,  // what the block around a filter has written
  kTuple,      // parts: the items
  kList,
  kDict,    // parts: key, value, key, value, ...
  kNegate,  // parts: the operand
  kPosit,
  kNot,
  kAnd,  // parts: left, right
  kOr,
  kBinary,     // ... and binary_op
  kConcat,     // parts: any number
  kCompare,    // parts: one more than compare_ops
  kCondition,  // parts: then, test, otherwise (may be null)
  kFilter,     // parts: the operand, positional arguments; value: its name; builtin, named
  kTest,
  kCall,       // parts: what is called, positional arguments; named
  kSpread,     // parts: the iterable; *x among the arguments of a call
  kAttribute,  // parts: the object; value: the name
  kItem,       // parts: the object, the index
  kSlice,      // parts: the object, start, stop, step (each may be null)
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  Expr(ExprKind expr_kind, uint32_t at) : kind(expr_kind), offset(at) {}

  ExprKind kind;
  BinaryOp binary_op = BinaryOp::kAdd;
  uint16_t depth = 1;  // levels of expressions below and including this one
  uint32_t offset;     // bytes into the source
  int symbol = -1;     // index into Template::names
  Value value;
  const Builtin* builtin = nullptr;  // null where the name is unknown
  std::vector<ExprPtr> parts;
  std::vector<CompareOp> compare_ops;
  std::vector<std::pair<Value, ExprPtr>> named;  // arguments
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

enum class StmtKind : uint8_t {
  kOutput,       // items
  kFor,          // target, value: what it runs over; branches: the loop (test may be null), else
  kIf,           // branches: if, elif ..., else (no test)
  kMacro,        // symbol; items: parameters, defaults of the last of them; branches: the body
  kBlock,        // value: the filter or null; branches: the body
  kAssign,       // target, value
  kAssignBlock,  // target, value: the filter or null; branches: the body
  kBreak,
  kContinue,
};

struct Branch {
  ExprPtr test;
  Body body;
};

struct Stmt {
  Stmt(StmtKind stmt_kind, uint32_t at) : kind(stmt_kind), offset(at) {}

  StmtKind kind;
  bool has_macros = false;  // within it, which refer to its variables and may outlive it
  uint32_t offset;
  int symbol = -1;
  ExprPtr target, value;
  std::vector<ExprPtr> items, defaults;
  std::vector<Branch> branches;
};

// A parsed template. Constants have no budget and belong to it.
struct Template {
  std::string source;  // normalized
  std::vector<std::unique_ptr<Object>> constants;
  std::vector<Value> names;  // of variables, strings; an Expr's symbol is an index
  Body body;
};

}  // namespace nanovllm::jinja
