// Options that the commands share which answer by the API, with engines in worker processes.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/option_group.h"
#include "server/server.h"

namespace nanovllm::cli {

// How many workers there are, and how long they may take.
void add_fleet_options(Group& group, server::FleetOptions& fleet);
// What answers look like, whoever asks.
void add_answer_options(Group& group, server::ServeOptions& options);

// The words with which a command becomes a worker of its own: the command line's, and where the
// model was found.
std::vector<std::string> worker_arguments(std::vector<std::string> words, const std::string& model);

// Of a worker; nobody types them.
struct WorkerOptions {
  int socket = -1;
  int index = 0;
  std::string model = {};  // where the front found it

  void add_to(CLI::App& app);
  bool is_worker() const { return socket >= 0; }
  int run(const server::ServeOptions& options) const;  // returns the exit status
};

}  // namespace nanovllm::cli
