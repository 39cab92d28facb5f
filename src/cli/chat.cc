// `nanovllm chat`: a conversation in the terminal.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "api/json.h"
#include "base/check.h"
#include "base/message.h"
#include "cli/abort_reason.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/line_reader.h"
#include "cli/model_option.h"
#include "cli/options.h"
#include "cli/output_check.h"
#include "cli/params_text.h"
#include "cli/terminal.h"
#include "cli/terminal_text.h"
#include "engine/structured_outputs.h"
#include "io/file.h"
#include "io/json.h"
#include "nanovllm/llm_engine.h"
#include "nanovllm/prepare.h"

namespace nanovllm::cli {
namespace {

using nlohmann::ordered_json;

struct ChatOptions {
  ModelOption model;
  std::string system;
  std::optional<std::string> message;
  std::string chat_template;
  std::string template_kwargs = "{}";
  std::string tools;
  EngineConfig engine;
  SamplingOptions sampling;
};

constexpr const char* kSpaces = " \t\n";
constexpr const char* kHelp =
    "  /system TEXT   start over with this system message (without TEXT: none)\n"
    "  /clear         forget the conversation, but not the system message\n"
    "  /params        show the sampling parameters; /params temperature=0.5 top_k=20\n"
    "                 sets some\n"
    "  /retry         answer the last message again\n"
    "  /save FILE     keep the conversation, as a JSON list of messages\n"
    "  /load FILE     go on with a conversation that was kept\n"
    "  /help          this list\n"
    "  /quit          leave (Ctrl-D too)\n"
    "  Tab            completes a command\n"
    "  Ctrl-C         stop the answer; at the prompt, drop what was typed\n"
    "  A \\ at a line's end continues the message on the next line; one in \"\"\" has\n"
    "  as many lines as it needs and is no command. What is pasted is one message.\n";

void check_outputs(const char* flag, const std::string& path, const ChatOptions& options) {
  const std::string& trace = options.engine.trace_file;
  check_output(flag, path, options.model.path,
               {{options.chat_template, "--chat-template reads"},
                {options.tools, "--tools reads"},
                {standard_input_path(), "standard input reads"},
                {std::string_view(flag) == "--trace" ? "" : trace, "--trace writes"}});
}

ordered_json load_tools(const std::string& path) {
  if (path.empty()) return nullptr;
  auto tools = parse_ordered_json(read_text_file(path), path);
  if (!tools.is_array()) {
    throw_error(ErrorCode::kInvalidArgument, "{} must be a JSON list of tools", path);
  }
  return tools;
}

ordered_json parse_kwargs(const std::string& text) {
  ordered_json object;
  try {
    object = parse_ordered_json(text, "--chat-template-kwargs");
  } catch (const Error&) {
    // No object, then.
  }
  if (!object.is_object()) {
    throw_error(ErrorCode::kInvalidArgument,
                "--chat-template-kwargs wants a JSON object such as "
                "'{{\"enable_thinking\": false}}', got {}",
                printable(text));
  }
  return object;
}

void check(const SamplingParams& params) {
  params.validate();
  if (params.structured_outputs) check_structured_outputs(*params.structured_outputs);
  if (params.n != 1 || params.logprobs || params.prompt_logprobs) {
    throw_error(ErrorCode::kInvalidArgument,
                "a chat shows one answer and no log-probabilities; use generate for n, logprobs "
                "and prompt_logprobs");
  }
}

class Chat {
 public:
  explicit Chat(const ChatOptions& options)
      : options_(options),
        template_(load_template(options.model.path, options.chat_template, !options.tools.empty())),
        tools_(load_tools(options.tools)),
        kwargs_(parse_kwargs(options.template_kwargs)),
        engine_(load_engine(options.model.path, options.engine)),
        room_(engine_.info().max_num_tokens()) {
    SamplingParams defaults = engine_.default_sampling_params();
    defaults.max_tokens = room_;
    params_ = options.sampling.apply_to(defaults);
    check(params_);
    temperature_source_ = engine_.info().default_temperature_source;
    if (temperature_source_.empty()) temperature_source_ = "the default, as the model names none";
    if (options.sampling.sets_temperature()) temperature_source_ = "--temperature";
    clear(options.system);
  }

  int run() {
    use_utf8();
    const int status = talk();
    engine_.finish_trace();
    return status;
  }

 private:
  int talk() {
    if (options_.message) return answer_once();
    LineReader reader("> ", {"/clear", "/exit", "/help", "/load", "/params", "/quit", "/retry",
                             "/save", "/system"});
    if (reader.interactive()) {
      stay_.emplace(InterruptGuard::Again::kMeansNothing);
      fmt::print("{} on {}, {}. /help lists the commands, Ctrl-D leaves.\n",
                 bold(stdout, options_.model.name), engine_.info().device, temperature_text());
    }
    while (true) {
      try {
        const auto input = reader.read();
        if (!input || !obey(*input)) break;
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kInternal || error.code() == ErrorCode::kIo) throw;
        print_message("{}\n", colored(stderr, shown_on(stderr, error.what()), 1));
        some_failed_ = true;
      }
      if (!reader.interactive() && InterruptGuard::interrupted()) return kExitInterrupted;
    }
    return some_failed_ && !reader.interactive() ? kExitSomeFailed : kExitOk;
  }

  // What a template refuses is an error, not a wrong use of the command.
  int answer_once() {
    try {
      if (!answer(*options_.message)) return kExitInterrupted;
      return some_failed_ ? kExitError : kExitOk;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      print_error(error.what());
      return kExitError;
    }
  }

  void clear(const std::string& system) {
    system_ = system;
    messages_ = Messages::array();
    if (!system.empty()) messages_.push_back({{"role", "system"}, {"content", system}});
  }

  // False when it ends the talk.
  bool obey(const LineReader::Text& input) {
    if (input.text.find_first_not_of(kSpaces) == std::string::npos) return true;
    if (!input.verbatim && input.text.front() == '/') return command(input.text);
    answer(input.text);
    return true;
  }

  bool command(const std::string& line) {
    const auto space = line.find_first_of(kSpaces);
    const std::string name = line.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
    const auto is = [&](const char* one) {
      if (name != one) return false;
      if (rest.find_first_not_of(kSpaces) == std::string::npos) return true;
      throw_error(ErrorCode::kInvalidArgument, "{} takes nothing after it", name);
    };
    if (is("/quit") || is("/exit")) return false;
    if (is("/help")) {
      fmt::print("{}", kHelp);
    } else if (is("/clear")) {
      clear(system_);
      remark(system_.empty() ? "the conversation is forgotten"
                             : "the conversation is forgotten, the system message stays");
    } else if (name == "/system") {
      clear(rest);
      remark(rest.empty() ? "a new conversation without a system message"
                          : "a new conversation with this system message");
    } else if (name == "/params") {
      set_params(rest);
    } else if (is("/retry")) {
      retry();
    } else if (name == "/save") {
      const std::string path = path_in(name, rest);
      check_outputs("/save", path, options_);
      save_messages(messages_, path);
      remark(fmt::format("the conversation is in {}", path));
    } else if (name == "/load") {
      load(path_in(name, rest));
    } else if (line.find('\n') != std::string::npos) {
      answer(line);  // what was pasted may begin with a path, or with a comment of C
    } else {
      throw_error(ErrorCode::kInvalidArgument, "no such command: {}; /help lists them", name);
    }
    return true;
  }

  // To a person at the terminal; scripts know what they asked for.
  void remark(std::string_view text) const {
    if (stay_) print_message("{}\n", dim(stderr, fmt::format("[{}]", text)));
  }

  void set_params(const std::string& text) {
    SamplingParams changed = params_;
    std::string source = temperature_source_;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
      const auto equals = word.find('=');
      const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
      ordered_json parsed = value;
      if (ordered_json::accept(value)) parsed = parse_json(value, "/params");
      const std::string name = word.substr(0, equals);
      update_sampling_params(changed, {{name, parsed}});
      if (name == "temperature" && !parsed.is_null()) source = "/params";  // null changes nothing
    }
    check(changed);
    params_ = changed;
    temperature_source_ = source;
    fmt::print("{}\n{}\n", params_text(params_), temperature_text());
  }

  // What makes a chat sober or wild, and where to change it.
  std::string temperature_text() const {
    return fmt::format("temperature {} ({})", params_.temperature, temperature_source_);
  }

  static std::string path_in(const std::string& command, const std::string& rest) {
    const auto begin = rest.find_first_not_of(kSpaces);
    if (begin == std::string::npos) {
      throw_error(ErrorCode::kInvalidArgument, "{} wants the name of a file", command);
    }
    std::string path = rest.substr(begin, rest.find_last_not_of(kSpaces) + 1 - begin);
    if (path.find('\n') != std::string::npos) {  // something else was pasted
      throw_error(ErrorCode::kInvalidArgument, "{} wants the name of a file on one line", command);
    }
    return path;
  }

  void load(const std::string& path) {
    messages_ = load_messages(path);
    system_ = system_of(messages_);
    remark(fmt::format("a conversation of {} message{}", messages_.size(),
                       messages_.size() == 1 ? "" : "s"));
  }

  void retry() {
    if (messages_.size() < 2 || messages_.back()["role"] != "assistant" ||
        messages_[messages_.size() - 2]["role"] != "user") {
      throw_error(ErrorCode::kInvalidArgument, "there is no answer to try again yet");
    }
    const ordered_json before = messages_;
    messages_.erase(messages_.size() - 1);
    const auto text = messages_.back()["content"].get<std::string>();
    messages_.erase(messages_.size() - 1);
    try {
      answer(text);
    } catch (const Error&) {
      messages_ = before;
      throw;
    }
  }

  // Streams the answer to one message; false when Ctrl-C stopped it. A message that can't be
  // answered leaves the conversation as it was.
  bool answer(const std::string& text) {
    ordered_json messages = messages_;
    messages.push_back({{"role", "user"}, {"content", text}});
    const ChatText chat = chat_text(*template_, messages, tools_, kwargs_);
    const std::vector<int32_t> ids = engine_.encode(chat.text, chat.add_special_tokens);
    const int room = room_ - static_cast<int>(ids.size());
    if (room <= 0) {
      throw_error(ErrorCode::kInvalidArgument,
                  "with this message the conversation has {} tokens and may have {}{}", ids.size(),
                  room_, messages.size() > 2 ? "; /clear starts over" : "");
    }
    SamplingParams params = params_;
    params.max_tokens = std::min(params.max_tokens, room);
    params.output_kind = RequestOutputKind::kDelta;
    std::optional<InterruptGuard> guard;
    if (!stay_) guard.emplace(InterruptGuard::Again::kIsNotNeeded);
    InterruptGuard::reset();
    const uint64_t id = engine_.add_request(ids, params);
    std::string reply;
    WordWrap wrap;
    RequestOutput last;
    size_t num_tokens = 0;
    bool stopped = false;
    while (!engine_.is_finished()) {
      for (RequestOutput& output : step_or_abort(id)) {
        if (output.request_id != id) continue;  // what is left of an answer that failed
        const std::string& delta = output.outputs.front().text;
        fmt::print(
            "{}", is_terminal(stdout) ? wrap.add(without_controls(delta), columns(stdout)) : delta);
        reply += delta;
        num_tokens += output.outputs.front().token_ids.size();
        last = std::move(output);
      }
      flush_standard_output();
      if (InterruptGuard::interrupted() && !stopped) {
        stopped = true;
        engine_.abort_request(id);
      }
    }
    fmt::print("\n");
    flush_standard_output();  // before what stderr says, where both are one file
    show_speed(num_tokens, last.metrics,
               stopped ? ", stopped" : cut_off(last, params.max_tokens == room));
    messages.push_back({{"role", "assistant"}, {"content", reply}});
    messages_ = std::move(messages);
    some_failed_ |= abort_reason(last.outputs.front()) != nullptr;
    return !stopped;
  }

  std::vector<RequestOutput> step_or_abort(uint64_t id) {
    try {
      return engine_.step();
    } catch (const Error&) {
      engine_.abort_request(id);
      throw;
    }
  }

  // What the line below an answer says of one that did not come to its end.
  std::string cut_off(const RequestOutput& output, bool room_is_full) const {
    const CompletionOutput& answer = output.outputs.front();
    if (const std::string* reason = abort_reason(answer)) return ", aborted: " + *reason;
    if (answer.finish_reason != FinishReason::kLength) return "";
    if (!room_is_full) return fmt::format(", cut off at max_tokens={}", params_.max_tokens);
    return fmt::format(", cut off: a conversation takes up to {} tokens", room_);
  }

  static void show_speed(size_t count, const RequestMetrics& times, const std::string& ending) {
    const double decode = times.time_to_finish - times.time_to_first_token;
    std::string text = counted(static_cast<int64_t>(count), "token");
    if (count > 1 && decode > 0) {
      text += fmt::format(", {:.1f} tok/s", static_cast<double>(count - 1) / decode);
    }
    text += fmt::format(", first after {:.2f} s", times.time_to_first_token);
    print_message("{}\n", dim(stderr, "[" + text + ending + "]"));
  }

  const ChatOptions& options_;
  std::unique_ptr<ChatTemplate> template_;
  ordered_json tools_;
  ordered_json kwargs_;
  LLMEngine engine_;
  const int room_;  // tokens of a conversation with its last answer
  SamplingParams params_;
  std::string temperature_source_;
  std::string system_;
  Messages messages_;
  bool some_failed_ = false;  // lines that were refused, or answers that the engine aborted
  std::optional<InterruptGuard> stay_;  // through a talk at the terminal, between answers too
};

}  // namespace

Command add_chat(CLI::App& app) {
  auto options = std::make_shared<ChatOptions>();
  options->model.add_to(app);
  app.add_option("--system", options->system, "system message");
  // A function, as CLI11 takes an empty text for no value of an optional.
  app.add_option_function<std::string>(
      "-m,--message", [options](const std::string& text) { options->message = text; },
      "answer this one message and end");
  app.add_option("--chat-template", options->chat_template,
                 "Jinja file to use instead of the model's own template; it gets the model's "
                 "bos_token, eos_token and so on");
  app.add_option("--chat-template-kwargs", options->template_kwargs,
                 "further variables for the template, as a JSON object")
      ->capture_default_str();
  app.add_option("--tools", options->tools,
                 "JSON file with a list of tools for the template, as the OpenAI API has them");
  options->sampling.add_to(app, "what the model has room for", true);
  add_engine_options(app, options->engine);
  add_trace_option(app, options->engine);
  app.footer(std::string("In the chat:\n") + kHelp +
             "Standard input that is no terminal is taken in the same way, up to 64 MiB a line.\n"
             "Exit status: 0 all answered, 1 error, 2 usage, 3 some lines refused or their answers "
             "aborted by the engine (1 with -m), 130 interrupted.");
  return [options] {
    SamplingParams params;
    params.max_tokens = kAsManyAsFit;
    check(options->sampling.apply_to(params));
    options->engine.validate();
    options->model.find();
    find_draft_model(options->engine);
    check_outputs("--trace", options->engine.trace_file, *options);
    return Chat(*options).run();
  };
}

}  // namespace nanovllm::cli
