// `nanovllm serve`: the flags of the OpenAI-compatible server; and the workers that it starts.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/message.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "cli/option_group.h"
#include "cli/options.h"
#include "cli/server_options.h"
#include "cli/terminal.h"
#include "cli/terminal_text.h"
#include "io/json.h"
#include "server/log.h"
#include "server/server.h"

namespace nanovllm::cli {
namespace {

struct CommandLine {
  server::ServeOptions options;
  WorkerOptions worker;
  std::string access_log = "lines";
  ModelOption model;
};

using Options = server::ServeOptions;

void add_http_options(CLI::App& app, CommandLine& line) {
  server::HttpOptions& http = line.options.http;
  Group group(app, "HTTP");
  group.add("--host", http.host, "address to listen on");
  group.add("--port", http.port, "port to listen on; 0 = any free one")
      ->check(CLI::Range(0, 65535));
  group.add("--uds", http.uds, "listen on this Unix socket instead");
  group.add<std::string>("--root-path", http.root_path,
                         "prefix of all paths, where a proxy in front leaves one on");
  group.add("--api-key", http.api_keys,
            "clients must send this key; NANOVLLM_API_KEY in the environment is one too");
  group.add("--ssl-keyfile", http.ssl_keyfile, "key of the TLS certificate (PEM)");
  group.add("--ssl-certfile", http.ssl_certfile, "TLS certificate chain (PEM)");
  group.add("--allowed-origins", http.allowed_origins, "web pages of this origin may ask; * = all");
  group.add("--shutdown-timeout", line.options.shutdown_timeout,
            "after SIGTERM running requests may take so long to end; 0 = they end at once", 0);
  group.add("--access-log", line.access_log, "lines, json or none")
      ->check(CLI::IsMember({"lines", "json", "none"}));
}

void add_limit_options(CLI::App& app, Options& options) {
  server::HttpOptions& http = options.http;
  Group group(app, "Limits");
  group.add("--max-queue-len", options.fleet.max_num_queued,
            "requests that wait for their first token; more get status 429", 1);
  group.add("--max-connections", http.max_connections, "open connections", 1);
  group.add("--max-prompts", options.max_prompts, "prompts of one request", 1);
  group.add("--max-json-depth", options.max_json_depth, "nesting of a body", 1);
  group.add_size("--max-body-size", http.max_body_bytes);
  group.add_size("--max-header-size", http.max_header_bytes);
  group.add_size("--max-url-size", http.max_url_bytes);
  group.add("--idle-timeout", http.idle_timeout,
            "a connection without a request, or with an unfinished one, is closed");
  group.add("--write-timeout", http.write_timeout,
            "a client that reads nothing for so long is given up");
}

void add_api_options(CLI::App& app, Options& options) {
  Group group(app, "API");
  add_answer_options(group, options);
  group.add("--enable-force-include-usage", options.enable_force_include_usage,
            "every chunk of a stream tells usage, asked for or not");
  group.add("--enable-tokenizer-info-endpoint", options.enable_tokenizer_info_endpoint,
            "/tokenizer_info tells the tokenizer's configuration and the chat template");
  group.add("--enable-log-requests", options.log_requests,
            "log prompts and parameters: they may be private");
}

void add_process_options(CLI::App& app, CommandLine& line) {
  Options& options = line.options;
  Group group(app, "Options");
  add_fleet_options(group, options.fleet);
  app.add_option("--config", "YAML file of these flags, such as \"port: 8000\"")
      ->option_text("FILE");
  line.worker.add_to(app);
}

// "https://chat.example:8443", as browsers send it.
bool is_origin(const std::string& text) {
  const size_t scheme = text.find("://");
  return scheme != std::string::npos && scheme > 0 && text.size() > scheme + 3 &&
         text.find_first_of("[\"', *") > scheme &&
         text.find_first_of("/\"', *", scheme + 3) == std::string::npos;
}

// Origins as they are, and lists of them in JSON, as vLLM has them.
std::vector<std::string> origins_of(const std::vector<std::string>& texts) {
  std::vector<std::string> origins;
  for (const std::string& text : texts) {
    const auto list = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!list.is_array()) {
      origins.push_back(text);
      continue;
    }
    for (const auto& item : list) {
      origins.push_back(item.is_string() ? item.get<std::string>() : shown(item));
    }
  }
  for (const std::string& origin : origins) {
    if (origin == "*" || origin == "null" || is_origin(origin)) continue;
    throw_error(ErrorCode::kInvalidArgument,
                "--allowed-origins must be * or origins such as https://chat.example:8443, without "
                "anything behind them, or a JSON list of such, got {}",
                printable(origin));
  }
  return origins;
}

void read_keys(std::vector<std::string>& keys) {
  const char* key = std::getenv("NANOVLLM_API_KEY");
  const char* empty = std::ranges::find(keys, "") != keys.end() ? "--api-key" : nullptr;
  if (key != nullptr && *key == '\0') empty = "NANOVLLM_API_KEY";
  if (empty != nullptr) {
    throw_error(ErrorCode::kInvalidArgument,
                "{} is empty, which would let everybody in: leave it out if that is meant", empty);
  }
  if (key != nullptr) keys.emplace_back(key);
}

void check(const CommandLine& line) {
  const server::HttpOptions& http = line.options.http;
  if (http.ssl_keyfile.empty() != http.ssl_certfile.empty()) {
    throw_error(ErrorCode::kInvalidArgument,
                "TLS needs both --ssl-keyfile and --ssl-certfile; one of them is missing");
  }
  if (!http.root_path.empty() &&
      (!http.root_path.starts_with('/') || http.root_path.ends_with('/'))) {
    throw_error(ErrorCode::kInvalidArgument,
                "--root-path must begin with / and not end with one, got {}", http.root_path);
  }
}

int run_front(CommandLine& line) {
  check(line);
  Options& options = line.options;
  read_keys(options.http.api_keys);
  options.http.allowed_origins = origins_of(options.http.allowed_origins);
  if (line.access_log != "none") {
    options.http.access_log = [](const std::string& text) { print_message("{}\n", text); };
    options.http.access_log_json = line.access_log == "json";
  }
  options.engine.validate();
  options.fleet.seed = options.engine.seed;
  line.model.find();
  find_draft_model(options.engine);
  options.model = line.model.path;
  if (options.served_model_names.empty()) options.served_model_names = {line.model.name};
  options.worker_arguments = worker_arguments(std::move(options.worker_arguments), options.model);
  server::begin_log();
  try {
    return server::serve(std::move(options));
  } catch (const Error& error) {  // which its log ends with
    server::print_log("{}", shown_on(stderr, error.what()));
    return exit_status_of(error);
  }
}

// Workers need no keys, and what is on a command line is for everybody to see.
std::vector<std::string> without_keys(const std::vector<std::string>& words) {
  std::vector<std::string> others;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--api-key") {
      ++i;
    } else if (!words[i].starts_with("--api-key=")) {
      others.push_back(words[i]);
    }
  }
  return others;
}

}  // namespace

Command add_serve(CLI::App& app, const std::vector<std::string>& words) {
  auto line = std::make_shared<CommandLine>();
  Options& options = line->options;
  options.engine.max_step_seconds = -1;  // others wait while a long prompt is computed
  line->model.add_to(app);
  add_process_options(app, *line);
  add_http_options(app, *line);
  add_api_options(app, options);
  add_limit_options(app, options);
  add_engine_options(app, options.engine);
  app.footer(
      "Then, from another terminal:\n"
      "  curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n"
      "or open http://localhost:8000 in a browser. docs/serving.md has the rest.\n"
      "Exit status: 0 ended by SIGTERM, SIGHUP or Ctrl-C, 1 error, 2 wrong usage.");
  return [line, &words] {
    server::print_without_waiting();
    if (line->worker.is_worker()) return line->worker.run(line->options);
    line->options.worker_arguments = without_keys(words);
    return run_front(*line);
  };
}

}  // namespace nanovllm::cli
