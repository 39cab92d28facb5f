#include "cli/earlier_results.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "io/output_file.h"

namespace nanovllm::cli {
namespace {

namespace fs = std::filesystem;

size_t hash_of(const std::string& custom_id) { return std::hash<std::string>()(custom_id) | 1; }

// Whether a text that begins as `pattern` says, in which # stands for digits, may begin with
// `line`.
bool agree(std::string_view line, std::string_view pattern) {
  constexpr std::string_view kDigits = "0123456789";
  for (const char wanted : pattern) {
    if (line.empty()) return true;
    if (wanted == '#') {
      const size_t num_digits = std::min(line.find_first_not_of(kDigits), line.size());
      if (num_digits == 0) return false;
      line.remove_prefix(num_digits);
    } else {
      if (line.front() != wanted) return false;
      line.remove_prefix(1);
    }
  }
  return true;
}

// Whether more of it could make it JSON.
bool is_begun_json(const std::string& text) {
  try {
    [[maybe_unused]] const auto whole = nlohmann::json::parse(text);
    return false;
  } catch (const nlohmann::json::parse_error& error) {
    return error.byte > text.size();
  }
}

[[noreturn]] void fail_to(const char* what, const std::string& path) {
  throw_error(ErrorCode::kIo, "cannot {} {}: {}", what, path, std::strerror(errno));
}

}  // namespace

bool ResultLines::may_be_torn(const std::string& line) const {
  const auto is_begin = [&](std::string_view pattern) { return agree(line, pattern); };
  return std::ranges::any_of(begins, is_begin) && (read(line) || is_begun_json(line));
}

EarlierResults::EarlierResults(const std::string& path, const ResultLines& lines) : path_(path) {
  if (!fs::is_regular_file(path)) return;
  std::ifstream file(path);
  if (!file) fail_to("read", path);
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    const bool has_end = !file.eof();
    const auto result = has_end ? lines.read(line) : std::nullopt;
    if (!result && (has_end || !lines.may_be_torn(line))) {
      throw_error(ErrorCode::kCorruptData,
                  "{}:{} is no result of an earlier run: --resume can't go on behind it; name the "
                  "output of that run, or a new one",
                  path, number);
    }
    const bool kept = result && !result->is_cut_short && add(*result);
    if (kept && num_first_kept_ == std::ssize(kept_)) {
      ++num_first_kept_;
      first_kept_ += line.size() + 1;
    }
    kept_.push_back(kept);
  }
  if (file.bad()) fail_to("read", path);
}

bool EarlierResults::add(const EarlierResult& result) {
  std::optional<size_t> custom_id;
  if (!result.is_to_any) custom_id = result.custom_id ? hash_of(*result.custom_id) : 0;
  if (!answered_.emplace(result.index, custom_id).second) return false;
  num_failed_ += result.has_failed ? 1 : 0;
  last_index_ = std::max(last_index_, result.index);
  return true;
}

bool EarlierResults::may_answer(int64_t index, const std::optional<std::string>& custom_id) const {
  const std::optional<size_t>& answered = answered_.at(index);
  return !answered || *answered == (custom_id ? hash_of(*custom_id) : 0);
}

void EarlierResults::tidy(OutputLock& lock) const {
  if (std::ranges::find(kept_, false) == kept_.end()) return;
  const std::string path = fs::canonical(path_);  // a link stays one
  if (std::ranges::count(kept_, true) == num_first_kept_) {
    std::error_code error;
    fs::resize_file(path, first_kept_, error);
    if (!error) return;
    throw_error(ErrorCode::kIo, "cannot write {}: {}", path, error.message());
  }
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
