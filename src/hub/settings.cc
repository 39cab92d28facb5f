#include "hub/settings.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "base/check.h"
#include "io/file.h"
#include "io/json.h"

namespace nanovllm::hub {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The path in a variable, or another one where it says none.
std::string path_in(const char* name, const std::string& otherwise) {
  std::string path = variable(name);
  if (path == "~" || path.starts_with("~/")) path.replace(0, 1, variable("HOME"));
  return path.empty() ? otherwise : path;
}

bool is_on(const char* name) {
  std::string value = variable(name);
  std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::toupper(c); });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

// A token goes into a header: a line break in it would begin another one.
std::string trimmed(const std::string& text, const std::string& source) {
  const char* blanks = " \t\r\n";
  const size_t begin = std::min(text.find_first_not_of(blanks), text.size());
  const std::string token = text.substr(begin, text.find_last_not_of(blanks) + 1 - begin);
  if (std::ranges::all_of(token, [](char c) { return c > ' ' && c < 0x7f; })) return token;
  throw_error(
      ErrorCode::kInvalidArgument,
      "{} holds no token of the hub: it has blanks or signs in it that no token has; get one "
      "at https://huggingface.co/settings/tokens",
      source);
}

}  // namespace

Settings read_settings() {
  const std::string home =
      path_in("HF_HOME", path_in("XDG_CACHE_HOME", variable("HOME") + "/.cache") + "/huggingface");
  Settings settings;
  settings.cache = path_in("HF_HUB_CACHE", path_in("HUGGINGFACE_HUB_CACHE", home + "/hub"));
  settings.endpoint = variable("HF_ENDPOINT");
  if (settings.endpoint.empty()) settings.endpoint = "https://huggingface.co";
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  if (!settings.endpoint.starts_with("https://") && !settings.endpoint.starts_with("http://")) {
    throw_error(ErrorCode::kInvalidArgument,
                "HF_ENDPOINT must be an address such as https://huggingface.co, got {}",
                printable(settings.endpoint));
  }
  settings.offline = is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE");
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (settings.token.empty()) settings.token = trimmed(variable(name), name);
    if (settings.token_source.empty() && !settings.token.empty()) settings.token_source = name;
  }
  if (settings.token.empty()) {
    settings.token_source = path_in("HF_TOKEN_PATH", home + "/token");
    if (file_exists(settings.token_source)) {
      settings.token =
          trimmed(read_text_file(settings.token_source, 1 << 16), settings.token_source);
    }
  }
  return settings;
}

}  // namespace nanovllm::hub
