// `nanovllm generate`: prompts from the command line, a file or standard input.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "api/json.h"
#include "base/check.h"
#include "base/message.h"
#include "cli/abort_reason.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/earlier_results.h"
#include "cli/logprob_table.h"
#include "cli/model_option.h"
#include "cli/options.h"
#include "cli/output_check.h"
#include "cli/output_lock.h"
#include "cli/request_source.h"
#include "cli/result_reader.h"
#include "cli/result_sink.h"
#include "cli/step_log.h"
#include "cli/terminal.h"
#include "cli/terminal_text.h"
#include "engine/request.h"
#include "engine/structured_outputs.h"
#include "nanovllm/llm_engine.h"
#include "nanovllm/prepare.h"

namespace nanovllm::cli {
namespace {

constexpr int kMaxNumPrompts = 1 << 20;  // behind one -p

struct GenerateOptions {
  ModelOption model;
  std::vector<std::string> prompts;
  std::string input;
  std::string output;
  bool resume = false;
  bool json = false;
  bool quiet = false;
  bool log_steps = false;
  std::string chat_template;
  EngineConfig engine;
  SamplingOptions sampling;
};

class Generation {
 public:
  explicit Generation(const GenerateOptions& options)
      : options_(options),
        sink_(options.output),
        lock_(options.output),
        earlier_(options.resume ? options.output : "", generated_lines()),
        source_(options.prompts, options.input, earlier_, defaults_),
        template_(options.chat_template.empty()
                      ? nullptr
                      : load_template(options.model.path, options.chat_template, false)),
        engine_(load_engine(options.model.path, options.engine)),
        defaults_(options.sampling.apply_to(engine_.default_sampling_params())),
        json_(options.json || !options.input.empty() || !options.output.empty()),
        streaming_(!json_ && source_.total() == 1 && defaults_.n == 1 && !defaults_.logprobs &&
                   !defaults_.prompt_logprobs && is_terminal(sink_.stream())),
        total_(options.quiet ? 0 : source_.total()),
        progress_("Generating", total_, !options.quiet && !streaming_) {
    defaults_.output_kind = streaming_ ? RequestOutputKind::kDelta : RequestOutputKind::kFinalOnly;
  }

  int run() {
    earlier_.tidy(lock_);
    tell_what_goes();
    sink_.open(options_.resume);
    lock_.keep_file();
    const InterruptGuard guard(InterruptGuard::Again::kIsNotNeeded);
    while (true) {
      if (!interrupted_) feed();
      if (InterruptGuard::interrupted() && !interrupted_) {
        interrupted_ = true;
        for (const auto& [id, origin] : origin_of_) engine_.abort_request(id);
      }
      if (!engine_.is_finished()) {
        handle(engine_.step());
        if (options_.log_steps) {
          progress_.clear();
          log_step(num_steps_++, engine_);
        }
        count_tokens();
        progress_.update(num_done_ + num_failed_, share(), engine_.last_step());
      } else if (interrupted_ || source_.at_end()) {
        break;
      }
    }
    progress_.finish(num_done_ + num_failed_, share());
    engine_.finish_trace();
    if (interrupted_) {
      const int64_t begun = num_done_ + num_failed_ + num_cut_short_;
      // A file may have grown meanwhile.
      print_message("nanovllm: interrupted: {} done, {}{} cut short, {}\n", num_done_,
                    num_failed_ > 0 ? fmt::format("{} failed, ", num_failed_) : "", num_cut_short_,
                    total_ >= begun && total_ > 0 ? fmt::format("{} not begun", total_ - begun)
                                                  : "no others begun");
      return kExitInterrupted;
    }
    if (num_done_ + num_failed_ == 0 && !options_.quiet) {
      print_message("nanovllm: {}\n", source_.nothing_to_do());
    }
    if (num_cut_off_ > 0 && !json_ && !options_.quiet) {
      print_message("nanovllm: {} of {} reached --max-tokens or --max-model-len and {} cut off\n",
                    num_cut_off_, counted(num_texts_, "text"), num_cut_off_ == 1 ? "was" : "were");
    }
    if (earlier_.num_failed() > 0) {
      print_message("nanovllm: {} of an earlier run {} refused or aborted; {} says why\n",
                    counted(earlier_.num_failed(), "request"),
                    earlier_.num_failed() == 1 ? "was" : "were", options_.output);
    }
    return num_failed_ + earlier_.num_failed() > 0 ? kExitSomeFailed : kExitOk;
  }

 private:
  void tell_what_goes() const {
    if (!sink_.has_content() || options_.resume || options_.quiet) return;
    print_message("nanovllm: {} is written anew{}\n", options_.output,
                  options_.input.empty() ? "" : "; --resume would go on behind what it has");
  }

  // Keeps twice as many requests in the engine as a step can hold, so that it never starves and a
  // file of any length is never held in memory. Requests that are there never wait for those that
  // are not: whoever writes them may wait for the first answer. Nor do they wait long while those
  // that an earlier run answered are passed over.
  void feed() {
    constexpr int kMostPassedOver = 100;
    int num_passed_over = 0;
    const size_t wanted = 2 * static_cast<size_t>(options_.engine.max_num_seqs);
    while (!source_.at_end() && origin_of_.size() < wanted && !InterruptGuard::interrupted()) {
      if (num_passed_over >= kMostPassedOver && !engine_.is_finished()) return;
      try {
        auto request = source_.next(engine_.is_finished());
        if (!request) return;
        if (source_.is_answered()) {
          source_.check_answered();
          ++num_passed_over;
          continue;
        }
        // By its place, so that a run that was resumed draws as one that was not.
        auto& seed = request->params.seed;
        if (!seed) {
          seed = default_seed(options_.engine.seed, static_cast<uint64_t>(source_.index()));
        }
        const uint64_t id = add(*request);
        const int longest = std::min(request->params.max_tokens, engine_.info().max_model_len);
        origin_of_[id] = {source_.index(), source_.custom_id(), source_.place(),
                          1.0 * longest * request->params.n};
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kIo) throw;
        if (source_.is_answered()) {
          source_.check_answered();
          ++num_passed_over;
          continue;
        }
        fail(source_.place(), error.what());
        write_refusal(error.what());
      }
    }
  }

  uint64_t add(const RequestLine& request) {
    if (request.messages.is_null()) return engine_.add_request(request.prompt, request.params);
    std::vector<int32_t> ids =
        engine_.preparer(chat_template())
            .token_ids_of_chat(request.messages, request.tools, request.chat_template_kwargs);
    return engine_.add_request(std::move(ids), request.params);
  }

  // The model's is read once, also where it has none that can be used.
  const ChatTemplate* chat_template() {
    if (template_error_) throw Error(*template_error_);
    try {
      if (template_ == nullptr) template_ = load_template(options_.model.path, "", false);
    } catch (const Error& error) {
      template_error_ = error;
      throw;
    }
    return template_.get();
  }

  void count_tokens() {
    if (total_ == 0) return;  // nobody asks
    for (const ScheduledRequest& request : engine_.last_schedule()) {
      const auto found = origin_of_.find(request.request_id);
      if (request.sampled && found != origin_of_.end()) ++found->second.num_tokens;
    }
  }

  // Of the work: requests that are done, and of the others what they have of the tokens that they
  // may have.
  double share() const {
    if (total_ == 0) return 0;
    auto done = static_cast<double>(num_done_ + num_failed_);
    for (const auto& [id, origin] : origin_of_) done += origin.num_tokens / origin.max_tokens;
    return done / static_cast<double>(total_);
  }

  void fail(const std::string& place, const std::string& reason) {
    ++num_failed_;
    progress_.clear();
    print_message("nanovllm: {}: {}\n", place, reason);
  }

  void write_refusal(const std::string& reason) {
    if (json_) {
      nlohmann::ordered_json line = {{"index", source_.index()}};
      if (source_.custom_id()) line["custom_id"] = *source_.custom_id();
      line["error"] = reason;
      write_line(line);
    } else {
      print_in_order(source_.index(), "");
    }
  }

  void write_line(const nlohmann::ordered_json& line) {
    write(shown(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) + "\n");
  }

  std::string shown(std::string_view text) const { return shown_on(sink_.stream(), text); }

  void write(const std::string& text) {
    progress_.clear_for(sink_.stream());
    sink_.write(text);
  }

  void handle(const std::vector<RequestOutput>& outputs) {
    for (const RequestOutput& output : outputs) {
      if (streaming_) stream(output);
      if (!output.finished) continue;
      const Origin origin = origin_of_.at(output.request_id);
      origin_of_.erase(output.request_id);
      const Progressed progressed = how_far(output);
      if (progressed == Progressed::kNotAtAll) {
        if (!json_) print_in_order(origin.index, "");
        continue;
      }
      if (progressed == Progressed::kPartly && options_.resume) {  // it comes whole later
        ++num_cut_short_;
        continue;
      }
      if (const std::string* reason = first_abort_reason(output)) {
        fail(origin.place, "aborted: " + *reason);
      } else {
        ++(progressed == Progressed::kPartly ? num_cut_short_ : num_done_);
      }
      count_texts(output);
      if (json_) {
        write_line(result_line(origin.index, output, origin.custom_id));
      } else if (!streaming_) {
        std::string text = shown(prompt_logprob_table(output));
        for (const CompletionOutput& completion : output.outputs) {
          if (output.outputs.size() > 1) {
            text += fmt::format("[{}/{}] ", completion.index + 1, output.outputs.size());
          }
          text += fmt::format("{}{}\n\n", bold(sink_.stream(), shown(output.prompt)),
                              shown(completion.text));
          const std::string table = logprob_table(completion);
          if (!table.empty()) text += shown(table) + "\n";
        }
        print_in_order(origin.index, std::move(text));
      }
    }
  }

  static const std::string* first_abort_reason(const RequestOutput& output) {
    for (const CompletionOutput& completion : output.outputs) {
      if (const std::string* reason = abort_reason(completion)) return reason;
    }
    return nullptr;
  }

  void count_texts(const RequestOutput& output) {
    for (const CompletionOutput& completion : output.outputs) {
      ++num_texts_;
      if (completion.finish_reason == FinishReason::kLength) ++num_cut_off_;
    }
  }

  enum class Progressed { kNotAtAll, kPartly, kToTheEnd };

  // What a Ctrl-C left of a request; without one all come to their ends.
  Progressed how_far(const RequestOutput& output) const {
    if (!interrupted_) return Progressed::kToTheEnd;
    const auto cut = [](const CompletionOutput& completion) {
      return completion.finish_reason == FinishReason::kAbort;
    };
    const auto empty = [](const CompletionOutput& completion) {
      return completion.token_ids.empty();
    };
    if (std::ranges::none_of(output.outputs, cut)) return Progressed::kToTheEnd;
    // A streamed one's output holds only what is new, and something had been shown.
    return !streaming_ && std::ranges::all_of(output.outputs, empty) ? Progressed::kNotAtAll
                                                                     : Progressed::kPartly;
  }

  void stream(const RequestOutput& output) {
    if (!prompt_shown_) sink_.write(bold(stdout, shown(output.prompt)));
    prompt_shown_ = true;
    sink_.write(shown(output.outputs.front().text));
    if (output.finished) sink_.write("\n");
  }

  // People read prompts in the order they gave them.
  void print_in_order(int64_t index, std::string text) {
    finished_[index] = std::move(text);
    for (auto it = finished_.begin(); it != finished_.end() && it->first == next_printed_;
         it = finished_.erase(it), ++next_printed_) {
      if (!it->second.empty()) write(it->second);
    }
  }

  const GenerateOptions& options_;
  // What can't be read or written is told before the model is loaded.
  ResultSink sink_;
  OutputLock lock_;
  EarlierResults earlier_;
  RequestSource source_;
  std::unique_ptr<ChatTemplate> template_;  // null until a request needs the model's
  std::optional<Error> template_error_;     // of the model's
  LLMEngine engine_;
  SamplingParams defaults_;
  bool json_;
  bool streaming_;  // one text prompt on a terminal: its tokens appear as they come
  int64_t total_;   // requests; 0 = unknown
  Progress progress_;
  struct Origin {
    int64_t index;
    std::optional<std::string> custom_id;
    std::string place;
    double max_tokens = 1;  // of all its completions
    double num_tokens = 0;
  };
  std::map<uint64_t, Origin> origin_of_;  // by request id
  std::map<int64_t, std::string> finished_;
  int64_t next_printed_ = 0;
  int64_t num_done_ = 0;
  int64_t num_cut_short_ = 0;  // by a Ctrl-C
  int64_t num_steps_ = 0;
  int64_t num_failed_ = 0;  // refused, or aborted by the engine
  int64_t num_texts_ = 0;
  int64_t num_cut_off_ = 0;    // texts that came to no end of their own
  bool prompt_shown_ = false;  // while streaming
  bool interrupted_ = false;
};

// Flags are refused before anything is loaded, whatever the model's own defaults are.
void check_sampling(const SamplingOptions& flags) {
  SamplingParams params;
  params.max_tokens = kAsManyAsFit;  // the model's may be more than ours
  params = flags.apply_to(params);
  params.validate();
  if (params.structured_outputs) check_structured_outputs(*params.structured_outputs);
}

void check_files(const GenerateOptions& options) {
  if (options.resume && options.output == "-") {
    throw_error(ErrorCode::kInvalidArgument,
                "--resume reads what --output names, which must be a file, not standard output");
  }
  const UsedFile input = {options.input == "-" ? standard_input_path() : options.input,
                          "--input reads"};
  const UsedFile chat_template = {options.chat_template, "--chat-template reads"};
  check_output("--output", options.output, options.model.path, {input, chat_template});
  check_output("--trace", options.engine.trace_file, options.model.path,
               {input, chat_template, {options.output, "--output writes"}});
}

}  // namespace

Command add_generate(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  options->model.add_to(app);
  auto* prompt = app.add_option("-p,--prompt", options->prompts,
                                "text to continue, or several; MODEL goes before it")
                     ->expected(1, kMaxNumPrompts)
                     ->allow_extra_args(false);  // else CLI11 takes "[a, b]" for two texts
  auto* input =
      app.add_option(
             "--input", options->input,
             "file of requests, as JSON lines such as {\"prompt\": \"Hi\"}; - reads standard "
             "input")
          ->excludes(prompt);
  auto* output =
      app.add_option("--output", options->output,
                     "write results here as JSON lines, in place of what the file has unless "
                     "--resume is there (default: standard output; so does -)");
  app.add_flag("--resume", options->resume,
               "go on where an earlier run ended: answer what OUTPUT does not yet")
      ->needs(input)
      ->needs(output);
  app.add_option("--chat-template", options->chat_template,
                 "Jinja file to use for messages instead of the model's own template");
  app.add_flag("--json", options->json, "results as JSON lines, for prompts given with -p too");
  app.add_flag("--log-steps", options->log_steps, "say on stderr what each step computed");
  app.add_flag("-q,--quiet", options->quiet,
               "no progress display, no remark on texts that were cut off");
  options->sampling.add_to(app, std::to_string(SamplingParams().max_tokens), false);
  add_engine_options(app, options->engine);
  add_trace_option(app, options->engine);
  app.footer(
      "Request lines hold \"prompt\" (a text), \"prompt_token_ids\" (a list) or \"messages\" (a "
      "chat "
      "as the OpenAI API has it, which the model's chat template makes a prompt of; with \"tools\" "
      "and \"chat_template_kwargs\" where it has them), and optionally \"sampling_params\", a "
      "\"response_format\" as the OpenAI API has it, and a \"custom_id\", a text that comes back "
      "in "
      "the result.\n"
      "Result lines hold index (which request, from 0), custom_id, text, token_ids, finish_reason "
      "(stop, length, abort), stop_reason (the stop text, the stop token's id or why the engine "
      "aborted it, where there is one), num_prompt_tokens and num_cached_tokens, and logprobs and "
      "prompt_logprobs where asked for; they come in the order in which requests finish. With n > "
      "1, the list \"outputs\" holds index, text, token_ids, finish_reason, stop_reason and "
      "logprobs "
      "of each completion instead. Of a refused request the line holds index, custom_id and error. "
      "A position of logprobs is an object token id -> {logprob, rank, decoded_token}, the drawn "
      "token first.\n"
      "Prompts given with -p are answered in plain text, with log-probabilities as a table and a "
      "number before each of several completions; the text of a single one appears as it comes "
      "where the output is a terminal. Progress is shown where stderr is one.\n"
      "Ctrl-C ends cleanly with what is done so far, and at once where a step takes long: then "
      "without what was running. After that, or when the run was killed, the same command with "
      "--resume answers the rest: each request once, in OUTPUT. INPUT must be the same, but may "
      "have grown.\n"
      "Exit status: 0 all served, 1 error, 2 usage, 3 some requests refused or aborted by the "
      "engine, those of resumed runs included, 130 interrupted.");
  return [options] {
    if (options->prompts.empty() && options->input.empty()) {
      throw_error(ErrorCode::kInvalidArgument,
                  "nothing to do: give prompts with -p TEXT, or a file with --input");
    }
    check_sampling(options->sampling);
    options->engine.validate();
    options->model.find(options->quiet);
    find_draft_model(options->engine, options->quiet);
    check_files(*options);
    return Generation(*options).run();
  };
}

}  // namespace nanovllm::cli
