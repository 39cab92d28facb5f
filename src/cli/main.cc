// The nanovllm binary: parses the command line and turns errors into sentences and exit codes.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "base/message.h"
#include "base/process_limits.h"
#include "base/version.h"
#include "cli/commands.h"
#include "cli/file_fault.h"
#include "cli/help.h"
#include "cli/model_option.h"
#include "cli/nearest_name.h"
#include "cli/terminal.h"
#include "cli/typed_words.h"
#include "io/json.h"
#include "nanovllm/error.h"
#include "server/config_file.h"
#include "server/log.h"

namespace {

using namespace nanovllm::cli;  // NOLINT(google-build-using-namespace)

int run_command(const Command& command) {
  try {
    const int status = command();
    flush_standard_output();
    return status;
  } catch (const nanovllm::Error& error) {
    print_error(error.what());
    return exit_status_of(error);
  } catch (const PullInterrupted&) {
    print_error("interrupted; what has come is kept, and the next pull goes on from there");
    return kExitInterrupted;
  } catch (const LoadInterrupted&) {
    print_error("interrupted");
    return kExitInterrupted;
  } catch (const std::bad_alloc&) {
    print_error(fmt::format(
        "out of memory{}: use a smaller model, or lower --kv-cache-memory, --max-model-len, "
        "--max-num-seqs or --max-num-batched-tokens",
        nanovllm::memory_limits()));
  } catch (const std::system_error& error) {  // fmt::print's, when it can't write
    errno = error.code().value();
    end_if_nobody_reads();
    print_error(error.what());
  } catch (const std::exception& error) {
    print_error(fmt::format("internal error: {}", error.what()));
  }
  return kExitError;
}

// A program that is started with stderr closed would otherwise get its number for a file that it
// opens, and its messages there. What is read from or written to the other two fails as before.
void keep_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) != -1) continue;
    open("/dev/null", stream == STDOUT_FILENO ? O_RDONLY : O_WRONLY);  // the least number is free
  }
}

// What is wrong with the word that stands where a command should, or with an option that stands
// before it; empty = there is none such. CLI11 says only that a command is missing or which words
// are left, the last one first.
std::string fault_of_command(const CLI::App& app) {
  const CLI::App* parent = &app;
  while (parent->get_require_subcommand_min() > 0) {
    const std::vector<std::string> words = parent->remaining(false);
    if (!words.empty()) {
      const std::string& word = words.front();
      const bool is_option = word.starts_with('-');
      std::vector<std::string> commands;
      for (const CLI::App* command : parent->get_subcommands(nullptr)) {
        commands.push_back(command->get_name());
      }
      const std::string near = is_option ? "" : nearest_name(word, commands);
      return fmt::format(
          "there is no {} \"{}\"; {}", is_option ? "option before a command" : "command", word,
          near.empty() ? "--help lists those there are" : fmt::format("did you mean {}?", near));
    }
    if (parent->get_subcommands().empty()) break;
    parent = parent->get_subcommands().front();
  }
  return "";
}

// Help, the version, or what is wrong with the command line. Returns the exit status.
int print_outcome(const CLI::App& app, const CLI::Error& outcome) {
  std::ostringstream help, fault;
  const int code = app.exit(outcome, help, fault);
  fmt::print("{}", help.str());
  nanovllm::print_message("{}", fault.str());
  return code == 0 ? kExitOk : kExitUsage;
}

// The exit status where nothing is to be run: what was asked for, or what is wrong, was told.
std::optional<int> parse(CLI::App& app, const std::vector<std::string>& words) {
  try {
    std::vector<std::string> rest(words.rbegin(), words.rend());
    app.parse(std::move(rest));
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    const std::string fault = fault_of_command(app);
    if (error.get_exit_code() != 0 && !fault.empty()) {
      print_error(fault);
      return kExitUsage;
    }
    return run_command([&] { return print_outcome(app, error); });
  }
}

// What was taken otherwise than it was typed, in the server's log or where others speak.
void print_notes(const CLI::App& command, const std::vector<std::string>& notes) {
  const CLI::Option* quiet = command.get_option_no_throw("--quiet");
  if (quiet != nullptr && !quiet->empty()) return;
  for (const std::string& note : notes) {
    if (command.get_name() == "serve") {
      nanovllm::server::print_log("{}", note);
    } else {
      nanovllm::print_message("nanovllm: {}\n", note);
    }
  }
}

constexpr const char* kAbout =
    "nanovllm: serves large language models, many requests at once.\n\n"
    "  nanovllm generate models/demo -p \"Once upon a time\"   continue a text\n"
    "  nanovllm generate MODEL --input requests.jsonl        serve a file of requests\n"
    "  nanovllm run-batch -i IN -o OUT --model MODEL         OpenAI's batch files\n"
    "  nanovllm chat MODEL                                   talk to it\n"
    "  nanovllm serve MODEL                                  an OpenAI server\n"
    "  nanovllm bench throughput MODEL                       measure it\n\n"
    "MODEL is a folder with config.json, *.safetensors and tokenizer.json, a GGUF file, or a "
    "name on the Hugging Face hub such as Qwen/Qwen3-0.6B, which is pulled when it is first "
    "used.";

// The command line behind the binary's name, with what a file of flags adds to it.
std::vector<std::string> command_line(int argc, char** argv) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (words.empty() || words.front() != "serve") return words;
  words = nanovllm::server::with_config_file({words.begin() + 1, words.end()});
  words.insert(words.begin(), "serve");
  return words;
}

}  // namespace

int main(int argc, char** argv) {
  keep_standard_streams();
  let_writes_fail();
  explain_file_faults();
  std::vector<std::string> words;
  std::string config_file;  // where some of them are from
  const auto read_command_line = [&] {
    words = command_line(argc, argv);
    if (!words.empty() && words.front() == "serve") {
      config_file = nanovllm::printable(nanovllm::server::path_of_config({argv + 1, argv + argc}));
    }
    return kExitOk;
  };
  if (const int status = run_command(read_command_line); status != kExitOk) return status;
  CLI::App app{kAbout, "nanovllm"};
  app.set_help_flag("-h,--help", "print this help");
  app.set_version_flag("--version", fmt::format("nanovllm {}", nanovllm::kVersion));
  app.require_subcommand(1);
  // As with vLLM; what may be given several times adds up all the same.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  const std::string from_file =
      config_file.empty() ? "" : fmt::format("; flags come from {}, too", config_file);
  app.failure_message([&](const CLI::App*, const CLI::Error& error) {
    return fmt::format("nanovllm: {}{}\nRun with --help for more information.\n", error.what(),
                       from_file);
  });
  app.formatter_fn([](const CLI::App* command, const std::string& name, CLI::AppFormatMode) {
    return help_text(*command, name);
  });
  app.footer(
      "Exit status: 0 done, 1 error, 2 wrong usage, 3 some requests refused or aborted, 130 "
      "interrupted.");

  std::map<const CLI::App*, Command> commands;
  const auto declare = [&](CLI::App& parent, const char* name, const char* help,
                           const std::function<Command(CLI::App&)>& add) {
    CLI::App* command = parent.add_subcommand(name, help);
    commands[command] = add(*command);
  };
  declare(app, "generate", "continue prompts, from the command line or a file", add_generate);
  declare(app, "run-batch", "answer a file of requests in OpenAI's batch format",
          [&](CLI::App& command) { return add_run_batch(command, words); });
  declare(app, "chat", "talk to a model in the terminal", add_chat);
  CLI::App* bench = app.add_subcommand("bench", "measure speed");
  bench->require_subcommand(1);
  declare(*bench, "throughput", "many requests at once (default: nano-vLLM's own workload)",
          add_bench_throughput);
  declare(*bench, "latency", "one batch, step by step", add_bench_latency);
  declare(*bench, "serve", "a running server, as vllm bench serve measures it", add_bench_serve);
  declare(app, "serve", "an OpenAI-compatible server",
          [&](CLI::App& command) { return add_serve(command, words); });
  declare(app, "info", "what a model needs and what the engine would do with it", add_info);
  declare(app, "tokenize", "text to token ids, or ids to text", add_tokenize);
  declare(app, "quantize", "write a model in fewer bits", add_quantize);
  declare(app, "pull", "fetch a model from the hub, or what is new in it", add_pull);
  declare(app, "list", "the models that were pulled", add_list);
  declare(app, "rm", "remove models that were pulled", add_remove);

  TypedWords typed = read_typed(app, words);
  if (!typed.fault.empty()) {
    print_error(typed.fault + from_file);
    return kExitUsage;
  }
  words = std::move(typed.words);
  if (const auto status = parse(app, words)) return *status;
  for (const auto& [command, run] : commands) {
    if (!command->parsed()) continue;
    print_notes(*command, typed.notes);
    return run_command(run);
  }
  return kExitUsage;
}
