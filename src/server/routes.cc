#include "server/routes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>

#include "io/json.h"
#include "server/api_server.h"
#include "server/page/page.h"

namespace nanovllm::server {
namespace {

constexpr bool kOpen = true, kKeyed = false;

HttpResponse plain(std::string text = "", std::string type = "text/plain") {
  return {.content_type = std::move(type), .body = std::move(text)};
}

HttpResponse ping(const ApiServer&) { return plain(); }
HttpResponse health(const ApiServer& server) { return server.health(); }
HttpResponse version(const ApiServer&) { return {.body = version_body()}; }
HttpResponse models(const ApiServer& server) { return {.body = models_body(*server.model())}; }
HttpResponse tokenizer_info(const ApiServer& server) { return server.tokenizer_info(); }
HttpResponse metrics(const ApiServer& server) {
  return plain(server.metrics().text(), "text/plain; version=0.0.4; charset=utf-8");
}
HttpResponse openapi(const ApiServer& server) {
  std::vector<Operation> operations;
  for (const Route& route : routes()) {
    const bool is_there =
        route.operation.path != kTokenizerInfo || server.options().enable_tokenizer_info_endpoint;
    if (is_there) operations.push_back(route.operation);
  }
  return {.body = openapi_body(operations)};
}

const Route kRoutes[] = {
    {{"/v1/completions", "POST", "Complete prompts", "Completion", "CompletionRequest", true},
     kKeyed,
     parse_completion},
    {{"/v1/chat/completions", "POST", "Answer a chat", "ChatCompletion", "ChatRequest", true},
     kKeyed,
     parse_chat},
    {{"/v1/models", "GET", "The models", "ModelList"}, kKeyed, models},
    {{"/tokenize", "POST", "Text to ids", "Tokens", "TokenizeRequest"}, kKeyed, tokenize_body},
    {{"/detokenize", "POST", "Ids to text", "Text", "DetokenizeRequest"}, kKeyed, detokenize_body},
    {{kTokenizerInfo, "GET", "What the tokenizer is made of", "application/json"},
     kKeyed,
     tokenizer_info},
    {{"/health", "GET", "Whether requests are taken", "text/plain"}, kOpen, health},
    {{"/ping", "GET, POST", "Whether the server runs", "text/plain"}, kOpen, ping},
    {{"/version", "GET", "The server's version", "application/json"}, kOpen, version},
    {{"/metrics", "GET", "For Prometheus", "text/plain"}, kKeyed, metrics},
    {{"/openapi.json", "GET", "What this server takes", "application/json"}, kKeyed, openapi},
};

}  // namespace

bool Route::takes(std::string_view method) const {
  if (method == "HEAD") method = "GET";
  return std::string_view(operation.methods).find(method) != std::string_view::npos;
}

std::span<const Route> routes() { return kRoutes; }

const Route* find_route(std::string_view path) {
  const auto found =
      std::ranges::find(kRoutes, path, [](const Route& route) { return route.operation.path; });
  return found == std::end(kRoutes) ? nullptr : &*found;
}

std::vector<std::string> open_paths() {
  std::vector<std::string> paths = page_paths();
  paths.emplace_back();  // which leads to the page
  for (const Route& route : kRoutes) {
    if (route.is_open) paths.emplace_back(route.operation.path);
  }
  return paths;
}

std::string missing_path(std::string_view path) {
  if (path == kTokenizerInfo) {
    return "/tokenizer_info is there where the server has --enable-tokenizer-info-endpoint.";
  }
  // clang-format off
  constexpr std::string_view kOfVllm[] = {
      "/v1/responses", "/v1/embeddings", "/v1/messages", "/v1/audio", "/v1/score", "/v1/rerank",
      "/v2/rerank", "/v2/embed", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
      "/v1/realtime", "/score", "/rerank", "/pooling", "/classify", "/invocations", "/inference",
      "/load", "/sleep", "/wake_up", "/reset_prefix_cache", "/start_profile"};
  // clang-format on
  const bool is_of_vllm = std::ranges::any_of(kOfVllm, [&](std::string_view known) {
    return path.starts_with(known) && (path.size() == known.size() || path[known.size()] == '/');
  });
  std::vector<std::string_view> paths;
  for (const Route& route : kRoutes) {
    if (route.operation.path != kTokenizerInfo) paths.emplace_back(route.operation.path);
  }
  return fmt::format(
      "{} is {}; there are {} and {}.", printable(path),
      is_of_vllm ? "an endpoint of vLLM that this server does not have" : "not found",
      fmt::join(paths.begin(), paths.end() - 1, ", "), paths.back());
}

}  // namespace nanovllm::server
