// Sends many requests to an OpenAI-compatible server at once and takes down when their tokens come.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace nanovllm::cli {

struct ServerAddress {
  std::string host = {};
  std::string port = {};
  std::string path = {};     // what its own paths stand behind; empty or "/..."
  std::string api_key = {};  // empty = none
};

// "http://HOST[:PORT][/PATH]". Throws Error(kInvalidArgument) for anything else.
ServerAddress parse_url(const std::string& url);

struct HttpCall {
  std::string method = "POST";  // whose answer is to be a stream; or GET
  std::string path = {};
  std::string body = {};      // JSON
  int num_prompt_tokens = 0;  // as far as known; the server's own count goes before
};

// What came of a request. Times in seconds.
struct Outcome {
  std::string error = {};  // a sentence; empty: it was answered to the end
  std::string body = {};   // of what was to GET
  int num_prompt_tokens = 0;
  int num_output_tokens = 0;
  double start = 0;                            // when it was sent, since the load's begin
  double ttft = 0;                             // from there to the first token
  double latency = 0;                          // and to the last one
  std::vector<double> inter_token_times = {};  // between them
  bool ok() const { return error.empty(); }
};

struct Load {
  int64_t num_requests = 0;
  std::function<HttpCall(int64_t index)> make;
  double request_rate = std::numeric_limits<double>::infinity();  // arrivals a second
  double burstiness = 1;    // shape of the gamma distribution of the time between two; 1 = Poisson
  int max_concurrency = 0;  // of requests that are sent; 0 = any
  int64_t seed = 0;         // of the arrivals
};

struct LoadProgress {
  int64_t num_done = 0;           // requests
  int64_t num_prompt_tokens = 0;  // of requests that have begun to be answered
  int64_t num_output_tokens = 0;
};

// Connections are used again. `tick` is called ten times a second; false ends the load with what
// there is by then. One outcome for each request, in their order. Throws Error(kNotFound) where the
// host has no address.
std::vector<Outcome> run_load(const ServerAddress& server, const Load& load,
                              const std::function<bool(const LoadProgress&)>& tick);

}  // namespace nanovllm::cli
