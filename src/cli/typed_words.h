// What people type, as the commands' options have it: vLLM's names and habits become ours, and
// names that there are not are found before anything else is wrong.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace nanovllm::cli {

struct TypedWords {
  // With dashes in the options' names, our names, and an option before each of its values.
  std::vector<std::string> words = {};
  // What was taken otherwise than it was typed; sentences for the log.
  std::vector<std::string> notes = {};
  // The first option that there is not; empty = there are all, or help is asked for.
  std::string fault = {};
};

// `words` are the command line behind the binary's name. Where it names no command they stay as
// they are.
TypedWords read_typed(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace nanovllm::cli
