// From the messages of a chat to the text of a prompt, for all that take chats.
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/parameter_error.h"
#include "nanovllm/chat.h"
#include "nanovllm/prepare.h"

namespace nanovllm {
namespace {

using Json = nlohmann::ordered_json;

// To its last part.
void append_to(Json& content, std::string_view words) {
  if (content.is_null()) content = "";
  Json* last = &content;
  if (content.is_array()) {
    if (content.empty()) content.push_back({{"type", "text"}, {"text", ""}});
    last = &content.back();
    if (last->is_object()) last = &(*last)["text"];
  }
  // Other types are left to who refuses them.
  if (last->is_string()) last->get_ref<std::string&>() += words;
}

// As transformers does it: the final message is found by a tag behind it, and what follows is cut.
std::string continue_final(const ChatTemplate& chat_template, Json messages, const Json& tools,
                           const Json& kwargs) {
  constexpr std::string_view kTag = "CONTINUE_FINAL_MESSAGE_TAG ";
  constexpr std::string_view kStripped = kTag.substr(0, kTag.size() - 1);
  if (messages.is_array() && !messages.empty() && messages.back().is_object()) {
    append_to(messages.back()["content"], kTag);
  }
  std::string text = chat_template.render(messages, tools, false, kwargs);
  const size_t at = text.rfind(kStripped);
  if (at == std::string::npos) {
    refuse_parameter(
        "continue_final_message",
        "continue_final_message is set but the final message does not appear in the chat after "
        "applying the chat template.");
  }
  const bool keeps_spaces = text.compare(at, kTag.size(), kTag) == 0;
  text.resize(at);
  if (!keeps_spaces) text.resize(text.find_last_not_of(" \t\n\r\f\v") + 1);
  return text;
}

}  // namespace

ChatText chat_text(const ChatTemplate& chat_template, const Json& messages, const Json& tools,
                   const Json& kwargs, const ChatTextOptions& options) {
  if (options.continue_final_message && options.add_generation_prompt) {
    refuse_parameter(
        "continue_final_message",
        "Cannot set both `continue_final_message` and `add_generation_prompt` to True; "
        "`add_generation_prompt` is True unless the request says otherwise.");
  }
  ChatText chat;
  chat.text = options.continue_final_message
                  ? continue_final(chat_template, messages, tools, kwargs)
                  : chat_template.render(messages, tools, options.add_generation_prompt, kwargs);
  chat.add_special_tokens = options.add_special_tokens && !chat_template.adds_bos();  // never two
  return chat;
}

}  // namespace nanovllm
