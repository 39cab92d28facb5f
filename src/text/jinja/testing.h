// What the tests of the language share.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "nanovllm/error.h"
#include "text/jinja/jinja.h"

namespace nanovllm::jinja {

using Json = nlohmann::ordered_json;

inline std::string render(std::string_view source, const Json& variables = Json::object(),
                          const RenderOptions& options = {}) {
  return Program(source).render(variables, options);
}

// {{ expression }}
inline std::string print(const std::string& expression, const Json& variables = Json::object()) {
  return render("{{ " + expression + " }}", variables);
}

// The message of the error, or what was rendered where there is none.
inline std::string error_of(std::string_view source, const Json& variables = Json::object(),
                            const RenderOptions& options = {}) {
  try {
    return "rendered: " + render(source, variables, options);
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace nanovllm::jinja
