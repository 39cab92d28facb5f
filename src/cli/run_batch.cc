// `nanovllm run-batch`: files in OpenAI's batch format, and a filter for programs that have such
// lines.
#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/message.h"
#include "base/signals.h"
#include "cli/commands.h"
#include "cli/earlier_results.h"
#include "cli/model_option.h"
#include "cli/numbered_lines.h"
#include "cli/options.h"
#include "cli/output_check.h"
#include "cli/output_lock.h"
#include "cli/result_sink.h"
#include "cli/server_options.h"
#include "cli/terminal.h"
#include "engine/request.h"
#include "server/batch/batch_line.h"
#include "server/batch/local_server.h"
#include "server/fleet/fleet.h"
#include "server/log.h"
#include "text/hash.h"

namespace nanovllm::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

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
constexpr std::chrono::milliseconds kTick{100};     // of the display, and of the answer to a Ctrl-C
constexpr std::chrono::milliseconds kMeasure{500};  // speeds are those of so long a time

struct RunBatchOptions {
  ModelOption model;
  std::string input;
  std::string output;
  bool resume = false;
  bool quiet = false;
  WorkerOptions worker;
  server::ServeOptions server;
};

std::optional<EarlierResult> read_answer(const std::string& line) {
  auto answer = server::read_batch_answer(line);
  if (!answer) return std::nullopt;
  return EarlierResult{.index = answer->place.index,
                       .custom_id = std::move(answer->place.custom_id),
                       .is_to_any = !answer->was_asked,
                       .has_failed = answer->has_failed};
}

// What other threads have for the one that writes.
struct News {
  struct Answer {
    std::string line;
    bool has_failed;
  };
  std::vector<Answer> answers = {};
  std::vector<std::string> messages = {};
  StepStats steps = {};  // their tokens, and no more
  bool is_ready = false;
  bool is_read = false;  // all of the input
  std::exception_ptr fault = nullptr;
};

// One thread reads, and the server's threads answer; this one writes.
class BatchRun {
 public:
  explicit BatchRun(const RunBatchOptions& options)
      : options_(options),
        sink_(options.output),
        lock_(options.output),
        earlier_(options.resume ? options.output : "", read_answer),
        lines_(options.input, earlier_),
        total_(lines_.total()),
        most_in_flight_(int64_t{2} * options.server.engine.max_num_seqs *
                        options.server.fleet.num_engines) {}
  ~BatchRun() { stop(); }
  BatchRun(const BatchRun&) = delete;
  BatchRun& operator=(const BatchRun&) = delete;

  int run();

 private:
  void start();
  void read() noexcept;
  void take_line();
  void ask(const std::string& line);
  void tell(News::Answer answer);
  template <typename Change>
  void change(Change&& change_news);
  News next_news();
  void begin();
  void show(const News& news);
  void measure(std::chrono::milliseconds least);
  void write(const News& news);
  bool is_all_written();
  void stop();
  std::string how_to_go_on() const;
  [[noreturn]] void fail(const std::exception_ptr& fault);
  int end_interrupted();
  int end();
  int64_t num_answered() const { return num_done_ + num_failed_; }
  double share() const {
    return total_ > 0 ? static_cast<double>(num_answered()) / static_cast<double>(total_) : 0;
  }

  const RunBatchOptions& options_;
  // What can't be read or written is told before the model is loaded.
  ResultSink sink_;
  OutputLock lock_;
  const EarlierResults earlier_;
  NumberedLines lines_;  // of the reading thread, once it runs
  const int64_t total_;  // lines; 0 = unknown
  const int64_t most_in_flight_;
  int64_t num_done_ = 0, num_failed_ = 0;  // of this run
  std::optional<Progress> progress_;       // once the engines are ready
  StepStats steps_;                        // since last_measure_
  Clock::time_point last_measure_;

  std::mutex mutex_;
  std::condition_variable changed_;  // news_
  std::condition_variable has_room_;
  // These are guarded by mutex_.
  News news_;
  int64_t num_in_flight_ = 0;  // lines that were read and whose answers are not written
  bool stopping_ = false;

  std::unique_ptr<server::LocalServer> server_;
  std::thread reader_;
};

template <typename Change>
void BatchRun::change(Change&& change_news) {
  const std::lock_guard lock(mutex_);
  change_news(news_);
  changed_.notify_all();
}

void BatchRun::start() {
  server::LocalObserver observer = {
      .on_ready = [this] { change([](News& news) { news.is_ready = true; }); },
      .on_lost =
          [this](const std::exception_ptr& why) { change([&](News& news) { news.fault = why; }); },
      .on_step =
          [this](const StepStats& stats) {
            const std::lock_guard lock(mutex_);  // nobody waits for it
            news_.steps.num_prefill_tokens += stats.num_prefill_tokens;
            news_.steps.num_decode_tokens += stats.num_decode_tokens;
          },
      .on_message =
          [this](const std::string& sentence) {
            change([&](News& news) { news.messages.push_back(sentence); });
          }};
  server::ServeOptions options = options_.server;
  auto starter = server::worker_starter(options.worker_arguments);
  server_ = server::LocalServer::start(std::move(options), std::move(starter), std::move(observer));
}

// Of the lines no more are held than keep the engines busy, so that memory does not grow with the
// input.
void BatchRun::read() noexcept {
  try {
    while (!lines_.at_end()) {
      {
        std::unique_lock lock(mutex_);
        has_room_.wait(lock, [this] { return stopping_ || num_in_flight_ < most_in_flight_; });
        if (stopping_) return;
      }
      take_line();
    }
    change([](News& news) { news.is_read = true; });
  } catch (...) {
    change([](News& news) { news.fault = std::current_exception(); });
  }
}

void BatchRun::take_line() {
  std::optional<std::string> line;
  try {
    line = lines_.next(/*wait=*/true);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kIo) throw;
    if (lines_.is_answered()) return lines_.check_answered({});
    return tell(
        {server::batch_answer({lines_.index()}, {"invalid_json_line", error.what()}), true});
  }
  if (line) ask(*line);
}

void BatchRun::ask(const std::string& line) {
  server::BatchRequest request = server::parse_batch_request(line, lines_.line_number());
  if (lines_.is_answered()) return lines_.check_answered(request.custom_id);
  const server::BatchPlace place = {lines_.index(), request.custom_id};
  if (request.fault) return tell({server::batch_answer(place, *request.fault), true});
  // By its name, so that it draws alike in whatever order and by however many runs a job is done.
  const uint64_t key = request.custom_id ? text::hash_bytes(*request.custom_id)
                                         : static_cast<uint64_t>(lines_.index());
  {
    const std::lock_guard lock(mutex_);
    ++num_in_flight_;
  }
  server_->ask({.url = std::move(request.url),
                .body = std::move(request.body),
                .seed = default_seed(options_.server.engine.seed, key)},
               [this, place](const std::string& request_id, const server::HttpResponse& response) {
                 std::string answer = server::batch_answer(place, request_id, response);
                 change([&](News& news) {
                   news.answers.push_back({std::move(answer), response.status != 200});
                 });
               });
}

// Of a line that is not asked.
void BatchRun::tell(News::Answer answer) {
  change([&](News& news) {
    ++num_in_flight_;
    news.answers.push_back(std::move(answer));
  });
}

News BatchRun::next_news() {
  std::unique_lock lock(mutex_);
  const auto is_news = [this] {
    return !news_.answers.empty() || !news_.messages.empty() || news_.fault || news_.is_ready ||
           (news_.is_read && num_in_flight_ == 0);
  };
  changed_.wait_for(lock, kTick, is_news);
  News news = std::exchange(news_, {});
  news_.is_read = news.is_read;
  return news;
}

int BatchRun::run() {
  const InterruptGuard guard;
  start();
  while (true) {
    const News news = next_news();
    show(news);
    write(news);
    if (InterruptGuard::interrupted()) return end_interrupted();
    if (news.fault) fail(news.fault);
    if (news.is_ready) begin();
    if (news.is_read && is_all_written()) return end();
  }
}

// Until now nothing has changed.
void BatchRun::begin() {
  earlier_.tidy(lock_);
  if (sink_.has_content() && !options_.resume && !options_.quiet) {
    print_message("nanovllm: {} is written anew; --resume would go on behind what it has\n",
                  options_.output);
  }
  sink_.open(options_.resume);
  lock_.keep_file();
  progress_.emplace("Answering", total_, !options_.quiet, Progress::Elsewhere::kLines);
  last_measure_ = Clock::now();
  const SignalsBlocked in_thread;
  reader_ = std::thread([this] { read(); });
}

void BatchRun::show(const News& news) {
  if (progress_ && !news.messages.empty()) progress_->clear();
  for (const std::string& message : news.messages) print_message("nanovllm: {}\n", message);
  if (!progress_) return;
  steps_.num_prefill_tokens += news.steps.num_prefill_tokens;
  steps_.num_decode_tokens += news.steps.num_decode_tokens;
  measure(kMeasure);
  if (!news.answers.empty()) progress_->clear_for(sink_.stream());
}

// Of engines that work side by side the tokens add up, and their seconds don't.
void BatchRun::measure(std::chrono::milliseconds least) {
  StepStats steps;
  const auto now = Clock::now();
  if (now - last_measure_ >= least) {
    steps = std::exchange(steps_, {});
    steps.seconds = std::chrono::duration<double>(now - last_measure_).count();
    last_measure_ = now;
  }
  progress_->update(num_answered(), share(), steps);
}

void BatchRun::write(const News& news) {
  try {
    for (const News::Answer& answer : news.answers) {
      sink_.write(answer.line);
      ++(answer.has_failed ? num_failed_ : num_done_);
    }
  } catch (const Error& error) {
    throw_error(error.code(), "{}{}", error.what(), how_to_go_on());
  }
  const std::lock_guard lock(mutex_);
  num_in_flight_ -= std::ssize(news.answers);
  has_room_.notify_all();
}

bool BatchRun::is_all_written() {
  const std::lock_guard lock(mutex_);
  return num_in_flight_ == 0;
}

void BatchRun::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    has_room_.notify_all();
  }
  if (reader_.joinable()) reader_.join();
  server_.reset();
}

std::string BatchRun::how_to_go_on() const {
  std::error_code ignored;
  if (!fs::is_regular_file(options_.output, ignored)) return "";
  return fmt::format("; {} keeps what was answered, and the same command with --resume goes on",
                     options_.output);
}

void BatchRun::fail(const std::exception_ptr& fault) {
  if (!progress_) std::rethrow_exception(fault);  // nothing was begun
  progress_->clear();
  try {
    std::rethrow_exception(fault);
  } catch (const Error& error) {
    // Whose input is another one must not go on.
    const bool is_of_engine = error.code() != ErrorCode::kIo;
    std::string what = error.what();
    if (what.ends_with('.')) what.pop_back();
    throw_error(error.code(), "{}{}", what, is_of_engine ? how_to_go_on() : "");
  }
}

int BatchRun::end_interrupted() {
  if (progress_) progress_->clear();
  const int64_t num_left = total_ - num_answered();
  print_message("nanovllm: interrupted: {} answered, {}{}\n", counted(num_answered(), "line"),
                total_ > 0 && num_left >= 0 ? fmt::format("{} not", num_left) : "no others",
                progress_ ? how_to_go_on() : "");
  return kExitInterrupted;
}

int BatchRun::end() {
  measure(std::chrono::milliseconds(0));
  progress_->finish(num_answered(), share());
  const int64_t num_failed = num_failed_ + earlier_.num_failed();
  if (num_failed == 0) return kExitOk;
  print_message("nanovllm: {} of {} have an error for an answer{}\n", num_failed,
                counted(num_answered() + earlier_.size(), "line"),
                options_.output == "-" ? "" : "; " + options_.output + " says why");
  return kExitSomeFailed;
}

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

int run_batch(RunBatchOptions& options) {
  options.server.engine.validate();
  options.server.fleet.seed = options.server.engine.seed;
  options.model.find(options.quiet);
  check_files(options);
  server::ServeOptions& server = options.server;
  server.model = options.model.path;
  if (server.served_model_names.empty()) server.served_model_names = {options.model.name};
  server.worker_arguments = worker_arguments(std::move(server.worker_arguments), server.model);
  return BatchRun(options).run();
}

}  // namespace

Command add_run_batch(CLI::App& app, const std::vector<std::string>& words) {
  auto options = std::make_shared<RunBatchOptions>();
  options->model.add_to(app);
  const auto is_empty = CLI::Validator(fault_of_empty, "");
  app.add_option("-i,--input-file", options->input,
                 "file of requests, a JSON line each; - reads standard input")
      ->required()
      ->check(is_empty);
  app.add_option("-o,--output-file", options->output,
                 "write answers here, in place of what the file has unless --resume is there; - is "
                 "standard output")
      ->required()
      ->check(is_empty);
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
    return run_batch(*options);
  };
}

}  // namespace nanovllm::cli
