// Names of the hub: OWNER/MODEL[@REVISION][:TYPE], or the addresses of its pages; and what a hub
// may call its files.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace nanovllm::hub {

struct HubName {
  std::string repository;  // OWNER/MODEL
  std::string revision = "main";
  std::string type = {};  // of a GGUF file: "Q4_K_M", or a file's name; empty = none was asked for

  std::string text() const;  // without what nobody has to say
};

// Of the address of a model's page or file at huggingface.co or hf.co,
// OWNER/MODEL[@REVISION][:TYPE]; of any other text the text. Throws Error(kInvalidArgument) for
// https:// of anything else.
std::string name_of_address(const std::string& text);
// The same for who takes away what is named: with the revision that the address has, "main" too.
// Throws Error(kInvalidArgument) for the address of a file that is no model of its own, as well.
std::string exact_name_of_address(const std::string& text);

// Nothing where `text` can't be a name but a path. Throws Error(kInvalidArgument) where OWNER/MODEL
// is followed by what is no revision or type, and as name_of_address() does.
std::optional<HubName> parse_name(const std::string& text);
// The same, but only names will do.
HubName expect_name(const std::string& text);

// Whether a path is none below its folder, by its words alone: "..", "//", "/" at an end, or empty.
bool leaves_folder(const std::string& path);
// Whether it stays there and can be kept and shown: no control characters, no backslash.
bool is_safe_path(const std::string& path);

// Whether it is so many hexadecimal digits in lower case.
bool is_hash(std::string_view text, size_t num_digits);
inline constexpr size_t kSha1Digits = 40, kSha256Digits = 64;

}  // namespace nanovllm::hub
