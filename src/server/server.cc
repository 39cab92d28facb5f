#include "server/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/signals.h"
#include "base/version.h"
#include "grammar/grammar.h"
#include "io/file.h"
#include "io/gguf.h"
#include "nanovllm/chat.h"
#include "nanovllm/tokenizer.h"
#include "server/api_server.h"
#include "server/log.h"
#include "server/routes.h"
#include "text/hash.h"

namespace nanovllm::server {

namespace {

using Clock = std::chrono::steady_clock;

// How long answers that are complete may take to reach their clients at the end.
constexpr std::chrono::seconds kFlushTime{5};

// Descriptors that are no connection's: of the process, and of each worker (a socket, what waits
// for it, and those of its successor).
constexpr int kOwnDescriptors = 40, kDescriptorsOfWorker = 10;

HttpOptions http_options(const ServeOptions& options) {
  HttpOptions http = options.http;
  http.open_paths = open_paths();
  http.finish = finish_answer;
  http.num_other_descriptors =
      kOwnDescriptors + kDescriptorsOfWorker * std::max(options.fleet.num_engines, 1);
  return http;
}

// Not by nohup, say.
bool heeds_hangup() {
  struct sigaction before = {};
  return ::sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN;
}

// SIGHUP comes twice, and may do so when its handler is gone: that must not be the exit status.
void block_hangup() {
  sigset_t hangup;
  ::sigemptyset(&hangup);
  ::sigaddset(&hangup, SIGHUP);
  ::pthread_sigmask(SIG_BLOCK, &hangup, nullptr);
}

std::string name_of_model(const ServeOptions& options) {
  return options.served_model_names.empty() ? options.model : options.served_model_names.front();
}

// Null where the model has none: chats are refused then.
std::unique_ptr<const ChatTemplate> load_template(const ServeOptions& options) {
  if (!options.chat_template.empty()) {
    return ChatTemplate::from_source(read_text_file(options.chat_template), options.model,
                                     options.chat_template);
  }
  try {
    auto loaded = ChatTemplate::load(options.model);
    const std::string fault = loaded->fault(false), fault_with_tools = loaded->fault(true);
    if (!fault.empty()) print_log("chats are refused: {}", fault);
    if (!fault_with_tools.empty() && fault_with_tools != fault) {
      print_log("chats with tools are refused: {}", fault_with_tools);
    }
    return loaded;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    print_log("chats are refused: {}", error.what());
    return nullptr;
  }
}

// Engines of the same one give the same tokens for a seed, as far as their options promise it.
std::string fingerprint_of(const EngineInfo& info) {
  const uint64_t hash = text::hash_bytes(
      fmt::format("{} {} {} {}", info.architecture, info.num_parameters, info.device, info.dtype));
  return fmt::format("nanovllm-{}-{:08x}", kVersion, static_cast<uint32_t>(hash));
}

// The front process. It has threads that serve HTTP, one that loads, and in the end one that ends
// it.
class Front {
 public:
  explicit Front(ServeOptions options);
  int run();

 private:
  void load() noexcept;
  std::shared_ptr<const ServedModel> served_model(const EngineHello& hello) const;
  void announce() const;
  void announce_ready(const EngineInfo& info) const;
  void await_signal();
  void give_up(const std::string& why);
  void begin_end(std::chrono::milliseconds timeout);
  void end(std::chrono::milliseconds timeout) noexcept;

  const Clock::time_point start_ = Clock::now();
  const ServeOptions options_;
  Metrics metrics_;
  // What coroutines that are cut off in the end hold streams of.
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<ApiServer> api_;
  asio::io_context context_;
  asio::signal_set signals_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<const GrammarCompiler> grammars_;
  std::unique_ptr<const ChatTemplate> template_;
  std::thread loader_, ender_;
  std::exception_ptr fault_;  // what ends it, told by whoever set ending_
  std::atomic<bool> ending_ = false;
};

Front::Front(ServeOptions options)
    : options_(std::move(options)),
      metrics_(name_of_model(options_), options_.fleet.num_engines),
      context_(options_.num_io_threads),
      signals_(context_, SIGINT, SIGTERM) {
  // First: where there is no address to be had, no worker is started in vain.
  http_ = make_http_server(context_, http_options(options_),
                           [this](HttpExchange& exchange) { return api_->handle(exchange); });
  FleetObserver observer = metrics_.observer();
  observer.on_message = [](const std::string& text) { print_log("{}", text); };
  observer.on_unready = [this](const std::string& why) {
    asio::post(context_, [this, why] { give_up(why); });
  };
  if (heeds_hangup()) signals_.add(SIGHUP);
  fleet_ = make_fleet(options_.fleet, worker_starter(options_.worker_arguments), observer);
  api_ = std::make_unique<ApiServer>(options_, *fleet_, metrics_);
}

int Front::run() {
  announce();
  await_signal();
  std::vector<std::thread> threads;
  {
    const SignalsBlocked in_threads;
    loader_ = std::thread([this] { load(); });
    for (int i = 1; i < options_.num_io_threads; ++i) {
      threads.emplace_back([this] { context_.run(); });
    }
  }
  context_.run();
  block_hangup();
  for (std::thread& thread : threads) thread.join();
  loader_.join();
  api_->stop();  // long texts may still be read, by the tokenizer and for coroutines that end below
  if (ender_.joinable()) ender_.join();
  fleet_->shut_down(std::chrono::milliseconds(0));  // on_unready() needs the context
  if (fault_) std::rethrow_exception(fault_);
  return 0;
}

void Front::announce() const {
  const HttpOptions& http = options_.http;
  const bool tls = !http.ssl_certfile.empty();
  if (!http.uds.empty()) {
    print_log("listening on {}", http.uds);
  } else {
    const bool v6 = http.host.find(':') != std::string::npos;
    print_log("listening on {}://{}:{}{}", tls ? "https" : "http",
              v6 ? "[" + http.host + "]" : http.host, http_->port(), http.root_path);
  }
  const bool loopback = !http.uds.empty() || http.host.starts_with("127.") || http.host == "::1" ||
                        http.host == "localhost";
  if (!loopback && http.api_keys.empty()) {
    print_log("warning: everybody who reaches {} may use the model: no --api-key is set",
              http.host);
  }
  if (http_->max_connections() < http.max_connections) {
    print_log(
        "warning: there may be {} connections, not {}, as this process may not open more "
        "descriptors; raise ulimit -n (LimitNOFILE of a systemd unit)",
        http_->max_connections(), http.max_connections);
  }
}

// Where there are several workers, of the one that takes the longest requests.
void Front::announce_ready(const EngineInfo& info) const {
  const FleetStatus status = fleet_->status();
  std::string workers;
  if (status.num_engines > 1) {
    const bool all = status.num_ready == status.num_engines;
    workers = fmt::format(", {}{} workers, each",
                          all ? "" : fmt::format("{} of ", status.num_ready), status.num_engines);
  }
  print_log("ready: {}{} on {}, max_model_len {}, {} tokens of KV cache, {:.2f} s after the start",
            name_of_model(options_), workers, info.device, info.max_model_len,
            int64_t{info.num_kvcache_blocks} * info.kvcache_block_size,
            std::chrono::duration<double>(Clock::now() - start_).count());
}

// Engine and text side by side.
void Front::load() noexcept {
  try {
    tokenizer_ = Tokenizer::load(options_.model);
    if (tokenizer_) grammars_ = std::make_unique<const GrammarCompiler>(*tokenizer_);
    template_ = load_template(options_);
    const EngineHello& hello = fleet_->wait_ready();
    metrics_.begin(hello.info, options_.engine);
    api_->set_model(served_model(hello));
    print_log("{}", hello.info.sizing);
    announce_ready(hello.info);
  } catch (...) {
    if (!ending_.exchange(true)) fault_ = std::current_exception();
    context_.stop();
  }
}

std::shared_ptr<const ServedModel> Front::served_model(const EngineHello& hello) const {
  auto served = std::make_shared<ServedModel>();
  served->names = options_.served_model_names;
  if (served->names.empty()) served->names.push_back(options_.model);
  served->preparer = {.model_dir = hello.model_dir,
                      .info = hello.info,
                      .tokenizer = tokenizer_.get(),
                      .chat_template = template_.get(),
                      .grammars = grammars_.get()};
  served->defaults = hello.default_sampling_params;
  served->system_fingerprint = fingerprint_of(hello.info);
  served->created = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  served->format = transcript_format_of(template_ ? template_->source() : "",
                                        {hello.info.reasoning_parser, hello.info.tool_parser});
  const TranscriptFormat& asked = options_.format;
  if (!asked.reasoning_parser.empty()) served->format.reasoning_parser = asked.reasoning_parser;
  if (!asked.tool_call_parser.empty()) served->format.tool_call_parser = asked.tool_call_parser;
  if (tokenizer_) served->tags = transcript_tags(served->format, *tokenizer_);
  served->make_parser = make_transcript_parser;
  const ThoughtTags tags = thought_tags(served->format, template_ ? template_->source() : "");
  served->preparer.thinking_start = tags.begin;
  served->preparer.thinking_end = tags.end;
  served->enable_prompt_tokens_details = options_.enable_prompt_tokens_details;
  served->enable_force_include_usage = options_.enable_force_include_usage;
  served->default_chat_template_kwargs = options_.default_chat_template_kwargs;
  served->trust_request_chat_template = options_.trust_request_chat_template;
  if (options_.enable_tokenizer_info_endpoint) {
    const std::string config = options_.model + "/tokenizer_config.json";
    served->tokenizer_info = tokenizer_info_body(file_exists(config) ? read_text_file(config) : "",
                                                 template_ ? template_->source() : "");
  }
  // More would find no place in the queue at any time.
  served->max_num_prompts = std::min(options_.max_prompts, options_.fleet.max_num_queued);
  served->max_json_depth = options_.max_json_depth;
  return served;
}

// The first signal ends it with grace, the second one at once; but a terminal that goes sends
// SIGHUP by itself and by its shell.
void Front::await_signal() {
  signals_.async_wait([this](const boost::system::error_code& error, int signal) {
    if (error) return;
    await_signal();
    if (ending_.exchange(true)) {
      if (signal == SIGHUP) return;
      std::_Exit(128 + signal);  // the workers' sockets close, which ends them
    }
    print_log("shutting down: running requests have {} s to end; again to end at once",
              std::chrono::duration<double>(options_.shutdown_timeout).count());
    begin_end(options_.shutdown_timeout);
  });
}

// Whoever watches over the service may start it again, where there is memory or a GPU that works.
void Front::give_up(const std::string& why) {
  if (ending_.exchange(true)) return;
  fault_ = std::make_exception_ptr(Error(ErrorCode::kUnavailable, why));
  begin_end(std::chrono::milliseconds(0));
}

// Once.
void Front::begin_end(std::chrono::milliseconds timeout) {
  api_->drain();
  const SignalsBlocked in_thread;
  ender_ = std::thread([this, timeout] { end(timeout); });
}

void Front::end(std::chrono::milliseconds timeout) noexcept {
  try {
    fleet_->shut_down(timeout);
    http_->stop_accepting();
    const auto deadline = Clock::now() + kFlushTime;
    while (http_->num_connections() > 0 && Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  } catch (const std::exception& error) {
    print_log("while shutting down: {}", error.what());
  }
  context_.stop();
}

}  // namespace

int serve(ServeOptions options) {
  if (!find_gguf(options.model)) check_is_folder(options.model);
  keep_little_freed_memory();
  return Front(std::move(options)).run();
}

}  // namespace nanovllm::server
