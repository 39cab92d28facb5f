// JSON from clients: bounded in depth and size, in time that is linear whatever they send.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace nanovllm::server {

using Json = nlohmann::ordered_json;

inline constexpr int kMaxJsonDepth = 64;  // --max-json-depth

// Throws Error(kInvalidArgument) in a sentence for what is not JSON (NaN and bytes that are no
// UTF-8 among it), for nesting deeper than `max_depth`, a key that an object has twice, and more
// than some millions of values.
Json parse_json_body(std::string_view text, int max_depth = kMaxJsonDepth);

}  // namespace nanovllm::server
