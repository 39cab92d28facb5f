// Renders templates for the comparison with Jinja2: one JSON object a line in, one a line out.
// In: {"template", "variables"} for the language alone, or {"template", "messages", "tools",
// "add_generation_prompt", "kwargs"} for the whole of ChatTemplate; "now": seconds since the epoch.
// Out: {"output"} or {"error"}.
#include <ctime>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "nanovllm/error.h"
#include "text/chat_template.h"
#include "text/jinja/jinja.h"

namespace {

using Json = nlohmann::ordered_json;

std::string render_variables(const Json& request) {
  // Compiled once: the comparison renders each template many times.
  static std::map<std::string, nanovllm::jinja::Program> programs;
  const auto source = request.at("template").get<std::string>();
  auto program = programs.find(source);
  if (program == programs.end()) {
    program = programs.emplace(source, nanovllm::jinja::Program(source)).first;
  }
  nanovllm::jinja::RenderOptions options;
  if (request.contains("now")) {
    const auto now = request["now"].get<std::time_t>();
    std::tm local{};
    localtime_r(&now, &local);
    options.now = local;
  }
  return program->second.render(request.at("variables"), options);
}

std::string render_chat(const Json& request) {
  return nanovllm::ChatTemplate(request.at("template").get<std::string>())
      .render(request.at("messages"), request.at("tools"),
              request.at("add_generation_prompt").get<bool>(), request.at("kwargs"));
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    Json response;
    try {
      const Json request = Json::parse(line);
      response["output"] =
          request.contains("messages") ? render_chat(request) : render_variables(request);
    } catch (const nanovllm::Error& error) {
      response = {{"error", error.what()}};
    }
    std::cout << response.dump() << "\n" << std::flush;
  }
  return 0;
}
