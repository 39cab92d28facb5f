// Renders templates for the comparison with Jinja2. In: a line with a JSON array of all templates,
// each of which is rendered many times; then one JSON object a line. {"template", "variables"} is
// for the language alone, {"template", "messages", "tools", "add_generation_prompt", "kwargs"} for
// the whole of ChatTemplate; "template" is an index into the array; "now": seconds since the epoch.
// Out: {"output"} or {"error"} for each object.
#include <ctime>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nanovllm/chat.h"
#include "nanovllm/error.h"
#include "text/jinja/jinja.h"

namespace {

using Json = nlohmann::ordered_json;

// The templates, each compiled where it is first needed.
template <typename Compiled>
class Templates {
 public:
  explicit Templates(const std::vector<std::string>& sources) : sources_(sources) {}
  const Compiled& of(const Json& request) {
    const auto index = request.at("template").get<size_t>();
    return compiled_.try_emplace(index, sources_.at(index)).first->second;
  }

 private:
  const std::vector<std::string>& sources_;
  std::map<size_t, Compiled> compiled_;
};

std::string render_variables(const nanovllm::jinja::Program& program, const Json& request) {
  nanovllm::jinja::RenderOptions options;
  if (request.contains("now")) {
    const auto now = request["now"].get<std::time_t>();
    std::tm local{};
    localtime_r(&now, &local);
    options.now = local;
  }
  return program.render(request.at("variables"), options);
}

std::string render_chat(const nanovllm::ChatTemplate& chat_template, const Json& request) {
  return chat_template.render(request.at("messages"), request.at("tools"),
                              request.at("add_generation_prompt").get<bool>(),
                              request.at("kwargs"));
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  std::string line;
  std::getline(std::cin, line);
  const auto sources = Json::parse(line).get<std::vector<std::string>>();
  Templates<nanovllm::jinja::Program> programs(sources);
  Templates<nanovllm::ChatTemplate> chat_templates(sources);
  while (std::getline(std::cin, line)) {
    Json response;
    try {
      const Json request = Json::parse(line);
      response["output"] = request.contains("messages")
                               ? render_chat(chat_templates.of(request), request)
                               : render_variables(programs.of(request), request);
    } catch (const nanovllm::Error& error) {
      response = {{"error", error.what()}};
    }
    std::cout << response.dump() << "\n" << std::flush;
  }
  return 0;
}
