// The messages of a chat, files of them, and the template that makes prompts of them.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "nanovllm/chat.h"

namespace nanovllm::cli {

// Messages as the OpenAI API has them: [{"role": "user", "content": "Hi"}, ...].
using Messages = nlohmann::ordered_json;

// The template of a model, or the one of a file, with the model's special tokens; `file` is empty
// where there is none. Throws Error where chats, or chats with tools, can't be rendered by it.
std::unique_ptr<ChatTemplate> load_template(const std::string& model, const std::string& file,
                                            bool has_tools);

// The system message that a conversation begins with; empty where there is none.
std::string system_of(const Messages& messages);

// Writes what load_messages() reads; an old file of this name is gone then. Throws
// Error(kInvalidArgument) where the file can't be written.
void save_messages(const Messages& messages, const std::string& path);
// Throws Error(kInvalidArgument) for a file that can't be read or holds something else.
Messages load_messages(const std::string& path);

}  // namespace nanovllm::cli
