// A run of `nanovllm run-batch`: from the lines of its input to those of its output.
#pragma once

#include <string>

#include "cli/model_option.h"
#include "cli/server_options.h"
#include "server/server.h"

namespace nanovllm::cli {

struct RunBatchOptions {
  ModelOption model;
  std::string input;
  std::string output;
  bool resume = false;
  bool quiet = false;
  WorkerOptions worker;
  server::ServeOptions server;
};

// Answers every line; the options are checked, and the model is where they say. Returns the exit
// status. Throws Error where the run can't go on.
int run_batch(const RunBatchOptions& options);

}  // namespace nanovllm::cli
