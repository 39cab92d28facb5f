// The commands of the binary. Each add_ function declares one and returns what runs it; the
// returned function gives the exit status and may throw Error.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace nanovllm::cli {

using Command = std::function<int()>;

Command add_generate(CLI::App& app);
// `words` are the command line behind the binary's name, for workers, here and for a server: they
// are read when the command runs.
Command add_run_batch(CLI::App& app, const std::vector<std::string>& words);
Command add_chat(CLI::App& app);
Command add_bench_throughput(CLI::App& app);
Command add_bench_latency(CLI::App& app);
Command add_bench_serve(CLI::App& app);
Command add_info(CLI::App& app);
Command add_serve(CLI::App& app, const std::vector<std::string>& words);
Command add_tokenize(CLI::App& app);
Command add_quantize(CLI::App& app);
Command add_pull(CLI::App& app);
Command add_list(CLI::App& app);
Command add_remove(CLI::App& app);

}  // namespace nanovllm::cli
