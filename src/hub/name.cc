#include "hub/name.h"

#include <algorithm>
#include <cctype>

#include "base/check.h"
#include "io/json.h"

namespace nanovllm::hub {
namespace {

constexpr size_t kMaxRepositoryBytes = 96;  // the hub's own limit
constexpr size_t kMaxPathBytes = 255;

bool is_word(std::string_view text) {
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  };
  const auto is_edge = [](char c) { return c == '-' || c == '.'; };
  return !text.empty() && std::ranges::all_of(text, fits) && !is_edge(text.front()) &&
         !is_edge(text.back()) && text.find("..") == text.npos && text.find("--") == text.npos;
}

bool is_repository(std::string_view text) {
  const size_t slash = text.find('/');
  return slash != text.npos && text.size() <= kMaxRepositoryBytes &&
         is_word(text.substr(0, slash)) && is_word(text.substr(slash + 1));
}

}  // namespace

std::optional<HubName> parse_name(const std::string& text) {
  size_t mark = std::min(text.find_first_of("@:"), text.size());
  HubName name{.repository = text.substr(0, mark)};
  if (!is_repository(name.repository)) return std::nullopt;
  std::string revision;
  while (mark < text.size()) {
    const size_t next = std::min(text.find_first_of("@:", mark + 1), text.size());
    std::string& part = text[mark] == '@' ? revision : name.type;
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
  if (!revision.empty()) name.revision = revision;
  return name;
}

HubName expect_name(const std::string& text) {
  if (auto name = parse_name(text)) return *name;
  throw_error(ErrorCode::kInvalidArgument,
              "{}: not a name of the hub, which is OWNER/MODEL, such as Qwen/Qwen3-0.6B",
              printable(text, 300));
}

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > kMaxPathBytes) return false;
  const auto is_bad = [](unsigned char c) { return c < ' ' || c == 0x7f || c == '\\'; };
  if (std::ranges::any_of(path, is_bad)) return false;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

bool is_hash(std::string_view text, size_t num_digits) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() == num_digits && std::ranges::all_of(text, is_digit);
}

}  // namespace nanovllm::hub
