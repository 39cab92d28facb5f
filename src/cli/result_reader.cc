#include "cli/result_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace nanovllm::cli {
namespace {

using nlohmann::json;

bool is_aborted(const json& completion) {
  return completion.value("finish_reason", json()) == "abort";
}

// An abort of the engine's own says why.
bool is_cut_short(const json& completion) {
  return is_aborted(completion) && !completion.contains("stop_reason");
}

template <typename Predicate>
bool has_completion(const json& result, const Predicate& predicate) {
  const auto outputs = result.find("outputs");
  return outputs == result.end() ? predicate(result) : std::ranges::any_of(*outputs, predicate);
}

bool is_result(const json& line) {
  if (!line.is_object()) return false;
  const json index = line.value("index", json());
  if (!index.is_number_unsigned() || index.get<int64_t>() < 0) return false;
  const auto outputs = line.find("outputs");
  if (outputs == line.end()) return line.contains("text") || line.contains("error");
  return outputs->is_array() && std::ranges::all_of(*outputs, &json::is_object);
}

std::optional<EarlierResult> read_result(const std::string& line) {
  const json result = json::parse(line, nullptr, false);
  if (!is_result(result)) return std::nullopt;
  EarlierResult earlier = {.index = result["index"].get<int64_t>()};
  const json id = result.value("custom_id", json());
  if (id.is_string()) earlier.custom_id = id.get<std::string>();
  earlier.is_to_any = result.contains("error");
  earlier.has_failed = earlier.is_to_any || has_completion(result, is_aborted);
  earlier.is_cut_short = has_completion(result, is_cut_short);
  return earlier;
}

}  // namespace

ResultLines generated_lines() {
  return {.read = read_result,
          .begins = {R"({"index":#,"custom_id":")", R"({"index":#,"text":")",
                     R"({"index":#,"outputs":[{"index":)", R"({"index":#,"error":")"}};
}

}  // namespace nanovllm::cli
