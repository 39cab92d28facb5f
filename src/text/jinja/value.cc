#include "text/jinja/value.h"

#include <algorithm>
#include <functional>

#include "text/jinja/operators.h"
#include "text/jinja/strings.h"

namespace nanovllm::jinja {

Object::Object(Budget* budget, size_t bytes, const Value* held) : budget_(budget) {
  charge(bytes);
  if (held != nullptr) set_depth_above(held->depth());
}

void Object::set_depth_above(int below) {
  if (below >= kMaxDataDepth) {
    fail("values nest deeper than the {} levels allowed", kMaxDataDepth);
  }
  if (depth_ <= below) depth_ = below + 1;
}

String::String(Budget* budget, std::string text, bool markup)
    : Object(budget, sizeof(String) + (text.size() < 16 ? 0 : text.size())),
      text_(std::move(text)),
      markup_(markup) {
  if (budget != nullptr) return;
  // Constants are shared between threads, so nothing may be computed later.
  length();
  hash();
}

size_t String::length() const {
  if (length_ < 0) length_ = static_cast<int64_t>(count_code_points(text_));
  return static_cast<size_t>(length_);
}

size_t String::hash() const {
  if (hash_ == 0) hash_ = std::hash<std::string_view>{}(text_) | 1;
  return hash_;
}

void String::append(std::string_view text) {
  charge(text.size());
  text_ += text;
  length_ = -1;
  hash_ = 0;
}

List::List(Budget* budget, Values items, const char* type)
    : Object(budget, sizeof(List) + items.size() * sizeof(Value)),
      items_(std::move(items)),
      type_(type) {
  int below = 0;
  for (const Value& item : items_) below = std::max(below, item.depth());
  set_depth_above(below);
}

namespace {

constexpr size_t kSmallDict = 8;  // entries; up to here a scan beats a table

}  // namespace

const Dict::Entry* Dict::lookup(size_t hash, const Value& key) const {
  const auto matches = [&](const Entry& entry) {
    if (entry.hash != hash) return false;
    return entry.key.is_same(key) || equal(*budget(), entry.key, key);
  };
  if (index_.empty()) {
    const auto found = std::find_if(entries_.begin(), entries_.end(), matches);
    return found == entries_.end() ? nullptr : &*found;
  }
  const auto [begin, end] = index_.equal_range(hash);
  const auto found =
      std::find_if(begin, end, [&](const auto& slot) { return matches(entries_[slot.second]); });
  return found == end ? nullptr : &entries_[found->second];
}

const Value* Dict::find(const Value& key) const {
  const Entry* entry = lookup(hash_value(*budget(), key), key);
  return entry == nullptr ? nullptr : &entry->value;
}

void Dict::set(Value key, Value value) {
  set_depth_above(std::max(key.depth(), value.depth()));
  const size_t hash = hash_value(*budget(), key);
  // An existing key stays as it is, as in Python: {1: 'a', True: 'b'} is {1: 'b'}.
  if (const Entry* found = lookup(hash, key)) {
    const_cast<Entry*>(found)->value = std::move(value);
    return;
  }
  charge(3 * sizeof(Entry));
  entries_.push_back({std::move(key), std::move(value), hash});
  if (entries_.size() <= kSmallDict) return;
  for (size_t i = index_.size(); i < entries_.size(); ++i) index_.emplace(entries_[i].hash, i);
}

std::string Undefined::message() const {
  if (owner == nullptr) return fmt::format("'{}' is undefined", text_of(name));
  if (*owner == '\0') return text_of(name);
  const std::string type =
      owner == type_name(Value::none()) ? "None" : fmt::format("{} object", owner);
  if (name.is_string()) return fmt::format("'{}' has no attribute '{}'", type, text_of(name));
  return fmt::format("{} has no element {}", type, to_repr(*budget(), name));
}

void fail_undefined(const Value& undefined) { throw Failure(undefined.as<Undefined>().message()); }

const char* type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kString:
      return is_markup(value) ? "Markup" : "str";
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      return value.as<List>().type();
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
    case Kind::kDict:
      return "dict";
    case Kind::kIterator:
      return "generator";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kMacro:
      return "Macro";
    case Kind::kMethod:
      return "method";
    case Kind::kLoop:
      return "LoopContext";
  }
  return "";
}

}  // namespace nanovllm::jinja
