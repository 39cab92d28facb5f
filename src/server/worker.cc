#include "server/worker.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/message.h"
#include "server/engine_client.h"
#include "server/fleet.h"
#include "server/frame_socket.h"

namespace nanovllm::server {

namespace {

void report(int socket, const EngineReport& what) {
  std::string bytes;
  append_frame(what, bytes);
  send_bytes(socket, bytes, /*wait=*/true);  // where nobody reads, the reader sees it too
}

// What the step told is dropped with its fault: the next engine computes it again.
void report_events(int socket, std::vector<EngineEvent>&& events) {
  if (const RequestError* fault = fault_among(events)) {
    report(socket, EngineFault{fault->code, fault->message});
    ::_exit(EXIT_FAILURE);  // other threads may hang in a device that failed
  }
  report(socket, std::move(events));
}

void serve(int socket, LLMEngine engine) {
  EngineLoop loop(std::move(engine), [socket](std::vector<EngineEvent> events) {
    report_events(socket, std::move(events));
  });
  report(socket, hello_of(loop));
  FrameReader reader(socket);
  while (reader.fill()) {
    for (EngineCommand command; reader.next(command);) loop.submit(std::move(command));
  }
}

// Ranks take their GPUs from the front of the list: the workers before this one have the first.
void leave_devices_to_others(int count) {
  const char* listed = std::getenv("CUDA_VISIBLE_DEVICES");
  std::string rest;
  if (listed == nullptr) {
    for (int i = count; i < 64; ++i) rest += fmt::format("{}{}", rest.empty() ? "" : ",", i);
  } else {
    rest = listed;
    for (int i = 0; i < count; ++i) rest.erase(0, std::min(rest.find(','), rest.size() - 1) + 1);
  }
  ::setenv("CUDA_VISIBLE_DEVICES", rest.c_str(), 1);
}

}  // namespace

EngineHello hello_of(const EngineLoop& loop) {
  return {loop.info(), loop.default_sampling_params(), loop.preparer().model_dir};
}

const RequestError* fault_among(const std::vector<EngineEvent>& events) {
  for (const EngineEvent& event : events) {
    const auto* error = std::get_if<RequestError>(&event);
    if (error != nullptr &&
        (error->code == ErrorCode::kInternal || error->code == ErrorCode::kOutOfMemory)) {
      return error;
    }
  }
  return nullptr;
}

int serve_engine(int socket, const std::function<LLMEngine()>& load) {
  // Who stops a service signals all of its processes: the front decides what becomes of this one.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_IGN);
  EngineFault fault;
  try {
    serve(socket, load());
    return EXIT_SUCCESS;
  } catch (const Error& error) {
    fault = {error.code(), error.what()};
  } catch (const std::bad_alloc&) {
    fault = {ErrorCode::kOutOfMemory, "There was no memory left to load the model."};
  } catch (const std::exception& error) {
    fault.message = error.what();
  }
  report(socket, fault);
  return EXIT_FAILURE;
}

int run_worker(int socket, int index, const std::string& model, const EngineConfig& config) {
  if (index > 0) leave_devices_to_others(index * config.tensor_parallel_size);
  return serve_engine(socket, [&] { return LLMEngine(model, config); });
}

}  // namespace nanovllm::server
