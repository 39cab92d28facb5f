#include "server/api_server.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "io/json.h"
#include "server/log.h"
#include "server/page/page.h"

namespace nanovllm::server {

namespace {

constexpr const char* kRetryAfter = "1";  // second
// Bytes of a body from which on it is large. Many times a usual prompt, and prepared in
// milliseconds.
constexpr size_t kLargeBody = size_t{256} << 10;

HttpResponse json_response(std::string body) { return {.body = std::move(body)}; }

HttpResponse refusal(int status, const std::string& message, const std::string& param = "") {
  HttpResponse response = error_response(status, message, param);
  if (status == 429 || status == 503) response.headers.emplace_back("Retry-After", kRetryAfter);
  return response;
}

HttpResponse head_of_stream() {
  return {.content_type = "text/event-stream; charset=utf-8",
          .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
}

// What is answered to an exception.
HttpResponse refusal_for(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const ApiError& e) {
    return refusal(e.status(), e.what(), e.param());
  } catch (const QueueFull& e) {
    return refusal(429, e.what());
  } catch (const Error& e) {
    return refusal(status_of(e.code()), e.what());
  } catch (const std::bad_alloc&) {
    return refusal(503, "There is no memory left for this request; try again later.");
  } catch (const std::exception& e) {
    return refusal(500, e.what());
  }
}

bool is_last(const EngineEvent& event) {
  const auto* end = std::get_if<RequestEnd>(&event);
  return end != nullptr ? end->last : std::holds_alternative<RequestError>(event);
}

// The methods of the paths there are; none = another path.
std::vector<std::string> methods_of(const std::string& path) {
  for (const char* got : {"/health", "/version", "/metrics", "/openapi.json", "/v1/models"}) {
    if (path == got) return {"GET"};
  }
  for (const char* posted :
       {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"}) {
    if (path == posted) return {"POST"};
  }
  if (path == "/ping") return {"GET", "POST"};
  if (path == kTokenizerInfo || page_file(path)) return {"GET"};
  return {};
}

HttpResponse redirect(int status, const std::string& where) {
  return {
      .status = status, .content_type = "text/plain", .headers = {{"Location", where}}, .body = ""};
}

HttpResponse page_response(const PageFile& file, const HttpRequest& request) {
  if (request.header("If-None-Match") == file.etag) return {.status = 304, .headers = file.headers};
  return {.content_type = std::string(file.content_type),
          .headers = file.headers,
          .body = std::string(file.body)};
}

}  // namespace

// A call on its way.
struct ApiServer::Generation {
  std::shared_ptr<const ServedModel> model;
  std::unique_ptr<ApiCall> call;
  // Of the call's requests; null where one has ended, which would wake whoever waits for it.
  std::vector<std::shared_ptr<RequestStream>> streams = {};

  // What is new, as the client is to get it; none where nothing happened.
  std::optional<std::string> news() {
    std::optional<std::string> text;
    for (size_t i = 0; i < streams.size() && !call->is_over(); ++i) {
      const auto events = streams[i] ? streams[i]->take() : std::vector<EngineEvent>();
      if (events.empty()) continue;
      text = std::move(text).value_or("") + call->on_events(i, events);
      if (is_last(events.back())) streams[i].reset();
    }
    return text;
  }

  void on_news(const std::function<void()>& wake) const {
    for (const auto& stream : streams) {
      if (!stream) continue;
      if (call->stream || call->wants_events_soon) {
        stream->on_ready(wake);
      } else {
        stream->on_end(wake);
      }
    }
  }
};

ApiServer::ApiServer(const ServeOptions& options, Fleet& fleet, Metrics& metrics)
    : options_(options), fleet_(fleet), metrics_(metrics), preparers_(options.num_io_threads) {}

void ApiServer::stop() {
  preparers_.stop();
  large_preparer_.stop();
  preparers_.join();
  large_preparer_.join();
}

void ApiServer::set_model(std::shared_ptr<const ServedModel> model) {
  const std::lock_guard lock(mutex_);
  model_ = std::move(model);
}

// Throws ApiError while there is none to work with.
std::shared_ptr<const ServedModel> ApiServer::model() const {
  if (draining_) throw ApiError(503, "The server is shutting down.");
  const EngineLimits limits = fleet_.status().limits;
  const std::lock_guard lock(mutex_);
  if (!model_) throw ApiError(503, "The model is being loaded.");
  const EngineLimits& known = model_->preparer.info;
  if (known != limits) {
    auto changed = std::make_shared<ServedModel>(*model_);
    static_cast<EngineLimits&>(changed->preparer.info) = limits;
    model_ = std::move(changed);
  }
  return model_;
}

// Throws ApiError where there is no model to work with.
HttpResponse ApiServer::health() const {
  const auto served = model();
  const FleetStatus status = fleet_.status();
  if (status.num_ready > 0) return {.content_type = "text/plain", .headers = {}, .body = ""};
  return refusal(503, fmt::format("No worker is ready since {:%FT%TZ}: {}",
                                  fmt::gmtime(std::chrono::system_clock::to_time_t(status.since)),
                                  status.why));
}

// What is answered at once.
HttpResponse ApiServer::small_answer(const HttpRequest& request) {
  const std::string& path = request.path;
  HttpResponse nothing = {.content_type = "text/plain", .headers = {}, .body = ""};
  if (path == "/health") return health();
  if (path == "/ping") return nothing;
  if (path == "/version") return json_response(version_body());
  if (path == "/openapi.json") return json_response(openapi_body());
  if (path == "/v1/models") return json_response(models_body(*model()));
  if (path == kTokenizerInfo && options_.enable_tokenizer_info_endpoint)
    return json_response(model()->tokenizer_info);
  if (path == "/metrics") {
    return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics_.text()};
  }
  const std::string& root = options_.http.root_path;
  // What the page names is relative to an address with "/" behind it.
  if (path.empty()) return redirect(308, root + "/");
  const std::string bare = path.substr(0, path.size() - 1);
  if (path.ends_with('/') && !methods_of(bare).empty())  // as vLLM's web framework has it
    return redirect(307, root + bare + (request.query.empty() ? "" : "?" + request.query));
  const std::optional<PageFile> file = page_file(path);
  return file ? page_response(*file, request) : refusal(404, missing_path(path));
}

asio::awaitable<void> ApiServer::handle(HttpExchange& exchange) {
  const HttpRequest& request = exchange.request();
  const std::vector<std::string> methods = methods_of(request.path);
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  HttpResponse response;
  if (!methods.empty() && std::ranges::find(methods, method) == methods.end()) {
    response = refusal(405, fmt::format("{} takes {}, not {}.", request.path,
                                        fmt::join(methods, " and "), request.method));
    response.headers.emplace_back("Allow", fmt::format("{}", fmt::join(methods, ", ")));
  } else if (!methods.empty() && request.path.ends_with("completions")) {
    freed_memory_.add(co_await generate(exchange));
    co_return;
  } else if (!methods.empty() && request.path.ends_with("tokenize")) {
    freed_memory_.add(co_await text_answer(exchange));
    co_return;
  } else {
    try {
      response = small_answer(request);
    } catch (...) {
      response = refusal_for(std::current_exception());
    }
  }
  co_await exchange.send(std::move(response));
}

// Runs `work` where it keeps nobody waiting; throws what it throws.
template <typename Result>
static asio::awaitable<Result> elsewhere(asio::thread_pool& pool, std::function<Result()> work) {
  const auto run = [](std::function<Result()> job) -> asio::awaitable<Result> { co_return job(); };
  co_return co_await asio::co_spawn(pool, run(std::move(work)), asio::use_awaitable);
}

asio::thread_pool& ApiServer::lane_of(std::string_view body) {
  return body.size() < kLargeBody ? preparers_ : large_preparer_;
}

asio::awaitable<size_t> ApiServer::text_answer(HttpExchange& exchange) {
  const HttpRequest& request = exchange.request();
  const std::string text = exchange.take_body();
  HttpResponse response;
  try {
    const auto served = model();
    const auto body = request.path == "/tokenize" ? tokenize_body : detokenize_body;
    std::function<std::string()> work = [&] { return body(text, *served); };
    response = json_response(co_await elsewhere(lane_of(text), std::move(work)));
  } catch (...) {
    response = refusal_for(std::current_exception());
  }
  const size_t num_bytes = text.size() + response.body.size();
  co_await exchange.send(std::move(response));
  co_return num_bytes;
}

asio::awaitable<size_t> ApiServer::generate(HttpExchange& exchange) {
  const HttpRequest& request = exchange.request();
  std::string body = exchange.take_body();
  size_t num_bytes = body.size();
  Generation generation;
  HttpResponse response;
  bool added = false;
  try {
    generation.model = model();
    const auto parse = request.path == "/v1/chat/completions" ? parse_chat : parse_completion;
    std::function<std::unique_ptr<ApiCall>()> work = [&] {
      return parse(body, *generation.model, request.id);
    };
    generation.call = co_await elsewhere(lane_of(body), std::move(work));
    log(request, body, *generation.call);
    for (AddRequest& one : generation.call->requests) {
      generation.streams.push_back(fleet_.add(std::move(one)));
    }
    added = true;
  } catch (const QueueFull&) {
    metrics_.on_queue_full();
    response = refusal_for(std::current_exception());
  } catch (...) {
    response = refusal_for(std::current_exception());
  }
  if (!added) {
    co_await exchange.send(std::move(response));
    co_return num_bytes;
  }
  body = {};
  if (generation.call->wants_events_soon) num_bytes += FreedMemory::kMuch;
  if (generation.call->stream) {
    co_await run_stream(exchange, generation);
  } else {
    num_bytes += co_await run(exchange, generation);
  }
  co_return num_bytes;
}

void ApiServer::log(const HttpRequest& request, std::string_view body, const ApiCall& call) const {
  if (options_.log_requests) print_log("{} asks {}", request.id, body);
  if (call.ignored_fields.empty()) return;
  print_log("{}: fields that nothing is known of are ignored: {}", request.id,
            printable(fmt::format("{}", fmt::join(call.ignored_fields, ", "))));
}

// In pieces where it is long: all of it at once would be many times what it is made of.
asio::awaitable<size_t> ApiServer::send_whole(HttpExchange& exchange, ApiCall& call) {
  HttpResponse response;
  bool has_more = false;
  try {
    has_more = call.next_piece(response.body);
  } catch (...) {
    response = refusal_for(std::current_exception());
  }
  size_t num_bytes = response.body.size();
  if (!has_more) {
    co_await exchange.send(std::move(response));
    co_return num_bytes;
  }
  co_await exchange.begin_stream(std::move(response));
  while (has_more) {
    std::string piece;
    has_more = call.next_piece(piece);
    num_bytes += piece.size();
    if (!co_await exchange.write(piece)) break;
  }
  co_return num_bytes;
}

// Until the answer is complete or the client gone: then the streams' ends cancel what still runs.
asio::awaitable<size_t> ApiServer::run(HttpExchange& exchange, Generation& generation) {
  ApiCall& call = *generation.call;
  const auto wake_up = [&](const std::function<void()>& wake) { generation.on_news(wake); };
  while (true) {
    const bool is_news = generation.news().has_value();
    if (call.is_over()) break;
    if (is_news) continue;
    co_await exchange.wait(wake_up, options_.max_silence);
    if (exchange.is_gone()) co_return 0;
  }
  co_return co_await send_whole(exchange, call);
}

// The same of an answer in pieces. Its head waits for the first one, so that a call which ends
// before it is answered with the status of an error, which tells clients to try again. Of a stream
// that is silent, only its head waits no longer, unless no worker is ready.
asio::awaitable<void> ApiServer::run_stream(HttpExchange& exchange, Generation& generation) {
  ApiCall& call = *generation.call;
  const auto wake_up = [&](const std::function<void()>& wake) { generation.on_news(wake); };
  bool has_begun = false;
  while (true) {
    std::optional<std::string> news = generation.news();
    if (!has_begun && call.error()) {
      HttpResponse response = refusal(call.error()->status(), call.error()->what());
      co_return co_await exchange.send(std::move(response));
    }
    if (!news) {
      const bool is_woken = co_await exchange.wait(wake_up, options_.max_silence);
      if (exchange.is_gone()) co_return;
      if (is_woken || (!has_begun && fleet_.status().num_ready == 0)) continue;
      news = ": still here\n\n";
    }
    if (!std::exchange(has_begun, true)) {
      HttpResponse head = head_of_stream();
      co_await exchange.begin_stream(std::move(head));
    }
    if (!news->empty() && !co_await exchange.write(*news)) co_return;
    if (call.is_over()) break;
  }
  const std::string rest = call.finish();
  co_await exchange.write(rest);
}

}  // namespace nanovllm::server
