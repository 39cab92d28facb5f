#include "cli/load_client.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cmath>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "base/check.h"

namespace nanovllm::cli {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

// More than any server needs for a line or the message of an error.
constexpr size_t kMaxBytes = size_t{1} << 20;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// vLLM's {"error": {"message"}} or FastAPI's {"detail"}; else what there is.
std::string message_of(const json& answer, const std::string& text) {
  if (answer.is_object()) {
    const json& error = answer.value("error", answer.value("detail", json()));
    if (error.is_object() && error.value("message", json()).is_string()) {
      return error["message"].get<std::string>();
    }
    if (error.is_string()) return error.get<std::string>();
  }
  return text.substr(0, 200);
}

bool holds_text(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return false;
  const auto* text = found->get_ptr<const std::string*>();
  return text != nullptr ? !text->empty() : !found->empty();
}

// Whether a chunk came with a token. A chat's first one only says who speaks.
bool has_token(const json& choices) {
  if (!choices.is_array() || choices.empty()) return false;
  const json& choice = choices[0];
  const auto delta = choice.find("delta");
  if (delta == choice.end() || holds_text(choice, "finish_reason")) return true;
  for (const char* name : {"content", "reasoning", "reasoning_content", "tool_calls"}) {
    if (holds_text(*delta, name)) return true;
  }
  return false;
}

// Takes what a chunk says of the request; true where it came with a token.
bool take(const json& chunk, Outcome& outcome) {
  if (!chunk.is_object()) throw_error(ErrorCode::kIo, "a chunk of the stream is no JSON");
  if (const auto error = chunk.find("error"); error != chunk.end() && !error->is_null()) {
    outcome.error = message_of(chunk, chunk.dump());
  }
  if (const auto usage = chunk.find("usage"); usage != chunk.end() && usage->is_object()) {
    outcome.num_prompt_tokens = usage->value("prompt_tokens", outcome.num_prompt_tokens);
    outcome.num_output_tokens = usage->value("completion_tokens", 0);
  }
  const auto choices = chunk.find("choices");
  return choices != chunk.end() && has_token(*choices);
}

// Whether it shows without parsing, which costs as much as all else here, that a chunk came with a
// token and tells nothing more. In texts, quotation marks have a backslash before them.
bool is_plain_token(std::string_view chunk) {
  if (chunk.find("\"usage\":{") != chunk.npos) return false;
  constexpr std::string_view kContent = "\"content\":\"";
  const size_t at = chunk.find(kContent);
  if (at == chunk.npos) return chunk.find("\"text\":\"") != chunk.npos;
  return chunk.substr(at + kContent.size(), 1) != "\"";
}

// An HTTP/1.1 answer as its bytes come.
class Answer {
 public:
  // Called with what stands behind "data:" on a line of a stream.
  using OnData = std::function<void(std::string_view data)>;
  explicit Answer(OnData on_data) : on_data_(std::move(on_data)) {
    parser_.eager(true);
    parser_.body_limit(boost::none);
  }

  bool begun() const { return begun_; }  // a byte of it came
  bool done() const { return parser_.is_done(); }
  bool keeps_alive() const { return parser_.keep_alive(); }
  int status() const { return parser_.get().result_int(); }
  const std::string& body() const { return parser_.get().body(); }  // but of a stream
  bool is_stream() const {
    return status() == 200 &&
           parser_.get()[http::field::content_type].starts_with("text/event-stream");
  }

  // Throws Error(kIo) where it is no HTTP.
  void read(std::string_view bytes) {
    begun_ = begun_ || !bytes.empty();
    buffer_.commit(asio::buffer_copy(buffer_.prepare(bytes.size()), asio::buffer(bytes)));
    error_code error;
    while (!error && !done() && buffer_.size() > 0) {
      buffer_.consume(parser_.put(buffer_.data(), error));
    }
    check(error);
    if (parser_.is_header_done() && is_stream()) take_lines();
    if (body().size() > kMaxBytes) check(http::error::body_limit);
  }
  // The connection was closed. Throws Error(kIo) where that cuts the answer.
  void read_end() {
    error_code error;
    if (parser_.got_some()) parser_.put_eof(error);
    if (error || !done()) throw_error(ErrorCode::kIo, "the answer was cut");
  }

 private:
  static void check(const error_code& error) {
    if (error && error != http::error::need_more) {
      throw_error(ErrorCode::kIo, "the answer is no HTTP/1.1");
    }
  }

  void take_lines() {
    std::string& body = parser_.get().body();
    size_t begin = 0;
    for (size_t end; (end = body.find('\n', begin)) != body.npos; begin = end + 1) {
      std::string_view line(&body[begin], end - begin);
      if (!line.starts_with("data:")) continue;
      line.remove_prefix(std::min(line.find_first_not_of(' ', 5), line.size()));
      on_data_(line.substr(0, line.find_last_not_of(" \r") + 1));
    }
    body.erase(0, begin);
  }

  const OnData on_data_;
  boost::beast::flat_buffer buffer_;
  http::response_parser<http::string_body> parser_;
  bool begun_ = false;
};

// Gives the outcome its error, where it has none yet, or its body.
void judge(const HttpCall& call, const Answer& answer, bool complete, Outcome& outcome) {
  if (!outcome.ok()) return;
  if (answer.status() != 200) {
    const std::string& body = answer.body();
    outcome.error = fmt::format("status {}: {}", answer.status(),
                                message_of(json::parse(body, nullptr, false), body));
  } else if (call.method == "GET") {
    outcome.body = answer.body();
  } else if (!answer.is_stream()) {
    outcome.error = "the answer is no stream of events";
  } else if (!complete) {
    outcome.error = "the stream ended without [DONE]";
  } else if (outcome.ttft == 0) {
    outcome.error = "the stream had no token";
  }
  if (outcome.num_output_tokens == 0 && outcome.ttft > 0) {
    outcome.num_output_tokens = static_cast<int>(outcome.inter_token_times.size()) + 1;
  }
}

// Sockets of one thread.
class LoadClient {
 public:
  explicit LoadClient(const ServerAddress& server) : server_(server) {
    error_code error;
    endpoints_ = tcp::resolver(context_).resolve(server.host, server.port, error);
    if (error || endpoints_.empty()) {
      throw_error(ErrorCode::kNotFound, "there is no host {}: {}", server.host, error.message());
    }
    // Each stream needs a descriptor.
    rlimit limit = {};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }

  // Requests that a load still runs end with it.
  std::vector<Outcome> run(const Load& load, const std::function<bool(const LoadProgress&)>& tick) {
    load_ = &load;
    outcomes_.resize(static_cast<size_t>(load.num_requests));
    begin_ = Clock::now();
    asio::co_spawn(context_, arrive(), asio::detached);
    for (;;) {
      context_.run_for(std::chrono::milliseconds(100));
      if (progress_.num_done >= load.num_requests || !tick(progress_)) break;
    }
    return std::move(outcomes_);
  }

 private:
  // Seconds after the load's begin at which its requests come. Their mean is exact, so that runs
  // with other seeds can be compared.
  std::vector<double> arrivals() const {
    std::vector<double> times(outcomes_.size(), 0);
    if (std::isinf(load_->request_rate)) return times;
    std::mt19937_64 generator(static_cast<uint64_t>(load_->seed));
    std::gamma_distribution<double> between(load_->burstiness, 1);
    double time = 0;
    for (double& one : times) one = time += between(generator);
    const double scale = static_cast<double>(times.size()) / load_->request_rate / time;
    for (double& one : times) one *= scale;
    return times;
  }

  asio::awaitable<void> arrive() {
    asio::steady_timer timer(context_);
    const std::vector<double> times = arrivals();
    for (size_t i = 0; i < times.size(); ++i) {
      if (times[i] > 0) {
        timer.expires_at(begin_ + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(times[i])));
        co_await timer.async_wait(asio::use_awaitable);
      }
      waiting_.push_back(i);
      start_waiting();
    }
  }

  void start_waiting() {
    while (!waiting_.empty() &&
           (load_->max_concurrency == 0 || num_running_ < load_->max_concurrency)) {
      ++num_running_;
      asio::co_spawn(context_, serve(waiting_.front()), asio::detached);
      waiting_.pop_front();
    }
  }

  asio::awaitable<void> serve(size_t index) {
    const HttpCall call = load_->make(static_cast<int64_t>(index));
    Outcome& outcome = outcomes_[index];
    // A server may close a connection that was idle before it sees the request.
    for (bool answered = false; !answered;) {
      const bool is_new = idle_.empty();
      outcome = {.num_prompt_tokens = call.num_prompt_tokens};
      answered = co_await exchange(call, outcome);
      answered = answered || is_new;
    }
    ++progress_.num_done;
    --num_running_;
    start_waiting();
  }

  // False where the connection ended before the answer began.
  asio::awaitable<bool> exchange(const HttpCall& call, Outcome& outcome) {
    const auto start = Clock::now();
    auto last = start;
    auto now = start;
    bool complete = false;  // the stream said so
    bool is_connected = false;
    Answer answer([&](std::string_view data) {
      if (data == "[DONE]") complete = true;
      if (complete) return;
      if (!is_plain_token(data) && !take(json::parse(data, nullptr, false), outcome)) return;
      const double seconds = seconds_between(last, now);
      if (last == start) {
        outcome.ttft = seconds;
        progress_.num_prompt_tokens += call.num_prompt_tokens;
      } else {
        outcome.inter_token_times.push_back(seconds);
      }
      ++progress_.num_output_tokens;
      last = now;
    });
    outcome.start = seconds_between(begin_, start);
    try {
      std::unique_ptr<tcp::socket> socket = co_await connected();
      is_connected = true;
      const std::string request = text_of(call);
      co_await asio::async_write(*socket, asio::buffer(request), asio::use_awaitable);
      std::array<char, 8192> bytes;
      while (!answer.done()) {
        error_code error;
        const size_t count = co_await socket->async_read_some(
            asio::buffer(bytes), asio::redirect_error(asio::use_awaitable, error));
        now = Clock::now();
        answer.read({bytes.data(), count});
        if (error == asio::error::eof) {
          answer.read_end();
        } else if (error) {
          throw boost::system::system_error(error);
        }
      }
      if (answer.keeps_alive()) idle_.push_back(std::move(socket));
    } catch (const boost::system::system_error& error) {
      outcome.error = "the connection broke: " + error.code().message();
    } catch (const std::exception& error) {
      outcome.error = error.what();
    }
    outcome.latency = seconds_between(start, last);
    judge(call, answer, complete, outcome);
    co_return answer.begun() || !is_connected;
  }

  asio::awaitable<std::unique_ptr<tcp::socket>> connected() {
    if (!idle_.empty()) {
      auto socket = std::move(idle_.back());
      idle_.pop_back();
      co_return socket;
    }
    auto socket = std::make_unique<tcp::socket>(context_);
    error_code error;
    co_await asio::async_connect(*socket, endpoints_,
                                 asio::redirect_error(asio::use_awaitable, error));
    if (error) {
      throw_error(ErrorCode::kIo, "cannot connect to {}:{}: {}", server_.host, server_.port,
                  error.message());
    }
    socket->set_option(tcp::no_delay(true), error);
    co_return socket;
  }

  std::string text_of(const HttpCall& call) const {
    const bool is_address = server_.host.find(':') != std::string::npos;
    std::string text = fmt::format(
        "{} {}{} HTTP/1.1\r\nHost: {}{}{}:{}\r\nContent-Type: application/json\r\n"
        "Content-Length: {}\r\n",
        call.method, server_.path, call.path, is_address ? "[" : "", server_.host,
        is_address ? "]" : "", server_.port, call.body.size());
    if (!server_.api_key.empty()) {
      text += fmt::format("Authorization: Bearer {}\r\n", server_.api_key);
    }
    return text + "\r\n" + call.body;
  }

  const ServerAddress& server_;
  const Load* load_ = nullptr;
  std::vector<Outcome> outcomes_;
  std::deque<size_t> waiting_;  // that have come and must not be sent yet
  int num_running_ = 0;
  LoadProgress progress_;
  Clock::time_point begin_;
  asio::io_context context_{1};  // what follows ends before it
  tcp::resolver::results_type endpoints_;
  std::vector<std::unique_ptr<tcp::socket>> idle_;
};

}  // namespace

ServerAddress parse_url(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) {
    throw_error(
        ErrorCode::kInvalidArgument, "{} does not begin with http://{}", url,
        url.starts_with("https://") ? ": there is no TLS here; name the server behind it" : "");
  }
  const std::string rest = url.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string host = rest.substr(0, slash);
  ServerAddress server = {.port = "80", .path = rest.substr(slash)};
  while (server.path.ends_with('/')) server.path.pop_back();
  const size_t colon = host.rfind(':');
  if (colon != std::string::npos && host.find(']', colon) == std::string::npos) {
    server.port = host.substr(colon + 1);
    host.resize(colon);
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  server.host = host;
  if (server.host.empty() || server.port.empty() ||
      server.port.find_first_not_of("0123456789") != std::string::npos) {
    throw_error(ErrorCode::kInvalidArgument, "{} is not http://HOST:PORT", url);
  }
  return server;
}

std::vector<Outcome> run_load(const ServerAddress& server, const Load& load,
                              const std::function<bool(const LoadProgress&)>& tick) {
  return LoadClient(server).run(load, tick);
}

}  // namespace nanovllm::cli
