// `nanovllm bench serve`: what the users of a running server get, as `vllm bench serve` measures
// it.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <thread>

#include "base/check.h"
#include "base/message.h"
#include "cli/commands.h"
#include "cli/load_client.h"
#include "cli/nano_vllm_workload.h"
#include "cli/options.h"
#include "cli/serve_report.h"
#include "cli/terminal.h"
#include "io/json.h"

namespace nanovllm::cli {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int kRandomIds = 1000;      // every model's vocabulary has so many
constexpr size_t kMaxNumErrors = 10;  // that are shown

struct ServeOptions {
  std::string backend = "openai";
  std::string base_url, host = "127.0.0.1", endpoint, model, api_key;
  int port = 8000;
  std::string dataset = "random";
  int num_prompts = 0;  // 0 = as many as the dataset has
  int input_len = 1024, output_len = 128;
  std::string request_rate = "inf";
  double rate = 0;  // its number
  double burstiness = 1;
  int max_concurrency = 0;
  bool ignore_eos = false;
  std::optional<double> temperature;
  std::string extra_body;
  std::vector<std::string> goodput;
  std::string percentile_metrics = "ttft,tpot,itl,e2el", percentiles = "50,90,99";
  int num_warmups = 1;
  int ready_timeout = 0;  // seconds
  int64_t seed = 0;
  bool save_result = false, save_detailed = false, json = false, quiet = false;
  std::string result_dir, result_filename;

  bool chats() const { return backend == "openai-chat"; }
};

// What a benchmark asks for.
class Workload {
 public:
  explicit Workload(const ServeOptions& options) : options_(options) {
    fixed_["stream"] = true;
    fixed_["stream_options"] = {{"include_usage", true}};
    if (options.ignore_eos) fixed_["ignore_eos"] = true;
    if (options.temperature) fixed_["temperature"] = *options.temperature;
    if (options.extra_body.empty()) return;
    const auto extra = ordered_json::parse(options.extra_body, nullptr, false);
    if (!extra.is_object()) {
      throw_error(ErrorCode::kInvalidArgument, "--extra-body is no JSON object");
    }
    fixed_.update(extra);
  }

  int64_t size() const {
    if (options_.num_prompts > 0) return options_.num_prompts;
    return is_random() ? 1000 : static_cast<int64_t>(kNanoVllmWorkload.size());
  }

  // Those of -1 and below are for warming up. No two begin alike, so that no cache helps.
  HttpCall make(int64_t index) const {
    const RequestLengths lengths =
        is_random() ? RequestLengths{options_.input_len, options_.output_len}
                    : kNanoVllmWorkload[static_cast<size_t>(std::max<int64_t>(index, 0)) %
                                        kNanoVllmWorkload.size()];
    std::seed_seq seeds = {options_.seed, static_cast<int64_t>(index)};
    std::mt19937_64 generator(seeds);
    std::uniform_int_distribution<int> id(0, kRandomIds - 1);
    ordered_json body = fixed_;
    body["model"] = options_.model;
    if (options_.chats()) {
      std::string text;
      for (int i = 0; i < lengths.input; ++i) text += fmt::format("{} ", id(generator));
      body["messages"] = {{{"role", "user"}, {"content", text}}};
      body["max_completion_tokens"] = lengths.output;
    } else {
      std::vector<int> ids(static_cast<size_t>(lengths.input));
      for (int& one : ids) one = id(generator);
      body["prompt"] = std::move(ids);
      body["max_tokens"] = lengths.output;
    }
    return {.path = options_.endpoint, .body = body.dump(), .num_prompt_tokens = lengths.input};
  }

 private:
  bool is_random() const { return options_.dataset == "random"; }

  const ServeOptions& options_;
  ordered_json fixed_;
};

struct Interruption {};

// Servers may answer anything.
std::string shown(const Outcome& outcome) { return printable(outcome.error, 300); }

Outcome send(const ServerAddress& server, const HttpCall& call) {
  const Load load = {.num_requests = 1, .make = [&](int64_t) { return call; }};
  auto outcomes =
      run_load(server, load, [](const LoadProgress&) { return !InterruptGuard::interrupted(); });
  if (InterruptGuard::interrupted()) throw Interruption();
  return std::move(outcomes.front());
}

std::string model_of(const ServerAddress& server) {
  const Outcome outcome = send(server, {.method = "GET", .path = "/v1/models"});
  const auto answer = ordered_json::parse(outcome.body, nullptr, false);
  const ordered_json::json_pointer id("/data/0/id");
  if (answer.contains(id) && answer.at(id).is_string()) return answer.at(id).get<std::string>();
  throw_error(ErrorCode::kIo, "/v1/models names no model{}{}; name it with --model",
              outcome.ok() ? "" : ": ", shown(outcome));
}

// Waits for the server if asked to; what keeps it from answering is an error.
template <typename F>
void until_ready(const ServeOptions& options, F attempt) {
  const auto deadline = Clock::now() + std::chrono::seconds(options.ready_timeout);
  while (true) {
    try {
      return attempt();
    } catch (const Error&) {
      if (Clock::now() >= deadline) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    if (InterruptGuard::interrupted()) throw Interruption();
  }
}

// What was measured and how; the keys are vLLM's.
ordered_json setup_of(const ServeOptions& options, int64_t num_prompts) {
  return {
      {"date", fmt::format("{:%Y%m%d-%H%M%S}", fmt::localtime(std::time(nullptr)))},
      {"endpoint_type", options.backend},
      {"backend", options.backend},
      {"label", nullptr},
      {"model_id", options.model},
      {"tokenizer_id", options.model},
      {"num_prompts", num_prompts},
      {"request_rate", std::isinf(options.rate) ? ordered_json("inf") : ordered_json(options.rate)},
      {"burstiness", options.burstiness},
      {"max_concurrency",
       options.max_concurrency > 0 ? ordered_json(options.max_concurrency) : ordered_json()}};
}

std::string text_of(const ordered_json& result) {
  return result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void save(const ServeOptions& options, const ordered_json& result) {
  std::string path = options.result_filename;
  if (path.empty()) {
    const std::string concurrency =
        options.max_concurrency > 0 ? fmt::format("-concurrency{}", options.max_concurrency) : "";
    path = fmt::format("{}-{}qps{}-{}-{}.json", options.backend, options.request_rate, concurrency,
                       options.model.substr(options.model.rfind('/') + 1),
                       result["date"].get<std::string>());
  }
  if (!options.result_dir.empty()) path = options.result_dir + "/" + path;
  std::ofstream file(path);
  file << text_of(result) << "\n";
  file.close();
  if (!file) throw_error(ErrorCode::kIo, "cannot write the result to {}", path);
}

std::vector<Outcome> measure(const ServeOptions& options, const ServerAddress& server,
                             const Workload& workload) {
  const Load load = {.num_requests = workload.size(),
                     .make = [&](int64_t index) { return workload.make(index); },
                     .request_rate = options.rate,
                     .burstiness = options.burstiness,
                     .max_concurrency = options.max_concurrency,
                     .seed = options.seed};
  Progress progress("Benchmark", load.num_requests, !options.quiet);
  LoadProgress before;
  auto before_at = Clock::now();
  auto outcomes = run_load(server, load, [&](const LoadProgress& now) {
    const auto time = Clock::now();
    StepStats step;
    step.num_prefill_tokens = static_cast<int>(now.num_prompt_tokens - before.num_prompt_tokens);
    step.num_decode_tokens = static_cast<int>(now.num_output_tokens - before.num_output_tokens);
    step.seconds = std::chrono::duration<double>(time - std::exchange(before_at, time)).count();
    before = now;
    progress.update(now.num_done,
                    static_cast<double>(now.num_done) / static_cast<double>(load.num_requests),
                    step);
    return !InterruptGuard::interrupted();
  });
  if (InterruptGuard::interrupted()) throw Interruption();
  return outcomes;
}

int bench_serve(ServeOptions options) {
  const InterruptGuard guard;
  const ServeReport report(options.percentile_metrics, options.percentiles, options.goodput);
  options.rate = checked_number("--request-rate", options.request_rate, 1e-9, HUGE_VAL);
  const bool is_ipv6 = options.host.find(':') != std::string::npos;
  const std::string host = is_ipv6 ? "[" + options.host + "]" : options.host;
  ServerAddress server =
      parse_url(options.base_url.empty() ? fmt::format("http://{}:{}", host, options.port)
                                         : options.base_url);
  server.api_key = options.api_key;
  if (options.endpoint.empty()) {
    options.endpoint = options.chats() ? "/v1/chat/completions" : "/v1/completions";
  }
  // What clients of OpenAI's API are given; the endpoint has it, too.
  constexpr std::string_view kApi = "/v1";
  if (server.path.ends_with(kApi) && options.endpoint.starts_with("/v1/")) {
    server.path.resize(server.path.size() - kApi.size());
  }
  const Workload workload(options);
  until_ready(options, [&] {
    if (options.model.empty()) options.model = model_of(server);
    for (int64_t i = 1; i <= std::max(options.num_warmups, 1); ++i) {
      const Outcome outcome = send(server, workload.make(-i));
      if (!outcome.ok()) {
        throw_error(ErrorCode::kIo, "the first request failed: {}", shown(outcome));
      }
    }
  });
  const auto start = Clock::now();
  const std::vector<Outcome> outcomes = measure(options, server, workload);
  const double duration = std::chrono::duration<double>(Clock::now() - start).count();
  ordered_json result = setup_of(options, std::ssize(outcomes));
  report.add_to(result, outcomes, duration, options.save_detailed);
  size_t num_errors = 0;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.ok() && num_errors++ < kMaxNumErrors) {
      print_message("nanovllm: a request failed: {}\n", shown(outcome));
    }
  }
  if (options.save_result) save(options, result);
  if (options.json) {
    fmt::print("{}\n", text_of(result));
  } else {
    report.print(result);
  }
  return num_errors > 0 ? kExitSomeFailed : kExitOk;
}

}  // namespace

Command add_bench_serve(CLI::App& app) {
  auto options = std::make_shared<ServeOptions>();
  ServeOptions& o = *options;
  if (const char* key = std::getenv("OPENAI_API_KEY")) o.api_key = key;
  app.option_defaults()->always_capture_default();
  const auto number = [&](const char* flag, int& value, const char* help, int least = 1) {
    return app.add_option(flag, value, help)->check(at_least(least));
  };
  app.add_option("--backend", o.backend, "openai (completions of token ids) or openai-chat")
      ->check(CLI::IsMember({"openai", "openai-chat"}));
  app.add_option("--base-url", o.base_url, "http://HOST:PORT[/v1], instead of --host and --port");
  app.add_option("--host", o.host, "of the server");
  number("--port", o.port, "of the server");
  app.add_option("--endpoint", o.endpoint,
                 "path (default: /v1/completions, or /v1/chat/completions)");
  app.add_option("--model", o.model, "name to ask for (default: the server's first)");
  app.add_option("--api-key", o.api_key, "key to send (default: OPENAI_API_KEY)")->default_str("");
  app.add_option("--dataset-name", o.dataset, "random, or nano-vllm: the lengths of its bench.py")
      ->check(CLI::IsMember({"random", "nano-vllm"}));
  number("--num-prompts", o.num_prompts, "requests (default: 1000; 256 of nano-vllm)")
      ->default_str("");
  number("--random-input-len", o.input_len,
         "prompt tokens; in chats words, of a token or two each");
  number("--random-output-len", o.output_len, "output tokens, at most");
  app.add_option("--request-rate", o.request_rate, "arrivals a second; inf = all at once");
  app.add_option("--burstiness", o.burstiness,
                 "1 = Poisson arrivals; less = burstier, more = more even")
      ->check(CLI::PositiveNumber);
  number("--max-concurrency", o.max_concurrency,
         "requests at once; others wait here (default: any number)")
      ->default_str("");
  app.add_flag("--ignore-eos", o.ignore_eos, "outputs have all of their tokens");
  app.add_option("--temperature", o.temperature, "(default: the server's)")->default_str("");
  app.add_option("--extra-body", o.extra_body, "JSON object with more fields of requests");
  app.add_option("--goodput", o.goodput,
                 "requests that count as good: ttft:MS, tpot:MS, e2el:MS, one or several")
      ->expected(1, 3)
      ->default_str("");
  app.add_option("--percentile-metrics", o.percentile_metrics, "which are shown");
  app.add_option("--metric-percentiles", o.percentiles, "which are shown");
  number("--num-warmups", o.num_warmups, "requests before, at least one");
  number("--ready-check-timeout-sec", o.ready_timeout,
         "seconds to wait for a server that does not answer yet", 0);
  add_seed(app, "--seed", o.seed, "of prompts and arrivals");
  app.add_flag("--save-result", o.save_result, "write a JSON file with vLLM's keys");
  app.add_flag("--save-detailed", o.save_detailed, "with the times of every request");
  app.add_option("--result-dir", o.result_dir, "folder of that file");
  app.add_option("--result-filename", o.result_filename,
                 "its name (default: made of backend, rate, model and date)");
  app.add_flag("--json", o.json, "that JSON on standard output instead of the table");
  app.add_flag("-q,--quiet", o.quiet, "no progress display");
  app.footer("Exit status: 0 all answered, 1 error, 2 usage, 3 some requests failed.");
  return [options] {
    try {
      return bench_serve(*options);
    } catch (const Interruption&) {
      print_message("nanovllm: interrupted; a benchmark has no partial result\n");
      return kExitInterrupted;
    }
  };
}

}  // namespace nanovllm::cli
