#include "cli/conversation.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/check.h"
#include "io/file.h"
#include "io/gguf.h"
#include "io/json.h"
#include "io/stdio_file.h"

namespace nanovllm::cli {
namespace {

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};

[[noreturn]] void fail_to_save(const std::string& path, const char* reason) {
  throw_error(ErrorCode::kInvalidArgument, "cannot save the conversation to {}: {}", path, reason);
}

File open_to_save(const std::string& path) {
  struct stat status = {};
  // Opening a pipe would wait for whoever reads it.
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    fail_to_save(path, "not a regular file");
  }
  File file(std::fopen(path.c_str(), "w"));
  if (file == nullptr) fail_to_save(path, std::strerror(errno));
  return file;
}

void check_message(const Messages& message, size_t number, const std::string& path) {
  const auto fail = [&](const std::string& what) {
    throw_error(ErrorCode::kInvalidArgument, "{}, message {}: {}", path, number, what);
  };
  if (!message.is_object()) fail("must be an object with \"role\" and \"content\"");
  for (const char* key : {"role", "content"}) {
    if (!message.contains(key) || !message[key].is_string()) {
      fail(fmt::format("\"{}\" must be there and be a text", key));
    }
  }
  const auto& role = message["role"].get_ref<const std::string&>();
  if (std::ranges::find(kRoles, role) != kRoles.end()) return;
  fail(fmt::format("\"role\" must be one of {}, not {}", fmt::join(kRoles, ", "), printable(role)));
}

}  // namespace

std::unique_ptr<ChatTemplate> load_template(const std::string& model, const std::string& file,
                                            bool has_tools) {
  if (!find_gguf(model)) check_is_folder(model);
  if (!file.empty()) return ChatTemplate::from_source(read_text_file(file), model, file);
  auto loaded = ChatTemplate::load(model);
  const std::string fault = loaded->fault(has_tools);
  if (!fault.empty()) throw_error(ErrorCode::kCorruptData, "{}", fault);
  return loaded;
}

std::string system_of(const Messages& messages) {
  if (messages.empty() || messages.front()["role"] != "system") return "";
  return messages.front()["content"].get<std::string>();
}

void save_messages(const Messages& messages, const std::string& path) {
  File file = open_to_save(path);
  // An answer that was stopped may end within a character.
  const auto replace = Messages::error_handler_t::replace;
  const std::string text = messages.dump(2, ' ', false, replace) + "\n";
  const bool written = std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  if (std::fflush(file.get()) != 0 || !written) fail_to_save(path, std::strerror(errno));
}

Messages load_messages(const std::string& path) {
  Messages messages;
  try {
    messages = parse_ordered_json(read_text_file(path), path);
  } catch (const Error& error) {
    throw Error(ErrorCode::kInvalidArgument, error.what());
  }
  if (!messages.is_array()) {
    throw_error(ErrorCode::kInvalidArgument,
                "{} must be a JSON list of messages such as {{\"role\": \"user\", \"content\": "
                "\"Hi\"}}",
                path);
  }
  for (size_t i = 0; i < messages.size(); ++i) check_message(messages[i], i + 1, path);
  return messages;
}

}  // namespace nanovllm::cli
