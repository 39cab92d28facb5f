// The messages of a chat, and files of them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace nanovllm::cli {

// Messages as the OpenAI API has them: [{"role": "user", "content": "Hi"}, ...].
using Messages = nlohmann::ordered_json;

// The system message that a conversation begins with; empty where there is none.
std::string system_of(const Messages& messages);

// Writes what load_messages() reads; an old file of this name is gone then. Throws
// Error(kInvalidArgument) where the file can't be written.
void save_messages(const Messages& messages, const std::string& path);
// Throws Error(kInvalidArgument) for a file that can't be read or holds something else.
Messages load_messages(const std::string& path);

}  // namespace nanovllm::cli
