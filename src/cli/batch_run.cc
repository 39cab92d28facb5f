#include "cli/batch_run.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/message.h"
#include "base/signals.h"
#include "cli/earlier_results.h"
#include "cli/numbered_lines.h"
#include "cli/output_lock.h"
#include "cli/result_sink.h"
#include "cli/terminal.h"
#include "engine/request.h"
#include "server/batch/batch_line.h"
#include "server/batch/local_server.h"
#include "server/fleet/fleet.h"
#include "text/hash.h"

namespace nanovllm::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTick{100};     // of the display, and of the answer to a Ctrl-C
constexpr std::chrono::milliseconds kMeasure{500};  // speeds are those of so long a time

std::optional<EarlierResult> read_answer(const std::string& line) {
  auto answer = server::read_batch_answer(line);
  if (!answer) return std::nullopt;
  return EarlierResult{.index = answer->place.index,
                       .custom_id = std::move(answer->place.custom_id),
                       .is_to_any = !answer->was_asked,
                       .has_failed = answer->has_failed};
}

std::optional<std::string> name_of_request(const std::string& line) {
  return server::parse_batch_request(line, /*number=*/1).custom_id;
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
        earlier_(options.resume ? options.output : "",
                 {.read = read_answer, .begins = {server::kBatchAnswerBegin}}),
        lines_(options.input, earlier_),
        total_(lines_.total()),
        most_in_flight_(int64_t{2} * options.server.engine.max_num_seqs *
                        options.server.fleet.num_engines) {
    NumberedLines::check_all(options.input, earlier_, name_of_request);
  }
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
            news_.steps.num_decode_tokens += stats.num_kept_decode_tokens();
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
  if (num_answered() == 0 && !options_.quiet) {
    print_message("nanovllm: {}\n", lines_.nothing_to_do());
  }
  const int64_t num_failed = num_failed_ + earlier_.num_failed();
  if (num_failed == 0) return kExitOk;
  print_message("nanovllm: {} of {} {} an error for an answer{}\n", num_failed,
                counted(num_answered() + earlier_.size(), "line"), num_failed == 1 ? "has" : "have",
                options_.output == "-" ? "" : "; " + options_.output + " says why");
  return kExitSomeFailed;
}

}  // namespace

int run_batch(const RunBatchOptions& options) { return BatchRun(options).run(); }

}  // namespace nanovllm::cli
