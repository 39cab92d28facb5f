#include "hub/settings.h"

#include <cstdlib>
#include <regex>

#include "base/check.h"
#include "io/file.h"
#include "io/json.h"

namespace nanovllm::hub {
namespace {

constexpr size_t kMaxTokenBytes = 4096;

// What a variable says, or something else where it says nothing; of a path, ~ is the user's folder.
std::string variable(const char* name, const std::string& otherwise = "") {
  const char* value = std::getenv(name);
  std::string text = value == nullptr ? "" : value;
  if (text.starts_with("~/")) text.replace(0, 1, variable("HOME"));
  return text.empty() ? otherwise : text;
}

bool is_on(const char* name) {
  return std::regex_match(variable(name), std::regex("1|on|yes|true", std::regex::icase));
}

// A token goes into a header: a line break in it would begin another one.
std::string checked_token(const std::string& text, const std::string& source) {
  static const std::regex form(R"(\s*([!-~]*)\s*)");
  std::smatch found;
  if (text.size() <= kMaxTokenBytes && std::regex_match(text, found, form)) return found[1];
  throw_error(
      ErrorCode::kInvalidArgument,
      "{} holds no token of the hub: it has blanks or signs in it that no token has; get one "
      "at https://huggingface.co/settings/tokens",
      source);
}

}  // namespace

Settings read_settings() {
  const std::string home = variable(
      "HF_HOME", variable("XDG_CACHE_HOME", variable("HOME") + "/.cache") + "/huggingface");
  Settings settings;
  settings.cache = variable("HF_HUB_CACHE", variable("HUGGINGFACE_HUB_CACHE", home + "/hub"));
  settings.endpoint = variable("HF_ENDPOINT", "https://huggingface.co");
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  if (!settings.endpoint.starts_with("https://") && !settings.endpoint.starts_with("http://")) {
    throw_error(ErrorCode::kInvalidArgument,
                "HF_ENDPOINT must be an address such as https://huggingface.co, got {}",
                printable(settings.endpoint));
  }
  settings.offline = is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE");
  settings.token_source = "HF_TOKEN";
  settings.token = checked_token(variable("HF_TOKEN", variable("HUGGING_FACE_HUB_TOKEN")),
                                 settings.token_source);
  if (!settings.token.empty()) return settings;
  settings.token_source = variable("HF_TOKEN_PATH", home + "/token");
  if (file_exists(settings.token_source)) {
    settings.token = checked_token(read_text_file(settings.token_source), settings.token_source);
  }
  return settings;
}

}  // namespace nanovllm::hub
