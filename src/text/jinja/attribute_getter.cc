#include "text/jinja/attribute_getter.h"

#include "text/jinja/text.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {

AttributeGetter::AttributeGetter(Interpreter& in, const Value* attribute, bool ignores_case,
                                 Value otherwise)
    : ignores_case_(ignores_case), otherwise_(std::move(otherwise)) {
  if (attribute == nullptr || attribute->is_none()) return;
  if (!attribute->is_string()) {
    parts_.push_back(*attribute);
    return;
  }
  for (const std::string_view part : split(in.budget(), text_of(*attribute), ".", -1)) {
    const bool is_index =
        !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    int64_t index = 0;
    if (is_index && parse_int(part, 10, index)) {
      parts_.push_back(Value::integer(index));
    } else {
      parts_.push_back(make_string(in.budget(), std::string(part)));
    }
  }
}

Value AttributeGetter::operator()(Interpreter& in, const Value& item) const {
  Value value = item;
  for (const Value& part : parts_) {
    value = in.get_item(value, part);
    if (value.is_undefined() && !otherwise_.is_missing() && !otherwise_.is_none()) {
      value = otherwise_;
    }
  }
  return ignores_case_ ? ignore_case(in, value) : value;
}

Value ignore_case(Interpreter& in, const Value& value) {
  if (!value.is_string()) return value;
  in.budget().work(text_of(value).size() * 4);
  return make_string(in.budget(), to_lower(text_of(value)), is_markup(value));
}

}  // namespace nanovllm::jinja
