#include "hub/name.h"

#include <algorithm>
#include <charconv>
#include <regex>

#include "base/check.h"
#include "io/json.h"

namespace nanovllm::hub {
namespace {

constexpr size_t kMaxRepositoryBytes = 96;  // the hub's own limit
constexpr size_t kMaxPathBytes = 255;
constexpr size_t kMaxAddressBytes = 1000;

bool is_repository(const std::string& text) {
  static const std::regex form(R"(\w([\w.-]*\w)?/\w([\w.-]*\w)?)");
  return text.size() <= kMaxRepositoryBytes && text.find("..") == text.npos &&
         text.find("--") == text.npos && std::regex_match(text, form);
}

// What the hub's site has under other words than an owner's: no name of a model begins so.
bool is_no_owner(const std::string& path) {
  static const std::regex form(
      "(api|blog|chat|collections|datasets|docs|inference|learn|models|organizations|papers|posts|"
      "settings|spaces|tasks)/.*",
      std::regex::icase);
  return std::regex_match(path, form);
}

// Of a part of an address, "%2F" and the like as what they stand for.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* digits = text.data() + i + 1;
    const bool is_code = text[i] == '%' && i + 2 < text.size() &&
                         std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    plain += is_code ? static_cast<char>(byte) : text[i];
    if (is_code) i += 2;
  }
  return plain;
}

// `exactly`: as exact_name_of_address().
std::string read_address(const std::string& text, bool exactly) {
  static const std::regex site(R"((https?://)?(www\.)?(huggingface\.co|hf\.co)/([^?#]+).*)",
                               std::regex::icase);
  static const std::regex page(R"(([^/]+/[^/]+)/(tree|blob|resolve|raw|commits?)/([^/]+)/?(.*))");
  if (text.size() > kMaxAddressBytes) return text;
  std::smatch found, parts;
  std::string path = std::regex_match(text, found, site) ? found.str(4) : "";
  while (path.ends_with('/')) path.pop_back();
  if (is_no_owner(path)) path.clear();
  if (std::regex_match(path, parts, page)) {
    HubName name{.repository = parts[1], .revision = unescaped(parts[3])};
    const std::string inner = unescaped(parts[4]);
    // Of files only those of GGUF are models of their own, as are folders named after their type.
    if (inner.ends_with(".gguf") || (parts[2] == "tree" && !inner.empty())) name.type = inner;
    if (exactly && name.type.empty() && !inner.empty()) {
      throw_error(ErrorCode::kInvalidArgument,
                  "{0}: the address of a file that is no model of its own; {1} would be all of the "
                  "model, {1}@{2} that revision of it",
                  printable(text, 300), name.repository, printable(name.revision));
    }
    path = name.text();
    if (exactly && name.revision == "main") path.insert(name.repository.size(), "@main");
  }
  if (is_repository(path.substr(0, path.find_first_of("@:")))) return path;
  if (!text.starts_with("https://") && !text.starts_with("http://")) return text;
  throw_error(
      ErrorCode::kInvalidArgument,
      "{}: not the address of a model, such as https://huggingface.co/Qwen/Qwen3-0.6B; name "
      "one by OWNER/MODEL, and a hub elsewhere by HF_ENDPOINT",
      printable(text, 300));
}

}  // namespace

std::string HubName::text() const {
  return repository + (revision == "main" ? "" : "@" + revision) + (type.empty() ? "" : ":" + type);
}

std::string name_of_address(const std::string& text) { return read_address(text, false); }
std::string exact_name_of_address(const std::string& text) { return read_address(text, true); }

std::optional<HubName> parse_name(const std::string& given) {
  const std::string text = name_of_address(given);
  size_t mark = std::min(text.find_first_of("@:"), text.size());
  HubName name{.repository = text.substr(0, mark), .revision = ""};
  if (!is_repository(name.repository)) return std::nullopt;
  while (mark < text.size()) {
    const size_t next = std::min(text.find_first_of("@:", mark + 1), text.size());
    std::string& part = text[mark] == '@' ? name.revision : name.type;
    const std::string value = text.substr(mark + 1, next - mark - 1);
    if (!part.empty() || !is_safe_path(value)) {
      throw_error(
          ErrorCode::kInvalidArgument,
          "{}: a name of the hub is OWNER/MODEL, OWNER/MODEL@REVISION with a branch, tag or "
          "commit, or OWNER/MODEL:TYPE with a type of GGUF such as Q4_K_M",
          printable(text, 300));
    }
    part = value;
    mark = next;
  }
  if (name.revision.empty()) name.revision = "main";
  return name;
}

HubName expect_name(const std::string& text) {
  if (auto name = parse_name(text)) return *name;
  throw_error(ErrorCode::kInvalidArgument,
              "{}: not a name of the hub, which is OWNER/MODEL, such as Qwen/Qwen3-0.6B",
              printable(text, 300));
}

bool leaves_folder(const std::string& path) {
  static const std::regex bad(R"((^|/)\.{0,2}(/|$))");
  return std::regex_search(path, bad);
}

bool is_safe_path(const std::string& path) {
  return path.size() <= kMaxPathBytes && !leaves_folder(path) && path.find('\\') == path.npos &&
         printable(path, kMaxPathBytes) == path;
}

bool is_hash(std::string_view text, size_t num_digits) {
  return text.size() == num_digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

}  // namespace nanovllm::hub
