// Renders templates for the comparison with Jinja2. In: a line with a JSON array of all templates,
// each of which is rendered many times; then one JSON object {"template", "variables", "now"} a
// line, where "template" is an index into the array and "now", seconds since the epoch, may be left
// out.
// Out: {"output"} or {"error"} for each object.
#include <ctime>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nanovllm/error.h"
#include "text/jinja/jinja.h"

namespace {

using Json = nlohmann::ordered_json;

// The templates, each compiled where it is first needed.
class Templates {
 public:
  explicit Templates(const std::vector<std::string>& sources) : sources_(sources) {}
  const nanovllm::jinja::Program& of(const Json& request) {
    const auto index = request.at("template").get<size_t>();
    return compiled_.try_emplace(index, sources_.at(index)).first->second;
  }

 private:
  const std::vector<std::string>& sources_;
  std::map<size_t, nanovllm::jinja::Program> compiled_;
};

std::string render(const nanovllm::jinja::Program& program, const Json& request) {
  nanovllm::jinja::RenderOptions options;
  if (request.contains("now")) {
    const auto now = request["now"].get<std::time_t>();
    std::tm local{};
    localtime_r(&now, &local);
    options.now = local;
  }
  return program.render(request.at("variables"), options);
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  std::string line;
  std::getline(std::cin, line);
  const auto sources = Json::parse(line).get<std::vector<std::string>>();
  Templates programs(sources);
  while (std::getline(std::cin, line)) {
    Json response;
    try {
      const Json request = Json::parse(line);
      response["output"] = render(programs.of(request), request);
    } catch (const nanovllm::Error& error) {
      response = {{"error", error.what()}};
    }
    std::cout << response.dump() << "\n" << std::flush;
  }
  return 0;
}
