// The values of a template: Python's, as far as templates can meet them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/budget.h"

namespace nanovllm::jinja {

class Interpreter;
struct Builtin;

enum class Kind : uint8_t {
  kMissing,  // no value at all; never seen by a template
  kNone,
  kBool,
  kInt,
  kBigInt,  // an unsigned integer above the range of kInt, from the input; can only be printed
  kFloat,
  kFunction,   // a global function, static
  kUndefined,  // from here on: objects on the heap
  kString,
  kList,
  kTuple,
  kDict,
  kView,  // dict.keys(), .values(), .items()
  kRange,
  kNamespace,
  kMacro,
  kMethod,  // a method bound to its object
  kLoop,
  kIterator,  // what map, select, reversed, ... return: each item can be taken once
  kCycler,
  kJoiner,
  kSelf,   // the variable `self`
  kBlock,  // a block of the template, callable
};

// Base of everything on the heap. Counted without atomics: a value belongs to one rendering. The
// constants of a template are shared by many renderings; they have no budget and are not counted.
class Object {
 public:
  explicit Object(Budget* budget) : budget_(budget) {}
  virtual ~Object() {
    if (budget_ != nullptr) budget_->release(charged_);
  }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  void retain() noexcept {
    if (budget_ != nullptr) ++references_;
  }
  void release() noexcept {
    if (budget_ != nullptr && --references_ == 0) delete this;
  }
  bool is_unique() const { return budget_ != nullptr && references_ == 1; }
  // Levels of containers below and including this one.
  int depth() const { return depth_; }

 protected:
  void charge(size_t bytes) {
    if (budget_ == nullptr) return;
    budget_->allocate(bytes);
    charged_ += bytes;
  }
  Budget* budget() const { return budget_; }
  void set_depth_above(int below);

 private:
  Budget* budget_;
  size_t charged_ = 0;  // bytes
  uint32_t references_ = 0;
  int depth_ = 0;
};

class Value {
 public:
  Value() = default;
  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool value) {
    Value v(Kind::kBool);
    v.bool_ = value;
    return v;
  }
  static Value integer(int64_t value) {
    Value v(Kind::kInt);
    v.int_ = value;
    return v;
  }
  static Value unsigned_integer(uint64_t value) {
    if (value <= static_cast<uint64_t>(INT64_MAX)) return integer(static_cast<int64_t>(value));
    Value v(Kind::kBigInt);
    v.uint_ = value;
    return v;
  }
  static Value number(double value) {
    Value v(Kind::kFloat);
    v.float_ = value;
    return v;
  }
  static Value function(const Builtin& builtin) {
    Value v(Kind::kFunction);
    v.builtin_ = &builtin;
    return v;
  }
  // A new reference to object, or its first one.
  static Value object(Kind kind, Object* object) {
    Value v(kind);
    v.object_ = object;
    object->retain();
    return v;
  }
  Value(const Value& other) noexcept : kind_(other.kind_), int_(other.int_) {
    if (is_object()) object_->retain();
  }
  Value(Value&& other) noexcept : kind_(other.kind_), int_(other.int_) {
    other.kind_ = Kind::kMissing;
  }
  Value& operator=(Value other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(int_, other.int_);
    return *this;
  }
  ~Value() {
    if (is_object()) object_->release();
  }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_object() const { return kind_ >= Kind::kUndefined; }
  bool is_missing() const { return kind_ == Kind::kMissing; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  // bool is a subclass of int in Python.
  bool is_integer() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integer() || is(Kind::kFloat) || is(Kind::kBigInt); }

  bool as_bool() const { return bool_; }
  int64_t as_int() const { return kind_ == Kind::kBool ? static_cast<int64_t>(bool_) : int_; }
  uint64_t as_big() const { return uint_; }
  double as_float() const { return float_; }
  const Builtin& as_function() const { return *builtin_; }
  Object* as_object() const { return object_; }
  template <typename T>
  T& as() const {
    return *static_cast<T*>(object_);
  }
  int depth() const { return is_object() ? object_->depth() : 0; }
  bool is_same(const Value& other) const;

 private:
  explicit Value(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kMissing;
  union {
    int64_t int_ = 0;
    uint64_t uint_;
    double float_;
    bool bool_;
    const Builtin* builtin_;
    Object* object_;
  };
};

using Values = std::vector<Value>;

class String : public Object {
 public:
  String(Budget* budget, std::string text, bool markup);
  const std::string& text() const { return text_; }
  // HTML that needs no escaping any more (markupsafe.Markup).
  bool is_markup() const { return markup_; }
  size_t length() const;  // code points
  bool is_ascii() const { return length() == text_.size(); }
  // Appends in place; only for a string that nobody else refers to.
  void append(std::string_view text);

 private:
  std::string text_;
  bool markup_;
  mutable int64_t length_ = -1;  // code points, -1 until asked for
};

// A list or a tuple.
class List : public Object {
 public:
  List(Budget* budget, Values items);
  const Values& items() const { return items_; }
  // What groupby returns: a pair whose members are also .grouper and .list.
  bool is_group = false;

 private:
  Values items_;
};

class Dict : public Object {
 public:
  struct Entry {
    Value key, value;
    size_t hash;
  };
  explicit Dict(Budget* budget) : Object(budget) { charge(sizeof(Dict)); }
  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  // The value, nullptr when there is none. Throws kType for a key that can't be hashed.
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);
  void clear() {
    entries_.clear();
    slots_.clear();
  }

 private:
  template <typename Equal>
  const Entry* lookup(size_t hash, const Equal& equal) const;
  void insert_slot(size_t hash, int32_t index);

  std::vector<Entry> entries_;  // in order of insertion
  std::vector<int32_t> slots_;  // open addressing, -1 = free; empty while the dict is small
};

enum class ViewKind { kKeys, kValues, kItems };

struct View : Object {
  View(Budget* budget, Value of, ViewKind what) : Object(budget), dict(std::move(of)), which(what) {
    charge(sizeof(View));
    set_depth_above(dict.depth());
  }
  Value dict;
  ViewKind which;
};

struct Range : Object {
  Range(Budget* budget, int64_t from, int64_t to, int64_t by);
  // The item at 0 <= index < length. Unsigned, since index * step can exceed int64_t on the way.
  int64_t at(int64_t index) const {
    return static_cast<int64_t>(static_cast<uint64_t>(start) +
                                static_cast<uint64_t>(index) * static_cast<uint64_t>(step));
  }
  int64_t start, stop, step, length;
};

// Keeps what is needed to say what was looked up where.
struct Undefined : Object {
  Undefined(Budget* budget, Fault the_fault) : Object(budget), fault(the_fault) {
    charge(sizeof(Undefined));
  }
  void set_name(Value of) {
    set_depth_above(of.depth());
    name = std::move(of);
  }
  std::string message() const;
  Fault fault;
  std::string hint;   // the message, or empty
  std::string owner;  // type of the object that lacks it, empty for a variable
  Value name;
};

struct Namespace : Object {
  explicit Namespace(Budget* budget, Value dict) : Object(budget), attributes(std::move(dict)) {
    charge(sizeof(Namespace));
  }
  Value attributes;
};

struct Method : Object {
  Method(Budget* budget, Value of, const Builtin& what)
      : Object(budget), self(std::move(of)), builtin(what) {
    charge(sizeof(Method));
    set_depth_above(self.depth());
  }
  Value self;
  const Builtin& builtin;
};

class Iterator : public Object {
 public:
  Iterator(Budget* budget, int source_depth) : Object(budget) {
    charge(kCost);
    set_depth_above(source_depth);
  }
  // The next item; false at the end, and from then on.
  virtual bool next(Interpreter& in, Value& item) = 0;
  // As Python would show its type.
  virtual const char* type_name() const { return "generator"; }

 private:
  static constexpr size_t kCost = 128;  // bytes, the largest of the kinds
};

struct Cycler : Object {
  Cycler(Budget* budget, Value tuple) : Object(budget), items(std::move(tuple)) {
    charge(sizeof(Cycler));
    set_depth_above(items.depth());
  }
  Value items;
  size_t position = 0;
};

struct Joiner : Object {
  Joiner(Budget* budget, Value with) : Object(budget), separator(std::move(with)) {
    charge(sizeof(Joiner));
    set_depth_above(separator.depth());
  }
  Value separator;
  bool used = false;
};

// Object of a rendering. The kind is the value's, not the object's: List is both list and tuple.
template <typename T, typename... Args>
Value make(Kind kind, Budget& budget, Args&&... args) {
  return Value::object(kind, std::make_unique<T>(&budget, std::forward<Args>(args)...).release());
}
inline Value make_string(Budget& budget, std::string text, bool markup = false) {
  return make<String>(Kind::kString, budget, std::move(text), markup);
}
inline Value make_list(Budget& budget, Values items) {
  return make<List>(Kind::kList, budget, std::move(items));
}
inline Value make_tuple(Budget& budget, Values items) {
  return make<List>(Kind::kTuple, budget, std::move(items));
}
inline Value make_dict(Budget& budget) { return make<Dict>(Kind::kDict, budget); }
Value make_undefined(Budget& budget, std::string hint, std::string_view name);
Value make_undefined(Budget& budget, std::string_view variable);

inline const std::string& text_of(const Value& string) { return string.as<String>().text(); }
inline bool is_markup(const Value& value) {
  return value.is_string() && value.as<String>().is_markup();
}
inline const Values& items_of(const Value& sequence) { return sequence.as<List>().items(); }

// Python's type name: "str", "dict", ...
std::string type_name(const Value& value);
// How messages about a missing attribute name the object: "dict object", "None".
std::string describe_type(const Value& value);
[[noreturn]] void fail_undefined(const Value& undefined);

}  // namespace nanovllm::jinja
