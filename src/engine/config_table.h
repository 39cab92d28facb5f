// The fields of EngineConfig: the one list that flags and Python's keywords come from.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "nanovllm/config.h"

namespace nanovllm {

struct ConfigField {
  template <typename... T>
  using Members = std::variant<T EngineConfig::*...>;

  std::string_view name;
  // One of EngineConfig's, as a pointer to member.
  Members<int, double, bool, int64_t, std::string, std::optional<int64_t>> member;
  std::string_view help;
  // No effect on a CPU.
  bool cuda_only = false;
};

// In the order in which they are shown.
std::span<const ConfigField> config_table();

}  // namespace nanovllm
