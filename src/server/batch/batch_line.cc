#include "server/batch/batch_line.h"

#include <fmt/format.h>

#include <charconv>
#include <vector>

#include "io/json.h"
#include "server/openai/answer.h"
#include "server/routes.h"
#include "text/json_reader.h"

namespace nanovllm::server {
namespace {

using text::JsonReader;

constexpr std::string_view kIdPrefix = "batch_req_";
constexpr const char* kBadJson = "invalid_json_line";

// A member's value where it is a text or null; other values are a fault.
std::optional<std::string> text_of(std::string_view value, std::string_view name,
                                   std::optional<BatchFault>& fault) {
  if (value == "null" || value.empty()) return std::nullopt;
  if (value.starts_with('"')) {
    const std::string origin = "the line";
    return std::string(JsonReader(value, origin).string());
  }
  fault = BatchFault{"invalid_request",
                     fmt::format("{} must be a text, got {}.", name, printable(value))};
  return std::nullopt;
}

BatchFault missing(const char* name) {
  return {"missing_required_parameter",
          fmt::format("The line has no {}; one is {{\"custom_id\": \"a\", \"method\": \"POST\", "
                      "\"url\": \"/v1/chat/completions\", \"body\": {{...}}}}.",
                      name)};
}

bool takes_batches(const Route& route) {
  return !std::holds_alternative<AnswerAtOnce>(route.handler) && route.takes("POST");
}

std::string wrong_url(std::string_view url) {
  std::vector<std::string_view> paths;
  for (const Route& route : routes()) {
    if (takes_batches(route)) paths.emplace_back(route.operation.path);
  }
  return fmt::format("url must be one of {}, got {}.", fmt::join(paths, ", "), printable(url));
}

// What the members are, as text.
struct Members {
  std::string_view custom_id, method, url, body;

  std::string_view* find(std::string_view name) {
    if (name == "custom_id") return &custom_id;
    if (name == "method") return &method;
    if (name == "url") return &url;
    return name == "body" ? &body : nullptr;
  }
};

Members members_of(std::string_view line) {
  const std::string origin = "the line";
  JsonReader reader(line, origin);
  Members members;
  std::string name;
  reader.begin('{');
  for (bool first = true; reader.next_member(first, name);) {
    const std::string_view value = reader.skip_value();
    std::string_view* const member = members.find(name);
    if (member == nullptr) continue;
    if (!member->empty()) reader.fail("the same member again");
    *member = value;
  }
  reader.end();
  return members;
}

void read(const Members& members, BatchRequest& request) {
  std::optional<BatchFault>& fault = request.fault;
  request.custom_id = text_of(members.custom_id, "custom_id", fault);
  const auto method = text_of(members.method, "method", fault);
  const auto url = text_of(members.url, "url", fault);
  if (fault) return;
  if (!method) {
    fault = missing("method");
  } else if (*method != "POST") {
    fault = BatchFault{"invalid_method",
                       fmt::format("method must be POST, got {}.", printable(*method))};
  } else if (!url) {
    fault = missing("url");
  } else if (const Route* route = find_route(*url); route == nullptr || !takes_batches(*route)) {
    fault = BatchFault{"invalid_url", wrong_url(*url)};
  } else if (members.body.empty()) {
    fault = missing("body");
  } else {
    request.url = *url;
    request.body = members.body;
  }
}

// In the words of a parser that knows more of JSON than where a value ends.
std::string fault_of_json(std::string_view line, int64_t number) {
  try {
    parse_ordered_json(line, "the line", {.allows_repeats = false, .first_line = number});
    return "A line must be a JSON object.";
  } catch (const Error& error) {
    return error.what();
  }
}

// Up to the response.
std::string head_of(const BatchPlace& place) {
  return fmt::format(R"({{"id":"{}{}","custom_id":{},"response":)", kIdPrefix, place.index,
                     place.custom_id ? json_text(*place.custom_id) : "null");
}

std::string error_of(std::string_view code, std::string_view message) {
  return fmt::format(R"({{"code":{},"message":{}}})", json_text(code), json_text(message));
}

}  // namespace

BatchRequest parse_batch_request(std::string_view line, int64_t number) {
  BatchRequest request;
  try {
    read(members_of(line), request);
  } catch (const Error&) {
    request.fault = BatchFault{kBadJson, fault_of_json(line, number)};
  }
  return request;
}

std::string batch_answer(const BatchPlace& place, const std::string& request_id,
                         const HttpResponse& response) {
  std::string error = "null";
  if (response.error) {
    const std::string& code = response.error->code;
    error = error_of(code.empty() ? type_of(response.status) : code, response.error->message);
  }
  std::string line = head_of(place);
  line += fmt::format(R"({{"status_code":{},"request_id":{},"body":)", response.status,
                      json_text(request_id));
  append_in_one_line(line, response.body);
  return line + fmt::format("}},\"error\":{}}}\n", error);
}

std::string batch_answer(const BatchPlace& place, const BatchFault& fault) {
  return head_of(place) + fmt::format("null,\"error\":{}}}\n", error_of(fault.code, fault.message));
}

std::optional<BatchAnswer> read_batch_answer(std::string_view line) {
  const std::string origin = "the line";
  BatchAnswer answer;
  bool has_id = false;
  std::string_view response, fault;
  try {
    JsonReader reader(line, origin);
    std::string name;
    reader.begin('{');
    for (bool first = true; reader.next_member(first, name);) {
      if (name == "id") {
        std::string_view id = reader.string();
        if (!id.starts_with(kIdPrefix)) return std::nullopt;
        id.remove_prefix(kIdPrefix.size());
        const auto [end, error] =
            std::from_chars(id.data(), id.data() + id.size(), answer.place.index);
        has_id = error == std::errc() && end == id.data() + id.size() && answer.place.index >= 0;
      } else if (name == "custom_id" && reader.peek() == '"') {
        answer.place.custom_id = reader.string();
      } else {
        const std::string_view value = reader.skip_value();
        if (name == "response") response = value;
        if (name == "error") fault = value;
      }
    }
    reader.end();
  } catch (const Error&) {
    return std::nullopt;
  }
  if (!has_id || response.empty() || fault.empty()) return std::nullopt;
  answer.was_asked = response != "null";
  answer.has_failed = fault != "null";
  return answer;
}

}  // namespace nanovllm::server
