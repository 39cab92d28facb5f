#include "cli/server_options.h"

#include <sched.h>

#include <algorithm>

#include "cli/model_option.h"
#include "server/fleet/fleet.h"
#include "server/log.h"
#include "server/transcript/transcript_parser.h"

namespace nanovllm::cli {
namespace {

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

}  // namespace

void add_fleet_options(Group& group, server::FleetOptions& fleet) {
  group
      .add("--data-parallel-size", fleet.num_engines,
           "worker processes, 1 to 64, each with the whole model: GPUs of its own, or its share of "
           "the "
           "CPU threads")
      ->check(CLI::Range(1, server::kMaxNumEngines));
  group.add("--worker-timeout", fleet.worker_timeout,
            "a worker that has work and makes no progress for so long is started again; a step may "
            "take longer");
  group.add(
      "--worker-start-timeout", fleet.worker_start_timeout,
      "without a worker that is ready, or one whose loading advances, for so long the program "
      "ends with an error");
}

void add_answer_options(Group& group, server::ServeOptions& options) {
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
}

std::vector<std::string> worker_arguments(std::vector<std::string> words,
                                          const std::string& model) {
  words.insert(words.end(), {"--worker-model", model});
  return words;
}

void WorkerOptions::add_to(CLI::App& app) {
  app.add_option("--worker-fd", socket)->group("");
  app.add_option("--worker-index", index)->group("");
  app.add_option("--worker-model", model)->group("");
}

int WorkerOptions::run(const server::ServeOptions& options) const {
  server::begin_log();
  take_cpus(index, options.fleet.num_engines);
  EngineConfig config = options.engine;
  find_draft_model(config, true);  // by the name that the server was given
  return server::run_worker(socket, index, model, config);
}

}  // namespace nanovllm::cli
