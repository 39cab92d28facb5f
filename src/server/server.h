// `nanovllm serve`: the front process, from its options to its end.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nanovllm/config.h"
#include "server/fleet/fleet.h"
#include "server/http/http_server.h"
#include "server/transcript/transcript_parser.h"

namespace nanovllm::server {

struct ServeOptions {
  std::string model;
  EngineConfig engine;
  HttpOptions http;
  FleetOptions fleet;
  std::vector<std::string> served_model_names = {};  // none = `model`
  std::string chat_template = {};                    // a file's path, or empty: the model's own
  TranscriptFormat format = {};                      // empty names: what fits the model
  int max_prompts = 1024;                            // of one request
  int max_json_depth = 64;
  int num_io_threads = 2;
  // Clients and what is between them and us take a stream that is silent for longer for a dead one.
  std::chrono::milliseconds max_silence{5000};
  bool log_requests = false;  // prompts and parameters too
  // Called by any thread with what the log would have of requests and of the model, once for each
  // sentence; null = it goes to the log.
  std::function<void(const std::string& sentence)> on_note = {};
  bool enable_tokenizer_info_endpoint = false;
  bool enable_prompt_tokens_details = false;  // usage tells what came from the prefix cache
  bool enable_force_include_usage = false;    // streams tell usage, asked for or not
  nlohmann::ordered_json default_chat_template_kwargs = nlohmann::ordered_json::object();
  bool trust_request_chat_template = false;
  std::chrono::milliseconds shutdown_timeout{30'000};
  std::vector<std::string> worker_arguments = {};  // with which the binary becomes a worker
};

// Serves until SIGINT, SIGTERM, or SIGHUP where that was not ignored; returns the exit status.
// Throws Error where there is no model, the address can't be had, the first engine does not load or
// none is ready for too long.
int serve(ServeOptions options);

}  // namespace nanovllm::server
