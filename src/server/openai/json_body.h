// JSON from clients: bounded in depth and size.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "io/json.h"

namespace nanovllm::server {

inline constexpr int kMaxJsonDepth = 64;  // --max-json-depth
// Of all APIs, those that say what an answer must follow.
inline constexpr std::string_view kExactMembers[] = {
    "structured_outputs", "response_format", "tools", "text", "output_config", "output_format"};

// Throws Error(kCorruptData) in a sentence for what is not JSON (NaN and bytes that are no UTF-8
// among it), for nesting deeper than `max_depth`, a key that an object has twice, more than some
// millions of values, each of which takes some 50 bytes, and numbers in schemas that would be
// rounded.
inline Json parse_json_body(std::string_view text, int max_depth = kMaxJsonDepth,
                            std::span<JsonListBound> bounds = {}) {
  return parse_ordered_json(text, "The body",
                            {.max_depth = max_depth,
                             .allows_repeats = false,
                             .max_values = size_t{4} << 20,
                             .exact_members = kExactMembers},
                            bounds);
}

}  // namespace nanovllm::server
