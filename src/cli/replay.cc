#include "cli/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>

#include "base/check.h"
#include "io/json.h"
#include "nanovllm/prepare.h"

namespace nanovllm::cli {

namespace {

std::vector<int32_t> ids_of(const JsonFields& fields, const char* key) {
  constexpr const char* kExpected = "a list of one token id or more";
  const Json& list = fields.required(key);
  if (!list.is_array() || list.empty()) fields.fail(key, kExpected);
  std::vector<int32_t> ids;
  for (const Json& entry : list) {
    const auto id = integer_of(entry);
    if (!id || *id < 0 || *id > INT32_MAX) fields.fail(key, kExpected);
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

}  // namespace

Replay::Replay(const std::string& path) : path_(path) {
  std::error_code ignored;  // what can't be looked at can't be read either
  if (std::filesystem::is_directory(path, ignored)) {
    throw_error(ErrorCode::kIo, "{} is a folder; --replay needs a file of JSON lines.", path);
  }
  std::ifstream file(path);
  if (!file) throw_error(ErrorCode::kIo, "{} can't be read; --replay needs a file.", path);
  std::string text;
  for (int64_t number = 1; std::getline(file, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    Line line;
    line.number = number;
    const Json json = parse_json(text, path, number);
    if (!json.is_object()) {
      throw_error(ErrorCode::kCorruptData,
                  "{}: expected a JSON object with \"prompt\" and \"token_ids\", found {}.",
                  where(line), json.type_name());
    }
    const JsonFields fields(json, where(line));
    if (auto prompt = fields.string("prompt")) {
      line.prompt = std::move(*prompt);
    } else {
      line.prompt = ids_of(fields, "prompt_token_ids");
    }
    line.token_ids = ids_of(fields, "token_ids");
    lines_.push_back(std::move(line));
  }
  if (lines_.empty()) {
    throw_error(ErrorCode::kCorruptData, "{} has no lines; --replay needs one at least.", path);
  }
}

std::string Replay::where(const Line& line) const {
  return fmt::format("{}:{}", path_, line.number);
}

void Replay::resolve(const LLMEngine& engine) {
  const int vocab_size = engine.info().vocab_size;
  for (Line& line : lines_) {
    std::vector<int32_t> ids = engine.preparer().token_ids(std::move(line.prompt));
    if (ids.empty()) {
      throw_error(ErrorCode::kInvalidArgument, "{}: the prompt has no tokens.", where(line));
    }
    for (const auto& [what, some] :
         {std::pair("prompt", &ids), std::pair("output", &line.token_ids)}) {
      const auto unknown =
          std::ranges::find_if(*some, [&](int32_t id) { return id >= vocab_size; });
      if (unknown == some->end()) continue;
      throw_error(ErrorCode::kInvalidArgument,
                  "{}: the {} has the id {}, but the model knows 0 to {}.", where(line), what,
                  *unknown, vocab_size - 1);
    }
    const auto [known, is_new] = dictated_->try_emplace(ids, line.token_ids);
    if (!is_new && known->second != line.token_ids) {
      throw_error(ErrorCode::kInvalidArgument,
                  "{}: the prompt is that of an earlier line, but the output is another.",
                  where(line));
    }
    line.prompt = std::move(ids);
  }
}

int64_t Replay::input_tokens(int64_t i) const {
  return std::ssize(std::get<std::vector<int32_t>>(line(i).prompt));
}
int64_t Replay::output_tokens(int64_t i) const { return std::ssize(line(i).token_ids); }

Prompt Replay::prompt(int64_t i) const { return line(i).prompt; }

SamplingParams Replay::params(int64_t i, int64_t pass) const {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = static_cast<int>(output_tokens(i));
  params.ignore_eos = true;
  params.output_kind = RequestOutputKind::kFinalOnly;
  params.cache_salt = fmt::format("pass {}", pass);
  return params;
}

}  // namespace nanovllm::cli
