#include "server/routes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>

#include "io/json.h"
#include "server/agents/messages_api.h"
#include "server/agents/responses_api.h"
#include "server/api_server.h"
#include "server/page/page.h"

namespace nanovllm::server {
namespace {

constexpr bool kOpen = true, kKeyed = false;
constexpr std::string_view kModels = "/v1/models";

HttpResponse plain(std::string text = "", std::string type = "text/plain") {
  return {.content_type = std::move(type), .body = std::move(text)};
}

// Whether it is the other path, or lies below it.
bool is_within(std::string_view path, std::string_view other) {
  return path.starts_with(other) && (path.size() == other.size() || path[other.size()] == '/');
}

bool is_pattern(const Route& route) { return route.operation.path.ends_with('}'); }

HttpResponse ping(const ApiServer&, const HttpRequest&) { return plain(); }
HttpResponse health(const ApiServer& server, const HttpRequest&) { return server.health(); }
HttpResponse version(const ApiServer&, const HttpRequest&) { return {.body = version_body()}; }
HttpResponse models(const ApiServer& server, const HttpRequest&) {
  return {.body = models_body(*server.model())};
}
HttpResponse one_model(const ApiServer& server, const HttpRequest& request) {
  return {.body = model_body(*server.model(), request.path.substr(kModels.size() + 1))};
}
HttpResponse tokenizer_info(const ApiServer& server, const HttpRequest&) {
  return server.tokenizer_info();
}
HttpResponse metrics(const ApiServer& server, const HttpRequest&) {
  return plain(server.metrics().text(), "text/plain; version=0.0.4; charset=utf-8");
}
HttpResponse openapi(const ApiServer& server, const HttpRequest&) {
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
    {{"/v1/responses", "POST", "Answer a chat, in OpenAI's newer API", "Response",
      "ResponsesRequest", true},
     kKeyed,
     parse_responses},
    {{"/v1/messages", "POST", "Answer a chat, in Anthropic's API", "Message", "MessagesRequest",
      true, "MessagesError"},
     kKeyed,
     parse_messages},
    {{"/v1/messages/count_tokens", "POST", "Tokens of a chat, in Anthropic's API", "TokenCount",
      "CountTokensRequest", false, "MessagesError"},
     kKeyed,
     count_tokens_body},
    {{kModels, "GET", "The models", "ModelList"}, kKeyed, models},
    {{"/v1/models/{model}", "GET", "A model", "Model"}, kKeyed, one_model},
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
  const auto is_its_own = [&](const Route& route) {
    const std::string_view own = route.operation.path;
    if (!is_pattern(route)) return path == own;
    const std::string_view head = own.substr(0, own.find('{'));
    return path.size() > head.size() && path.starts_with(head) && !path.ends_with('/');
  };
  const auto found = std::ranges::find_if(kRoutes, is_its_own);
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
  if (path.starts_with(kResponsesPath)) return missing_response(path);
  // clang-format off
  constexpr std::string_view kOfVllm[] = {
      "/v1/embeddings", "/v1/audio", "/v1/score", "/v1/rerank",
      "/v2/rerank", "/v2/embed", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
      "/v1/realtime", "/score", "/rerank", "/pooling", "/classify", "/invocations", "/inference",
      "/load", "/sleep", "/wake_up", "/reset_prefix_cache", "/start_profile"};
  // clang-format on
  const bool is_of_vllm =
      std::ranges::any_of(kOfVllm, [&](std::string_view known) { return is_within(path, known); });
  std::vector<std::string_view> paths;
  for (const Route& route : kRoutes) {
    if (route.operation.path != kTokenizerInfo && !is_pattern(route)) {
      paths.emplace_back(route.operation.path);
    }
  }
  return fmt::format(
      "{} is {}; there are {} and {}.", printable(path),
      is_of_vllm ? "an endpoint of vLLM that this server does not have" : "not found",
      fmt::join(paths.begin(), paths.end() - 1, ", "), paths.back());
}

void finish_answer(const HttpRequest& request, HttpResponse& response) {
  struct Form {
    std::string_view path;
    std::string (*error_body)(int status, const ErrorWords& error);
    const char* id_header;  // for the request's id, beside x-request-id; null = none
  };
  constexpr Form kForms[] = {{"/v1/messages", messages_error_body, "request-id"},
                             {"/v1/responses", responses_error_body, nullptr}};
  for (const Form& form : kForms) {
    if (!is_within(request.path, form.path)) continue;
    if (response.error) response.body = form.error_body(response.status, *response.error);
    if (form.id_header != nullptr) response.headers.emplace_back(form.id_header, request.id);
  }
}

}  // namespace nanovllm::server
