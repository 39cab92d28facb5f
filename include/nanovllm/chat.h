// Renders a list of messages to the prompt text that a model was trained on, with the model's
// Hugging Face chat template. Code that includes this needs the headers of nlohmann-json.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace nanovllm {

// Immutable and thread-safe after construction.
class ChatTemplate {
 public:
  // The template of a model folder: chat_template.jinja (and, for calls with tools,
  // additional_chat_templates/tool_use.jinja), else chat_template.json, else the chat_template of
  // tokenizer_config.json. If that is a list: the one named "default", or "tool_use" if tools are
  // given. Of a GGUF file: tokenizer.chat_template, and tokenizer.chat_template.tool_use. Throws
  // Error(kNotFound) if there is none.
  static std::unique_ptr<ChatTemplate> load(const std::string& model);
  // The template `source` with the special tokens of a model folder or a GGUF file.
  static std::unique_ptr<ChatTemplate> from_source(const std::string& source,
                                                   const std::string& model);
  // The template `source` alone. All three throw Error(kCorruptData) with line and column if a
  // template does not parse.
  explicit ChatTemplate(const std::string& source);
  ~ChatTemplate();

  // messages: array of {"role", "content", ...}, not empty. tools: array or null. kwargs: object of
  // further variables (enable_thinking, ...); bos_token and eos_token in it replace the model's.
  // Throws Error(kInvalidArgument), with line and column, for raise_exception and whatever else
  // Jinja would raise.
  std::string render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                     bool add_generation_prompt, const nlohmann::ordered_json& kwargs) const;

  // The template's text; several templates are concatenated in the order of their names.
  const std::string& source() const;

 private:
  ChatTemplate();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nanovllm
