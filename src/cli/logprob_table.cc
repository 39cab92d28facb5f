#include "cli/logprob_table.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace nanovllm::cli {
namespace {

// In quotes, so that spaces and line breaks can be seen.
std::string quoted(const std::optional<std::string>& token) {
  return nlohmann::json(token.value_or(""))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string header(const char* what) {
  return fmt::format("  {:<20} {:>9} {:>6}  others\n", what, "logprob", "rank");
}

std::string row(const PositionLogprobs& position) {
  std::string line;
  for (const TokenLogprob& entry : position) {
    if (line.empty()) {
      line = fmt::format("  {:<20} {:>9.4f} {:>6}  ", quoted(entry.decoded_token), entry.logprob,
                         entry.rank);
    } else {
      line += fmt::format("{} {:.4f}  ", quoted(entry.decoded_token), entry.logprob);
    }
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

}  // namespace

std::string prompt_logprob_table(const RequestOutput& output) {
  std::string table;
  for (const auto& position : output.prompt_logprobs) {  // the first token has none
    if (position) table += row(*position);
  }
  return table.empty() ? table : header("prompt token") + table;
}

std::string logprob_table(const CompletionOutput& completion) {
  std::string table;
  for (const PositionLogprobs& position : completion.logprobs) table += row(position);
  return table.empty() ? table : header("token") + table;
}

}  // namespace nanovllm::cli
