// `nanovllm serve`: the flags of the OpenAI-compatible server; and the workers that it starts.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/message.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/terminal_text.h"
#include "io/json.h"
#include "server/fleet/fleet.h"
#include "server/log.h"
#include "server/server.h"

namespace nanovllm::cli {
namespace {

struct CommandLine {
  server::ServeOptions options;
  int worker_socket = -1;  // of a worker
  int worker_index = 0;
  std::string access_log = "lines";
  ModelOption model;
  std::string worker_model;  // where the front found it
};

using Options = server::ServeOptions;

// A variable that is not set, as a rule, where a text is meant.
std::string fault_of_empty(const std::string& text) {
  return text.empty() ? "must not be empty; leave the option out if that is meant" : "";
}

// One of the flags of a group of the help; they keep their defaults where they are not given.
class Group {
 public:
  Group(CLI::App& app, const char* name) : app_(app), name_(name) {}

  template <typename T>
  CLI::Option* add(const char* flag, T& value, const std::string& help) {
    return app_.add_option(flag, value, help)->capture_default_str()->group(name_);
  }
  CLI::Option* add(const char* flag, std::string& value, const std::string& help) {
    return add<std::string>(flag, value, help)->check(CLI::Validator(fault_of_empty, ""));
  }
  void add(const char* flag, bool& value, const char* help) {
    app_.add_flag(flag, value, help)->group(name_);
  }
  CLI::Option* add(const char* flag, std::vector<std::string>& values, const char* help) {
    return app_.add_option(flag, values, std::string(help) + " (may be several)")
        ->option_text("TEXT")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->allow_extra_args(false)
        ->group(name_);
  }
  void add(const char* flag, int& value, const char* help, int least) {
    add(flag, value, help)->check(at_least(least));
  }
  // Whole or broken seconds.
  void add(const char* flag, std::chrono::milliseconds& value, const char* help,
           double least = 0.001) {
    const auto set = [flag, &value, least](const double& seconds) {
      if (!(seconds >= least && seconds <= 1e6)) {  // nan is neither
        throw CLI::ValidationError(
            flag, fmt::format("must be from {} to 1000000 seconds, got {}", least, seconds));
      }
      value = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
    };
    app_.add_option_function<double>(flag, set, help)
        ->default_str(fmt::format("{}", static_cast<double>(value.count()) / 1000))
        ->option_text("SECONDS")
        ->group(name_);
  }
  // Bytes, at most so many of a request.
  void add_size(const char* flag, int64_t& value) {
    const auto set = [flag, &value](const std::string& text) {
      try {
        value = parse_bytes(text);
      } catch (const Error& error) {
        throw CLI::ValidationError(flag, error.what());
      }
      if (value < 1) throw CLI::ValidationError(flag, "must be at least 1 byte, got " + text);
    };
    app_.add_option_function<std::string>(flag, set, "of a request")
        ->default_str(fmt::format("{}K", value >> 10))
        ->option_text("BYTES")
        ->group(name_);
  }
  void add(const char* flag, nlohmann::ordered_json& object, const char* help) {
    const auto set = [flag, &object](const std::string& text) {
      object = nlohmann::ordered_json::parse(text, nullptr, false);
      if (object.is_object()) return;
      throw CLI::ValidationError(flag,
                                 "must be a JSON object, such as {\"enable_thinking\": false}");
    };
    app_.add_option_function<std::string>(flag, set, help)->option_text("JSON")->group(name_);
  }
  // A name of `names`.
  void add(const char* flag, std::string& value, const char* what,
           const std::vector<std::string>& names) {
    add(flag, value,
        fmt::format("{}: {} (default: what fits the model)", what, fmt::join(names, ", ")))
        ->check(CLI::IsMember(names))
        ->option_text("NAME");
  }

 private:
  CLI::App& app_;
  const char* name_;
};

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
  group
      .add("--served-model-name", options.served_model_names,
           "name of the model in the API; the first one is told")
      ->check(CLI::Validator(fault_of_empty, ""));
  group.add("--chat-template", options.chat_template,
            "Jinja file to use instead of the model's own template");
  group.add("--default-chat-template-kwargs", options.default_chat_template_kwargs,
            "chat_template_kwargs of chats that say nothing of them, as a JSON object");
  group.add("--trust-request-chat-template", options.trust_request_chat_template,
            "chats may bring templates of their own");
  group.add("--reasoning-parser", options.format.reasoning_parser, "how reasoning is marked",
            server::reasoning_parsers());
  group.add("--tool-call-parser", options.format.tool_call_parser, "how calls of tools are marked",
            server::tool_call_parsers());
  group.add("--enable-prompt-tokens-details", options.enable_prompt_tokens_details,
            "usage tells how many tokens came from the prefix cache");
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
  group
      .add("--data-parallel-size", options.fleet.num_engines,
           "worker processes, 1 to 64, each with the whole model: GPUs of its own, or its share of "
           "the "
           "CPU threads")
      ->check(CLI::Range(1, server::kMaxNumEngines));
  group.add("--worker-timeout", options.fleet.worker_timeout,
            "a worker that has work and makes no progress for so long is started again; a step may "
            "take longer");
  group.add("--worker-start-timeout", options.fleet.worker_start_timeout,
            "without a worker that is ready, or one whose loading advances, for so long the server "
            "ends with an error");
  app.add_option("--config", "YAML file of these flags, such as \"port: 8000\"")
      ->option_text("FILE");
  app.add_option("--worker-fd", line.worker_socket)->group("");
  app.add_option("--worker-index", line.worker_index)->group("");
  app.add_option("--worker-model", line.worker_model)->group("");
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
  options.model = line.model.path;
  if (options.served_model_names.empty()) options.served_model_names = {line.model.name};
  options.worker_arguments.insert(options.worker_arguments.end(),
                                  {"--worker-model", options.model});
  server::begin_log();
  try {
    return server::serve(std::move(options));
  } catch (const Error& error) {  // which its log ends with
    server::print_log("{}", shown_on(stderr, error.what()));
    return exit_status_of(error);
  }
}

// A worker's part of the CPUs that the front may use.
void take_cpus(int index, int num_workers) {
  cpu_set_t all, own;
  CPU_ZERO(&all);
  CPU_ZERO(&own);
  if (num_workers == 1 || sched_getaffinity(0, sizeof all, &all) != 0) return;
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all)) cpus.push_back(cpu);
  }
  const auto count = static_cast<int>(cpus.size());
  const int begin = index * count / num_workers;
  const int end = std::max(begin + 1, (index + 1) * count / num_workers);
  for (int i = begin; i < end; ++i) CPU_SET(cpus[i % count], &own);
  sched_setaffinity(0, sizeof own, &own);  // where that fails it shares them all
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

int run_worker(const CommandLine& line) {
  server::begin_log();
  take_cpus(line.worker_index, line.options.fleet.num_engines);
  return server::run_worker(line.worker_socket, line.worker_index, line.worker_model,
                            line.options.engine);
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
    if (line->worker_socket >= 0) return run_worker(*line);
    line->options.worker_arguments = without_keys(words);
    return run_front(*line);
  };
}

}  // namespace nanovllm::cli
