// What --help prints: within 80 columns, and the default of every value.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace nanovllm::cli {

// Of a command that is called by `name`, for CLI::App::formatter_fn. Lines of descriptions and
// footers are paragraphs, which are wrapped, unless they begin with a blank.
std::string help_text(const CLI::App& app, const std::string& name);

}  // namespace nanovllm::cli
