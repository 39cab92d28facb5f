// The methods of str, list and dict that do not modify anything.
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/strings.h"
#include "text/unicode_case.h"

namespace nanovllm::jinja {
namespace {

// A result of the same kind of string as self.
Value like(const Call& call, std::string_view text) {
  return make_string(call.budget, text, is_markup(call.self));
}

// A text argument; the methods of Markup escape it.
std::string argument_like(const Call& call, size_t i) {
  return is_markup(call.self) && !is_markup(call[i]) ? escape_html(call.text(i)) : call.text(i);
}

Values list_like(const Call& call, const Pieces& pieces) {
  Values values;
  values.reserve(pieces.size());
  for (const std::string_view piece : pieces) values.push_back(like(call, piece));
  return values;
}

template <text::CaseMapping kMapping>
Value convert(const Call& call) {
  return like(call, text::map_case(text_of(call.self), kMapping));
}

template <Side kSide>
Value strip(const Call& call) {  // chars?
  const std::string& text = text_of(call.self);
  if (!call.has(0)) return like(call, strip_spaces(text, kSide));
  return like(call, strip_characters(call.budget, text, argument_like(call, 0), kSide));
}

Value split_method(const Call& call) {  // sep? maxsplit?
  const std::string separator = call.has(0) ? call.text(0) : "";
  if (call.has(0) && separator.empty()) fail("empty separator");
  const Pieces pieces = split(call.budget, text_of(call.self), separator, call.integer(1, -1));
  return make_list(call.budget, list_like(call, pieces));
}

Value replace(const Call& call) {  // old new count?
  return like(call, replace_all(call.budget, text_of(call.self), argument_like(call, 0),
                                argument_like(call, 1), call.integer(2, -1)));
}

Value join(const Call& call) {  // iterable
  const Value list = call.in.to_list(call[0]);
  std::string out;
  for (size_t i = 0; i < items_of(list).size(); ++i) {
    const Value& item = items_of(list)[i];
    if (!item.is_string()) {
      fail("sequence item {}: expected str instance, {} found", i, type_name(item));
    }
    call.budget.step();
    if (i > 0) out += text_of(call.self);
    out += is_markup(call.self) ? text_of(escape(call.budget, item)) : text_of(item);
    call.budget.expect(out.size());
  }
  return like(call, out);
}

template <bool kPrefix>
Value remove_affix(const Call& call) {  // affix
  std::string_view text = text_of(call.self);
  const std::string& affix = call.text(0);
  if (kPrefix && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!kPrefix && text.ends_with(affix)) text.remove_suffix(affix.size());
  return make_string(call.budget, text);
}

template <bool kMustBeThere>
Value find(const Call& call) {  // sub
  const std::string_view text = text_of(call.self);
  const size_t found = find_text(text, call.text(0));
  if (found != std::string::npos) return Value::integer(count_code_points(text.substr(0, found)));
  if (kMustBeThere) fail("substring not found");
  return Value::integer(int64_t{-1});
}

Value count(const Call& call) {  // sub
  const std::string& text = text_of(call.self);
  if (call.text(0).empty()) return Value::integer(count_code_points(text) + 1);
  return Value::integer(split(call.budget, text, call.text(0), -1).size() - 1);
}

template <bool kAtStart>
Value has_affix(const Call& call) {  // affix
  const std::string& text = text_of(call.self);
  const Values one{call[0]};
  for (const Value& part : call[0].is(Kind::kTuple) ? items_of(call[0]) : one) {
    if (!part.is_string()) {
      fail("{}() takes a string or a tuple of strings, not '{}'", call.builtin.name,
           type_name(part));
    }
    const std::string& affix = text_of(part);
    call.budget.work(affix.size());
    if (kAtStart ? text.starts_with(affix) : text.ends_with(affix)) return Value::boolean(true);
  }
  return Value::boolean(false);
}

Value dict_get(const Call& call) {  // key default?
  if (const Value* found = call.self.as<Dict>().find(call[0])) return *found;
  return call[1].is_missing() ? Value::none() : call[1];
}

template <Value Dict::Entry::*kPart>
Value dict_view(const Call& call) {  // keys or values
  Values items;
  for (const Dict::Entry& entry : entries_of(call.self)) items.push_back(entry.*kPart);
  call.budget.work(items.size() * sizeof(Value));
  return make<List>(Kind::kView, call.budget, std::move(items),
                    kPart == &Dict::Entry::key ? "dict_keys" : "dict_values");
}

Value dict_items(const Call& call) {
  return make<List>(Kind::kView, call.budget, pairs_of(call.budget, call.self), "dict_items");
}

// clang-format off
constexpr Builtin kString[] = {
    {"capitalize", "/", convert<text::CaseMapping::kCapitalized>}, {"count", "/ sub", count},
    {"endswith", "/ suffix", has_affix<false>}, {"find", "/ sub", find<false>},
    {"index", "/ sub", find<true>}, {"join", "/ iterable", join},
    {"lower", "/", convert<text::CaseMapping::kLower>}, {"lstrip", "/ chars?", strip<Side::kLeft>},
    {"removeprefix", "/ prefix", remove_affix<true>},
    {"removesuffix", "/ suffix", remove_affix<false>}, {"replace", "/ old new count?", replace},
    {"rstrip", "/ chars?", strip<Side::kRight>}, {"split", "sep? maxsplit?", split_method},
    {"startswith", "/ prefix", has_affix<true>}, {"strip", "/ chars?", strip<Side::kBoth>},
    {"title", "/", convert<text::CaseMapping::kTitle>},
    {"upper", "/", convert<text::CaseMapping::kUpper>},
};
// clang-format on
constexpr Builtin kDict[] = {
    {"get", "/ key default?", dict_get},
    {"items", "/", dict_items},
    {"keys", "/", dict_view<&Dict::Entry::key>},
    {"values", "/", dict_view<&Dict::Entry::value>},
};

}  // namespace

const Builtin* find_method(const Value& object, std::string_view name) {
  if (object.is_string()) return find_builtin(kString, name);
  return object.is(Kind::kDict) ? find_builtin(kDict, name) : nullptr;
}

}  // namespace nanovllm::jinja
