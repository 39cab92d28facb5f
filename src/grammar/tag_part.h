// Members of a structural tag, with the paths that errors name.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace nanovllm::grammar {

// A value and where it stands. Methods throw Error with the path where something else stands there.
struct Part {
  const Json* json;
  std::string path;

  // What is wrong, and what is not supported.
  [[noreturn]] void fail(std::string_view what) const;
  [[noreturn]] void refuse(std::string_view what) const;

  // Members; absent and null ones are none.
  std::optional<Part> find(std::string_view name) const;
  Part member(std::string_view name) const;
  std::vector<Part> list() const;  // of one thing or more
  std::vector<Part> optional_list(std::string_view name) const;
  std::string text() const;
  bool flag(std::string_view name) const;  // false where there is none
  std::optional<int64_t> count(std::string_view name, int64_t least) const;
  // "type" too.
  void expect_members(std::initializer_list<std::string_view> names) const;
};

}  // namespace nanovllm::grammar
