#include "grammar/tag_part.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace nanovllm::grammar {
namespace {

constexpr int64_t kMaxTimes = 1'000'000;

}  // namespace

void Part::fail(std::string_view what) const {
  throw_error(ErrorCode::kInvalidArgument, "structural tag at {}: {}", printable(path, 300), what);
}

void Part::refuse(std::string_view what) const {
  throw_error(ErrorCode::kUnsupported, "structural tag at {}: {}", printable(path, 300), what);
}

std::optional<Part> Part::find(std::string_view name) const {
  const Json* found = find_member(*json, name);
  if (found == nullptr) return std::nullopt;
  return Part{found, fmt::format("{}/{}", path, name)};
}

Part Part::member(std::string_view name) const {
  auto found = find(name);
  if (!found) fail(fmt::format("\"{}\" is missing", name));
  return *found;
}

std::vector<Part> Part::list() const {
  if (!json->is_array() || json->empty()) fail("expected a list that is not empty");
  std::vector<Part> parts;
  for (size_t i = 0; i < json->size(); ++i) {
    parts.push_back({&(*json)[i], fmt::format("{}/{}", path, i)});
  }
  return parts;
}

std::vector<Part> Part::optional_list(std::string_view name) const {
  const auto found = find(name);
  if (!found || (found->json->is_array() && found->json->empty())) return {};
  return found->list();
}

std::string Part::text() const {
  if (!json->is_string()) fail("expected a text");
  return json->get<std::string>();
}

bool Part::flag(std::string_view name) const {
  const auto found = find(name);
  if (found && !found->json->is_boolean()) found->fail("expected true or false");
  return found && found->json->get<bool>();
}

std::optional<int64_t> Part::count(std::string_view name, int64_t least) const {
  const auto found = find(name);
  if (!found) return std::nullopt;
  const auto value = integer_of(*found->json);
  if (!value || *value < least || *value > kMaxTimes) {
    found->fail(fmt::format("expected a whole number from {} to {}", least, kMaxTimes));
  }
  return value;
}

void Part::expect_members(std::initializer_list<std::string_view> names) const {
  if (!json->is_object()) fail("expected an object");
  for (const auto& [name, value] : json->items()) {
    if (name == "type" || value.is_null()) continue;
    if (std::ranges::find(names, name) == names.end()) {
      refuse(
          fmt::format("\"{}\" is not known; expected {}", printable(name), fmt::join(names, ", ")));
    }
  }
}

}  // namespace nanovllm::grammar
