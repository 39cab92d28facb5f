#include "cli/earlier_results.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/check.h"
#include "io/output_file.h"

namespace nanovllm::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// An abort of the engine's own says why.
bool is_cut_short(const json& completion) {
  return completion.value("finish_reason", json()) == "abort" &&
         !completion.contains("stop_reason");
}

// A result line, or nothing where it is none.
std::optional<json> parse_result(const std::string& line) {
  json result = json::parse(line, nullptr, false);
  const bool valid = result.is_object() && result.contains("index") &&
                     result["index"].is_number_integer() &&
                     (!result.contains("outputs") || result["outputs"].is_array());
  return valid ? std::optional(std::move(result)) : std::nullopt;
}

template <typename Predicate>
bool has_completion(const json& result, const Predicate& predicate) {
  const auto outputs = result.find("outputs");
  return outputs == result.end() ? predicate(result) : std::ranges::any_of(*outputs, predicate);
}

bool has_failed(const json& result) {
  return result.contains("error") || has_completion(result, [](const json& completion) {
           return completion.value("finish_reason", json()) == "abort";
         });
}

size_t hash_of(const std::string& custom_id) { return std::hash<std::string>()(custom_id) | 1; }

[[noreturn]] void fail_to(const char* what, const std::string& path) {
  throw_error(ErrorCode::kIo, "cannot {} {}: {}", what, path, std::strerror(errno));
}

}  // namespace

EarlierResults::EarlierResults(const std::string& path) : path_(path) {
  if (!fs::is_regular_file(path)) return;
  std::ifstream file(path);
  if (!file) fail_to("read", path);
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    const bool torn = file.eof();  // without a newline
    const auto result = torn ? std::nullopt : parse_result(line);
    if (!result && !torn && file.peek() != std::ifstream::traits_type::eof()) {
      throw_error(ErrorCode::kCorruptData,
                  "{}:{} is no result of an earlier run: --resume can't go on behind it", path,
                  number);
    }
    const bool kept = result && !has_completion(*result, is_cut_short) && add(*result);
    kept_.push_back(kept);
  }
  if (file.bad()) fail_to("read", path);
}

bool EarlierResults::add(const json& result) {
  const auto index = result["index"].get<int64_t>();
  std::optional<size_t> custom_id;
  if (!result.contains("error")) {
    const json id = result.value("custom_id", json());
    custom_id = id.is_string() ? hash_of(id.get<std::string>()) : 0;
  }
  if (!answered_.emplace(index, custom_id).second) return false;
  num_failed_ += has_failed(result) ? 1 : 0;
  last_index_ = std::max(last_index_, index);
  return true;
}

bool EarlierResults::may_answer(int64_t index, const std::optional<std::string>& custom_id) const {
  const std::optional<size_t>& answered = answered_.at(index);
  return !answered || *answered == (custom_id ? hash_of(*custom_id) : 0);
}

void EarlierResults::tidy(OutputLock& lock) const {
  if (std::ranges::find(kept_, false) == kept_.end()) return;
  const std::string path = fs::canonical(path_);  // a link stays one
  const Draft copy(path);
  std::ifstream from(path);
  std::ofstream to(copy.path());
  std::string line;
  for (size_t i = 0; i < kept_.size() && std::getline(from, line); ++i) {
    if (kept_[i]) to << line << "\n";
  }
  to.close();
  if (!to || from.bad()) fail_to("write", copy.path());
  std::error_code error;
  fs::permissions(copy.path(), fs::status(path).permissions(), error);
  OutputLock lock_of_copy(copy.path());  // before others see it in its place
  const int failure = copy.take_place();
  if (failure != 0) {
    throw_error(ErrorCode::kIo, "cannot replace {}: {}", path, std::strerror(failure));
  }
  lock = std::move(lock_of_copy);
}

}  // namespace nanovllm::cli
