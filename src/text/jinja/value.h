// The values of a template: Python's, as far as templates meet them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/budget.h"

namespace nanovllm::jinja {

struct Builtin;
class Value;

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
  kView,  // dict.keys(), .values(), .items()
  kDict,
  kIterator,  // what map, select, reverse, ... return: each item can be taken once
  kNamespace,
  kMacro,
  kMethod,  // a method bound to its object
  kLoop,
};

// Base of everything on the heap. Counted without atomics: a value belongs to one rendering. The
// constants of a template are shared by many renderings; they have no budget and are not counted.
class Object {
 public:
  // `bytes` that it takes, and what it holds.
  explicit Object(Budget* budget, size_t bytes = 0, const Value* held = nullptr);
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
  static Value boolean(bool value) { return Value(Kind::kBool, value ? 1 : 0); }
  static Value integer(int64_t value) { return Value(Kind::kInt, value); }
  static Value integer(size_t value) { return integer(static_cast<int64_t>(value)); }
  static Value unsigned_integer(uint64_t value) {
    return Value(value >> 63 == 0 ? Kind::kInt : Kind::kBigInt, static_cast<int64_t>(value));
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
  bool is_same(const Value& other) const { return kind_ == other.kind_ && int_ == other.int_; }

  bool as_bool() const { return int_ != 0; }
  int64_t as_int() const { return int_; }
  uint64_t as_big() const { return static_cast<uint64_t>(int_); }
  double as_float() const { return float_; }
  const Builtin& as_function() const { return *builtin_; }
  Object* as_object() const { return object_; }
  template <typename T>
  T& as() const {
    return *static_cast<T*>(object_);
  }
  int depth() const { return is_object() ? object_->depth() : 0; }

 private:
  explicit Value(Kind kind, int64_t value = 0) : kind_(kind), int_(value) {}

  Kind kind_ = Kind::kMissing;
  union {
    int64_t int_ = 0;
    double float_;
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
  size_t hash() const;
  // Appends in place; only for a string that nobody else refers to.
  void append(std::string_view text);

 private:
  std::string text_;
  bool markup_;
  mutable int64_t length_ = -1;  // code points, -1 until asked for
  mutable size_t hash_ = 0;      // 0 until asked for
};

// A list, a tuple or a view of a dict.
class List : public Object {
 public:
  List(Budget* budget, Values items, const char* type);
  const Values& items() const { return items_; }
  const char* type() const { return type_; }  // as Python calls it

 private:
  Values items_;
  const char* type_;
};

class Dict : public Object {
 public:
  struct Entry {
    Value key, value;
    size_t hash;
  };
  explicit Dict(Budget* budget) : Object(budget, sizeof(Dict)) {}
  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  // The value, nullptr when there is none. Fails for a key that can't be hashed.
  const Value* find(const Value& key) const;
  void set(Value key, Value value);
  void clear() { entries_.clear(); }

 private:
  const Entry* lookup(size_t hash, const Value& key) const;

  std::vector<Entry> entries_;                     // in order of insertion
  std::unordered_multimap<size_t, size_t> index_;  // by hash; empty while the dict is small
};

struct Iterator : Object {
  Iterator(Budget* budget, Value list)
      : Object(budget, sizeof(Iterator), &list), items(std::move(list)) {}
  Value items;  // a list
  size_t next = 0;
};

// Keeps what is needed to say what was looked up where.
struct Undefined : Object {
  Undefined(Budget* budget, const char* type, Value what)
      : Object(budget, sizeof(Undefined), &what), owner(type), name(std::move(what)) {}
  std::string message() const;
  const char*
      owner;  // type of the object that lacks it; null of a variable, "" where name says all
  Value name;
};

struct Namespace : Object {
  Namespace(Budget* budget, Value dict)
      : Object(budget, sizeof(Namespace)), attributes(std::move(dict)) {}
  Value attributes;
};

struct Method : Object {
  Method(Budget* budget, Value of, const Builtin& what)
      : Object(budget, sizeof(Method), &of), self(std::move(of)), builtin(what) {}
  Value self;
  const Builtin& builtin;
};

template <typename T, typename... Args>
Value make(Kind kind, Budget& budget, Args&&... args) {
  return Value::object(kind, std::make_unique<T>(&budget, std::forward<Args>(args)...).release());
}
template <typename Text>
Value make_string(Budget& budget, Text&& text, bool markup = false) {
  std::string owned(std::forward<Text>(text));
  budget.work(owned.size());
  return make<String>(Kind::kString, budget, std::move(owned), markup);
}
inline Value make_list(Budget& budget, Values items) {
  return make<List>(Kind::kList, budget, std::move(items), "list");
}
inline Value make_tuple(Budget& budget, Values items) {
  return make<List>(Kind::kTuple, budget, std::move(items), "tuple");
}
// A list or a tuple, as `sequence` is.
inline Value make_like(Budget& budget, const Value& sequence, Values items) {
  return sequence.is(Kind::kList) ? make_list(budget, std::move(items))
                                  : make_tuple(budget, std::move(items));
}
inline Value make_iterator(Budget& budget, Values items) {
  return make<Iterator>(Kind::kIterator, budget, make_list(budget, std::move(items)));
}
inline Value make_dict(Budget& budget) { return make<Dict>(Kind::kDict, budget); }
inline Value make_undefined(Budget& budget, std::string message) {
  return make<Undefined>(Kind::kUndefined, budget, "", make_string(budget, std::move(message)));
}

inline const std::string& text_of(const Value& string) { return string.as<String>().text(); }
inline bool is_markup(const Value& value) {
  return value.is_string() && value.as<String>().is_markup();
}
inline const Values& items_of(const Value& sequence) { return sequence.as<List>().items(); }
inline const std::vector<Dict::Entry>& entries_of(const Value& dict) {
  return dict.as<Dict>().entries();
}

// Python's type name: "str", "dict", ...
const char* type_name(const Value& value);
[[noreturn]] void fail_undefined(const Value& undefined);

}  // namespace nanovllm::jinja
