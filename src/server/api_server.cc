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
#include "engine/request.h"
#include "grammar/grammar.h"
#include "io/json.h"
#include "server/log.h"
#include "server/page/page.h"

namespace nanovllm::server {

namespace {

constexpr const char* kRetryAfter = "1";  // second
// Bytes of a body from which on it is large. Many times a usual prompt, and prepared in
// milliseconds.
constexpr size_t kLargeBody = size_t{256} << 10;

HttpResponse refusal(int status, const std::string& message, const std::string& param = "",
                     const std::string& code = "") {
  HttpResponse response = error_response(status, message, param, "", code);
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
    return refusal(e.status(), e.what(), e.param(), e.code());
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

HttpResponse redirect(int status, const std::string& where) {
  return {
      .status = status, .content_type = "text/plain", .headers = {{"Location", where}}, .body = ""};
}

HttpResponse wrong_method(const HttpRequest& request, std::string_view methods) {
  HttpResponse response =
      refusal(405, fmt::format("{} takes {}, not {}.", request.path, methods, request.method));
  response.headers.emplace_back("Allow", methods);
  return response;
}

HttpResponse page_response(const PageFile& file, const HttpRequest& request) {
  if (request.header("If-None-Match") == file.etag) return {.status = 304, .headers = file.headers};
  return {.content_type = std::string(file.content_type),
          .headers = file.headers,
          .body = std::string(file.body)};
}

// Takes this token of JSON off the text, if it comes first but for blanks.
bool take(std::string_view& text, std::string_view token) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  if (!text.starts_with(token)) return false;
  text.remove_prefix(token.size());
  return true;
}

// Whether the value that the text begins with may bind an answer: many clients send one that says
// that nothing does.
bool may_bind(std::string_view value) {
  if (take(value, "{")) {
    const bool has_type = take(value, R"("type")") && take(value, ":");
    return !has_type ||
           !(take(value, R"("auto")") || take(value, R"("none")") || take(value, R"("text")"));
  }
  if (take(value, "null") || take(value, "false")) return false;
  return !take(value, "\"") || value.starts_with("required\"");
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

bool may_be_constrained(std::string_view body) {
  for (const std::string_view field :
       {R"("structured_outputs")", R"("response_format")", R"("tool_choice")", R"("strict")",
        R"("format")", R"("output_format")"}) {
    for (size_t at = body.find(field); at != body.npos; at = body.find(field, at + 1)) {
      std::string_view value = body.substr(at + field.size());
      if (take(value, ":") && may_bind(value)) return true;
    }
  }
  return false;
}

ApiServer::ApiServer(const ServeOptions& options, Fleet& fleet, Metrics& metrics)
    : options_(options), fleet_(fleet), metrics_(metrics), preparers_(options.num_io_threads) {}

void ApiServer::stop() {
  preparers_.stop();
  large_preparer_.stop();
  compiling_preparer_.stop();
  preparers_.join();
  large_preparer_.join();
  compiling_preparer_.join();
}

void ApiServer::set_model(std::shared_ptr<const ServedModel> model) {
  const std::lock_guard lock(mutex_);
  model_ = std::move(model);
}

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

HttpResponse ApiServer::health() const {
  const auto served = model();
  const FleetStatus status = fleet_.status();
  if (status.num_ready > 0) return {.content_type = "text/plain", .headers = {}, .body = ""};
  return refusal(503, fmt::format("No worker is ready since {:%FT%TZ}: {}",
                                  fmt::gmtime(std::chrono::system_clock::to_time_t(status.since)),
                                  status.why));
}

HttpResponse ApiServer::tokenizer_info() const {
  if (!options_.enable_tokenizer_info_endpoint) throw ApiError(404, missing_path(kTokenizerInfo));
  return {.body = model()->tokenizer_info};
}

// Where there is no route: a file of the page, a way to what was meant, or none.
HttpResponse ApiServer::page_answer(const HttpRequest& request) const {
  const std::string& path = request.path;
  const std::string& root = options_.http.root_path;
  // What the page names is relative to an address with "/" behind it.
  if (path.empty()) return redirect(308, root + "/");
  const std::string bare = path.substr(0, path.size() - 1);
  const Route* route = find_route(bare);
  const bool is_route = route != nullptr && route->operation.path == bare;
  if (path.ends_with('/') && (is_route || page_file(bare))) {  // as vLLM's web framework has it
    return redirect(307, root + bare + (request.query.empty() ? "" : "?" + request.query));
  }
  const std::optional<PageFile> file = page_file(path);
  if (!file) return refusal(404, missing_path(path));
  const bool asked = request.method == "GET" || request.method == "HEAD";
  return asked ? page_response(*file, request) : wrong_method(request, "GET");
}

asio::awaitable<void> ApiServer::handle(HttpExchange& exchange) {
  const HttpRequest& request = exchange.request();
  const Route* route = find_route(request.path);
  HttpResponse response;
  if (route == nullptr) {
    response = page_answer(request);
  } else if (!route->takes(request.method)) {
    response = wrong_method(request, route->operation.methods);
  } else if (const auto* parse = std::get_if<ParseCall>(&route->handler)) {
    freed_memory_.add(co_await generate(exchange, *parse));
    co_return;
  } else if (const auto* body = std::get_if<AnswerText>(&route->handler)) {
    freed_memory_.add(co_await text_answer(exchange, *body));
    co_return;
  } else {
    try {
      response = std::get<AnswerAtOnce>(route->handler)(*this, request);
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
  if (body.size() >= kLargeBody) return large_preparer_;
  return may_be_constrained(body) ? compiling_preparer_ : preparers_;
}

asio::awaitable<size_t> ApiServer::text_answer(HttpExchange& exchange, AnswerText body) {
  const std::string text = exchange.take_body();
  HttpResponse response;
  try {
    const auto served = model();
    std::function<std::string()> work = [&] { return body(text, *served); };
    response.body = co_await elsewhere(lane_of(text), std::move(work));
  } catch (...) {
    response = refusal_for(std::current_exception());
  }
  const size_t num_bytes = text.size() + response.body.size();
  co_await exchange.send(std::move(response));
  co_return num_bytes;
}

asio::awaitable<size_t> ApiServer::generate(HttpExchange& exchange, ParseCall parse) {
  const HttpRequest& request = exchange.request();
  std::string body = exchange.take_body();
  size_t num_bytes = body.size();
  Generation generation;
  HttpResponse response;
  bool added = false;
  try {
    generation.model = model();
    std::function<std::unique_ptr<ApiCall>()> work = [&] {
      return parse(body, *generation.model, request.id);
    };
    generation.call = co_await elsewhere(lane_of(body), std::move(work));
    if (generation.call->stream && !exchange.takes_streams()) {
      throw ApiError(400, "Answers are whole here, and no streams: leave stream out.", "stream");
    }
    log(request, body, *generation.call);
    std::optional<int64_t> seed = exchange.seed();
    for (AddRequest& one : generation.call->requests) {
      one.grammar.reset();  // workers have their own
      if (!one.params.seed) one.params.seed = seed;
      if (seed) seed = default_seed(*seed, 0);  // of the next prompt
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

// Each once, and no more than somebody may read: they are about what clients ask for.
void ApiServer::tell_once(const std::string& note) {
  constexpr size_t kMostNotes = 1000, kMostBytes = 300;
  const std::string text = printable(note, kMostBytes);
  {
    const std::lock_guard lock(mutex_);
    if (notes_.size() == kMostNotes || !notes_.insert(text).second) return;
  }
  if (options_.on_note) return options_.on_note(text);
  print_log("{}", text);
}

void ApiServer::log(const HttpRequest& request, std::string_view body, const ApiCall& call) {
  if (options_.log_requests) print_log("{} asks {}", request.id, body);
  for (const AddRequest& one : call.requests) {
    if (!one.grammar) continue;
    for (const std::string& note : one.grammar->notes()) tell_once(note);
  }
  if (call.ignored_fields.empty()) return;
  const std::string ignored =
      fmt::format("what is not known here is ignored: {}",
                  printable(fmt::format("{}", fmt::join(call.ignored_fields, ", "))));
  if (options_.on_note) return tell_once(ignored);
  print_log("{}: {}", request.id, ignored);
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
      const ApiError error = *call.error();
      HttpResponse response = refusal(error.status(), error.what(), error.param(), error.code());
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
    if (!news->empty() && !co_await exchange.write(*news)) {
      co_return;
    }
    if (call.is_over()) break;
  }
  const std::string rest = call.finish();
  co_await exchange.write(rest);
}

}  // namespace nanovllm::server
