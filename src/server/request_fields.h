// The fields of a call's body: each is asked for by name and type, and those that nobody asks for
// are unknown.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/sampling_params.h"
#include "server/json_body.h"
#include "server/protocol.h"

namespace nanovllm::server {

inline constexpr size_t kMaxStops = 4;  // as vLLM and OpenAI have it

// Answers 400, naming a field.
template <typename... Args>
[[noreturn]] void refuse(std::string_view param, fmt::format_string<Args...> format,
                         Args&&... args) {
  throw ApiError(400, fmt::format(format, std::forward<Args>(args)...), std::string(param));
}

class RequestFields {
 public:
  // Throws ApiError where the body is no JSON object.
  RequestFields(std::string_view body, int max_depth);

  const Json* find_or_null(std::string_view name);  // may be a JSON null
  const Json* find(std::string_view name);          // null pointer: absent or null
  // Absent or null reads as nothing or as `otherwise`. Throw ApiError for another type.
  bool boolean(std::string_view name, bool otherwise = false);
  std::optional<int64_t> integer(std::string_view name,
                                 int64_t min = std::numeric_limits<int64_t>::min(),
                                 int64_t max = std::numeric_limits<int64_t>::max());
  std::optional<std::string> text(std::string_view name);
  const Json* object(std::string_view name);
  const Json* array(std::string_view name);

  void read(std::string_view parameter, SamplingParams& params);
  // Every parameter of engine/sampling_table.h but these.
  void read_all(SamplingParams& params, std::initializer_list<std::string_view> but);
  // Throws ApiError where the call asks for what would change its answer and is not there.
  void refuse_unsupported();
  // Throws ApiError (404) where `model` is none of ours.
  void check_model(const ServedModel& model);
  std::vector<std::string> unknown() const;

 private:
  const Json* typed(std::string_view name, bool (Json::*is_type)() const, const char* expected);

  Json body_;
  std::set<std::string, std::less<>> asked_;
};

// Of a JSON number that is one, be it written as 16.0.
std::optional<int64_t> whole_number(const Json& value);
std::string shown(const Json& value);

}  // namespace nanovllm::server
