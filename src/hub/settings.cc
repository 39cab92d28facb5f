#include "hub/settings.h"

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <regex>

#include "base/check.h"
#include "io/file.h"
#include "io/json.h"

namespace nanovllm::hub {
namespace {

constexpr size_t kMaxTokenBytes = 4096;

// What a variable says, or something else where it says nothing.
std::string variable(const char* name, const std::string& otherwise = "") {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

// The user's folder, also where nobody says which it is, as in services and cron's jobs.
std::string home_folder() {
  std::array<char, 16384> text;
  passwd entry = {}, *found = nullptr;
  std::string home = variable("HOME");
  if (!home.empty() || getpwuid_r(getuid(), &entry, text.data(), text.size(), &found) != 0 ||
      found == nullptr) {
    return home;
  }
  return found->pw_dir;
}

// The same of a path, in which ~ is the user's folder, and $NAME or ${NAME} another variable.
std::string path(const char* name, const std::string& otherwise) {
  static const std::regex form(R"(\$\{?(\w+)\}?)");
  std::string rest = variable(name, otherwise), done;
  if (rest.starts_with("~/")) rest.replace(0, 1, home_folder());
  for (std::smatch found; std::regex_search(rest, found, form);) {
    done += found.prefix().str() + variable(found.str(1).c_str(), found.str());
    rest = found.suffix().str();
  }
  return done + rest;
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
  const std::string home =
      path("HF_HOME", path("XDG_CACHE_HOME", home_folder() + "/.cache") + "/huggingface");
  Settings settings;
  settings.cache = path("HF_HUB_CACHE", path("HUGGINGFACE_HUB_CACHE", home + "/hub"));
  settings.endpoint = variable("HF_ENDPOINT", "https://huggingface.co");
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  settings.shown = std::regex_replace(settings.endpoint, std::regex("//[^/]*@"), "//");
  if (!settings.endpoint.starts_with("https://") && !settings.endpoint.starts_with("http://")) {
    throw_error(ErrorCode::kInvalidArgument,
                "HF_ENDPOINT must be an address such as https://huggingface.co, got {}",
                printable(settings.shown));
  }
  settings.offline = is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE");
  settings.token_source = "HF_TOKEN";
  settings.token = checked_token(variable("HF_TOKEN", variable("HUGGING_FACE_HUB_TOKEN")),
                                 settings.token_source);
  if (!settings.token.empty()) return settings;
  settings.token_source = path("HF_TOKEN_PATH", home + "/token");
  if (file_exists(settings.token_source)) {
    settings.token = checked_token(read_text_file(settings.token_source), settings.token_source);
  }
  return settings;
}

}  // namespace nanovllm::hub
