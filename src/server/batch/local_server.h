// The server without HTTP: its handlers answer what a program of this process asks.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "server/http/http_server.h"
#include "server/server.h"

namespace nanovllm::server {

struct LocalRequest {
  std::string url = {};  // of one of routes() that makes an answer of a body
  std::string body = {};
  // What its requests draw by where they name no seed; not the order in which they come.
  int64_t seed = 0;
};

// All are called on threads of the server's, any one at any time, and must not wait for it.
struct LocalObserver {
  // Requests are answered from now on.
  std::function<void()> on_ready = [] {};
  // Nothing is answered any more, and why: the engine does not load, or died and does not come
  // back.
  std::function<void(std::exception_ptr why)> on_lost = [](const std::exception_ptr&) {};
  std::function<void(const StepStats& stats)> on_step = [](const StepStats&) {};
  // Sentences for people: engines that die and come back, what is ignored.
  std::function<void(const std::string& sentence)> on_message = [](const std::string&) {};
};

// The engines are worker processes, as those of `nanovllm serve`: one that dies is started again,
// and what ran on it goes on. Of the options, those of HTTP count for nothing.
class LocalServer {
 public:
  using Done = std::function<void(const std::string& request_id, const HttpResponse& response)>;

  // Begins to load, on a thread of its own.
  static std::unique_ptr<LocalServer> start(ServeOptions options, EngineStarter starter,
                                            LocalObserver observer);
  // Ends at once: what was asked and not answered is not.
  virtual ~LocalServer() = default;
  // Once it is ready; from any thread, which does not wait. `done` is called on a thread of the
  // server's, in any order; never with a status that says to try again later, as long as there is
  // hope: the request waits until an engine is back.
  virtual void ask(LocalRequest request, Done done) = 0;
};

}  // namespace nanovllm::server
