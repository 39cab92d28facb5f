#include "text/jinja/value.h"

#include <functional>

#include "text/jinja/function.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {

void Object::set_depth_above(int below) {
  if (below >= kMaxDataDepth) {
    fail(Fault::kLimit, "values nest deeper than the {} levels allowed", kMaxDataDepth);
  }
  if (depth_ <= below) depth_ = below + 1;
}

bool Value::is_same(const Value& other) const {
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::kMissing:
    case Kind::kNone:
      return true;
    case Kind::kBool:
      return bool_ == other.bool_;
    default:
      return int_ == other.int_;
  }
}

String::String(Budget* budget, std::string text, bool markup)
    : Object(budget), text_(std::move(text)), markup_(markup) {
  charge(sizeof(String) + (text_.size() < 16 ? 0 : text_.size()));
  // Constants are shared between threads, so nothing may be computed later.
  if (budget == nullptr) length_ = static_cast<int64_t>(count_code_points(text_));
}

size_t String::length() const {
  if (length_ < 0) length_ = static_cast<int64_t>(count_code_points(text_));
  return static_cast<size_t>(length_);
}

void String::append(std::string_view text) {
  charge(text.size());
  text_ += text;
  length_ = -1;
}

List::List(Budget* budget, Values items) : Object(budget), items_(std::move(items)) {
  charge(sizeof(List) + items_.size() * sizeof(Value));
  int below = 0;
  for (const Value& item : items_) below = std::max(below, item.depth());
  set_depth_above(below);
}

namespace {

constexpr size_t kSmallDict = 8;  // entries; up to here a scan beats a table

size_t hash_text(std::string_view text) { return std::hash<std::string_view>{}(text); }

}  // namespace

template <typename Equal>
const Dict::Entry* Dict::lookup(size_t hash, const Equal& equal) const {
  if (slots_.empty()) {
    for (const Entry& entry : entries_) {
      if (entry.hash == hash && equal(entry.key)) return &entry;
    }
    return nullptr;
  }
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash & mask; slots_[slot] >= 0; slot = (slot + 1) & mask) {
    const Entry& entry = entries_[static_cast<size_t>(slots_[slot])];
    if (entry.hash == hash && equal(entry.key)) return &entry;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  const Entry* entry =
      lookup(hash_text(key), [&](const Value& k) { return k.is_string() && text_of(k) == key; });
  return entry == nullptr ? nullptr : &entry->value;
}

const Value* Dict::find(const Value& key) const {
  if (key.is_string()) return find(text_of(key));
  const Entry* entry = lookup(hash_value(*budget(), key), [&](const Value& k) {
    return k.is_same(key) || equal(*budget(), k, key);
  });
  return entry == nullptr ? nullptr : &entry->value;
}

void Dict::insert_slot(size_t hash, int32_t index) {
  const size_t mask = slots_.size() - 1;
  size_t slot = hash & mask;
  while (slots_[slot] >= 0) slot = (slot + 1) & mask;
  slots_[slot] = index;
}

void Dict::set(Value key, Value value) {
  set_depth_above(std::max(key.depth(), value.depth()));
  // An existing key stays as it is, as in Python: {1: 'a', True: 'b'} is {1: 'b'}.
  if (const Value* found = find(key)) {
    *const_cast<Value*>(found) = std::move(value);
    return;
  }
  charge(2 * sizeof(Entry));
  const size_t hash = hash_value(*budget(), key);
  entries_.push_back({std::move(key), std::move(value), hash});
  if (entries_.size() <= kSmallDict) return;
  if (entries_.size() * 2 > slots_.size()) {
    slots_.assign(std::max<size_t>(32, slots_.size() * 2), -1);
    for (size_t i = 0; i < entries_.size(); ++i) {
      insert_slot(entries_[i].hash, static_cast<int32_t>(i));
    }
  } else {
    insert_slot(hash, static_cast<int32_t>(entries_.size() - 1));
  }
}

Range::Range(Budget* budget, int64_t from, int64_t to, int64_t by)
    : Object(budget), start(from), stop(to), step(by), length(0) {
  charge(sizeof(Range));
  // Unsigned, since stop - start can exceed int64_t.
  const uint64_t distance = step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                     : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  if (step > 0 ? start < stop : start > stop) {
    const uint64_t count = (distance - 1) / stride + 1;
    length = count > INT64_MAX ? INT64_MAX : static_cast<int64_t>(count);
  }
}

std::string Undefined::message() const {
  if (!hint.empty()) return hint;
  if (owner.empty()) return fmt::format("'{}' is undefined", text_of(name));
  if (!name.is_string()) {
    return fmt::format("{} has no element {}", owner, to_repr(*budget(), name));
  }
  return fmt::format("'{}' has no attribute '{}'", owner, text_of(name));
}

Value make_undefined(Budget& budget, std::string hint, std::string_view name) {
  Value value = make<Undefined>(Kind::kUndefined, budget, Fault::kUndefined);
  value.as<Undefined>().hint = std::move(hint);
  value.as<Undefined>().set_name(make_string(budget, std::string(name)));
  return value;
}

Value make_undefined(Budget& budget, std::string_view variable) {
  return make_undefined(budget, "", variable);
}

void fail_undefined(const Value& undefined) {
  const auto& object = undefined.as<Undefined>();
  throw Failure(object.fault, object.message());
}

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
      return "missing";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kFunction:
      return "function";
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kString:
      return is_markup(value) ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return value.as<List>().is_group ? "_GroupTuple" : "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kView:
      switch (value.as<View>().which) {
        case ViewKind::kKeys:
          return "dict_keys";
        case ViewKind::kValues:
          return "dict_values";
        default:
          return "dict_items";
      }
    case Kind::kRange:
      return "range";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kMacro:
      return "Macro";
    case Kind::kMethod:
      return "builtin_function_or_method";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kIterator:
      return value.as<Iterator>().type_name();
    case Kind::kCycler:
      return "Cycler";
    case Kind::kJoiner:
      return "Joiner";
    case Kind::kSelf:
      return "TemplateReference";
    case Kind::kBlock:
      return "BlockReference";
  }
  return "object";
}

std::string describe_type(const Value& value) {
  return value.is_none() ? "None" : type_name(value) + " object";
}

}  // namespace nanovllm::jinja
