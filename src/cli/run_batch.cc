// `nanovllm run-batch`: files in OpenAI's batch format, and a filter for programs that have such
// lines.
#include <memory>
#include <utility>

#include "base/check.h"
#include "cli/batch_run.h"
#include "cli/commands.h"
#include "cli/option_group.h"
#include "cli/options.h"
#include "cli/output_check.h"
#include "server/log.h"

namespace nanovllm::cli {
namespace {

constexpr const char* kFooter =
    "A line of the input is a request to the server, as OpenAI's batches have it:\n"
    "  {\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\",\n"
    "   \"body\": {\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}}\n"
    "all in one line. url is what makes an answer of a body: /v1/chat/completions, "
    "/v1/completions, /v1/responses, /v1/messages, /v1/messages/count_tokens, /tokenize or "
    "/detokenize; the body has every field that the server takes there, but stream.\n"
    "A line of the output is\n"
    "  {\"id\": \"batch_req_0\", \"custom_id\": \"a\", \"response\": {\"status_code\": 200,\n"
    "   \"request_id\": \"...\", \"body\": {...}}, \"error\": null}\n"
    "They come in the order in which answers are complete; custom_id says which is which, and the "
    "number in id, which counts lines that are not blank from 0. What the server refuses has its "
    "status and its error for a body, and error holds code and message; of a line that is no "
    "request, response is null.\n"
    "After a Ctrl-C, or when the run was killed or the disk full, the same command with --resume "
    "answers the rest: each line once. The input must be the same, but may have grown.\n"
    "With -i - -o - it is a filter: each answer is written when it is complete, until the input "
    "ends. Who writes lines must read answers too: only so many lines are taken ahead as keep the "
    "engines busy, twice --max-num-seqs for each.\n"
    "Exit status: 0 all answered, 1 error (also where the engine is lost), 2 usage, 3 some lines "
    "have an error for an answer, those of resumed runs included, 130 interrupted.";

void check_files(const RunBatchOptions& options) {
  if (options.resume && options.output == "-") {
    throw_error(ErrorCode::kInvalidArgument,
                "--resume reads what --output-file names, which must be a file, not standard "
                "output");
  }
  const UsedFile input = {options.input == "-" ? standard_input_path() : options.input,
                          "--input-file reads"};
  const UsedFile chat_template = {options.server.chat_template, "--chat-template reads"};
  check_output("--output-file", options.output, options.model.path, {input, chat_template});
}

int find_and_run(RunBatchOptions& options) {
  options.server.engine.validate();
  options.server.fleet.seed = options.server.engine.seed;
  options.model.find(options.quiet);
  find_draft_model(options.server.engine, options.quiet);
  check_files(options);
  server::ServeOptions& server = options.server;
  server.model = options.model.path;
  if (server.served_model_names.empty()) server.served_model_names = {options.model.name};
  server.worker_arguments = worker_arguments(std::move(server.worker_arguments), server.model);
  return run_batch(options);
}

}  // namespace

Command add_run_batch(CLI::App& app, const std::vector<std::string>& words) {
  auto options = std::make_shared<RunBatchOptions>();
  options->model.add_to(app);
  const auto is_given = CLI::Validator(fault_of_empty, "");
  app.add_option("-i,--input-file", options->input,
                 "file of requests, a JSON line each; - reads standard input")
      ->required()
      ->check(is_given);
  app.add_option("-o,--output-file", options->output,
                 "write answers here, in place of what the file has unless --resume is there; - is "
                 "standard output")
      ->required()
      ->check(is_given);
  app.add_flag("--resume", options->resume,
               "go on where an earlier run ended: answer what the output file does not yet");
  app.add_flag("-q,--quiet", options->quiet, "no progress display");
  Group workers(app, "Options");
  add_fleet_options(workers, options->server.fleet);
  Group api(app, "API");
  add_answer_options(api, options->server);
  options->worker.add_to(app);
  add_engine_options(app, options->server.engine);
  app.footer(kFooter);
  return [options, &words] {
    if (options->worker.is_worker()) {
      server::print_without_waiting();
      return options->worker.run(options->server);
    }
    options->server.worker_arguments = words;
    return find_and_run(*options);
  };
}

}  // namespace nanovllm::cli
