// What Jinja has and this engine does not: it is refused by name.
#pragma once

#include <string_view>

namespace nanovllm::jinja {

enum class Refused { kTag, kFilter, kTest, kName, kMethod };

bool is_refused(Refused what, std::string_view name);

}  // namespace nanovllm::jinja
