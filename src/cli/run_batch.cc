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

constexpr std::chrono::milliseconds kTick{100};  // of the display, and of the answer to a Ctrl-C
constexpr const char* kHowToGoOn = "the same command with --resume answers the rest";

struct RunBatchOptions {
  ModelOption model;
  std::string input;
  std::string output;
  bool resume = false;
  bool quiet = false;
  WorkerOptions worker;
  server::ServeOptions server;

  bool is_file() const {
    std::error_code ignored;
    return output != "-" && fs::is_regular_file(output, ignored);
  }
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
  StepStats steps = {};  // their tokens
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
        total_(options.quiet ? 0 : lines_.total()),
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
  void write(const News& news);
  void stop();
  int end(bool interrupted);

  const RunBatchOptions& options_;
  // What can't be read or written is told before the model is loaded.
  ResultSink sink_;
  OutputLock lock_;
  const EarlierResults earlier_;
  NumberedLines lines_;  // of the reading thread, once it runs
  const int64_t total_;  // lines; 0 = unknown
  const int64_t most_in_flight_;
  int64_t num_done_ = 0, num_failed_ = 0;

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
  server::BatchRequest request = server::parse_batch_request(line);
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

void BatchRun::write(const News& news) {
  for (const News::Answer& answer : news.answers) {
    sink_.write(answer.line);
    ++(answer.has_failed ? num_failed_ : num_done_);
  }
  const std::lock_guard lock(mutex_);
  num_in_flight_ -= std::ssize(news.answers);
  has_room_.notify_all();
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

int BatchRun::run() {
  earlier_.tidy(lock_);
  const InterruptGuard guard;
  start();
  sink_.open(options_.resume);
  lock_.keep_file();
  Progress progress("Answering", total_, !options_.quiet);
  while (true) {
    const News news = next_news();
    if (!news.messages.empty()) progress.clear();
    for (const std::string& message : news.messages) print_message("nanovllm: {}\n", message);
    if (!news.answers.empty()) progress.clear_for(sink_.stream());
    write(news);
    if (InterruptGuard::interrupted()) return end(true);
    if (news.fault) std::rethrow_exception(news.fault);
    if (news.is_ready) {
      const SignalsBlocked in_thread;
      reader_ = std::thread([this] { read(); });
    }
    if (news.is_read) {
      const std::lock_guard lock(mutex_);
      if (num_in_flight_ == 0) return end(false);
    }
  }
}

int BatchRun::end(bool interrupted) {
  const int64_t num_begun = num_done_ + num_failed_;
  if (interrupted) {
    print_message("nanovllm: interrupted: {} answered; {}\n", counted(num_begun, "line"),
                  kHowToGoOn);
    return kExitInterrupted;
  }
  const int64_t num_failed = num_failed_ + earlier_.num_failed();
  return num_failed > 0 ? kExitSomeFailed : kExitOk;
}

int run_batch(RunBatchOptions& options) {
  options.server.engine.validate();
  options.server.fleet.seed = options.server.engine.seed;
  options.model.find(options.quiet);
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
  app.add_option("-i,--input-file", options->input, "file of requests; - reads standard input")
      ->required();
  app.add_option("-o,--output-file", options->output, "file of answers; - is standard output")
      ->required();
  app.add_flag("--resume", options->resume, "go on where an earlier run ended");
  app.add_flag("-q,--quiet", options->quiet, "no progress display");
  Group workers(app, "Options");
  add_fleet_options(workers, options->server.fleet);
  Group api(app, "API");
  add_answer_options(api, options->server);
  options->worker.add_to(app);
  add_engine_options(app, options->server.engine);
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
