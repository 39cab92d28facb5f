#include "text/jinja/from_json.h"

#include <nlohmann/json.hpp>

namespace nanovllm::jinja {
namespace {

Value convert(Budget& budget, const nlohmann::ordered_json& json, int level) {
  if (level > kMaxDataDepth) {
    fail(Fault::kLimit, "the input nests deeper than the {} levels allowed", kMaxDataDepth);
  }
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::boolean:
      return Value::boolean(json.get<bool>());
    case Type::number_integer:
      return Value::integer(json.get<int64_t>());
    case Type::number_unsigned:
      return Value::unsigned_integer(json.get<uint64_t>());
    case Type::number_float:
      return Value::number(json.get<double>());
    case Type::string:
      return make_string(budget, json.get_ref<const std::string&>());
    case Type::array: {
      Values items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(convert(budget, item, level + 1));
      return make_list(budget, std::move(items));
    }
    case Type::object: {
      Value dict = make_dict(budget);
      for (const auto& [name, item] : json.items()) {
        dict.as<Dict>().set(make_string(budget, name), convert(budget, item, level + 1));
      }
      return dict;
    }
    default:
      return Value::none();
  }
}

}  // namespace

Value from_json(Budget& budget, const nlohmann::ordered_json& json) {
  return convert(budget, json, 1);
}

}  // namespace nanovllm::jinja
