// Hugging Face chat templates: a list of messages to the prompt text the model was trained on. Who
// includes this needs nlohmann-json's headers.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace nanovllm {

// Immutable and thread-safe after construction.
class ChatTemplate {
 public:
  // The template of a model folder: chat_template.jinja, else tokenizer_config.json's chat_template
  // (the one named "default", or "tool_use" when tools are given, where it is a list). Of a GGUF
  // file tokenizer.chat_template, and its .tool_use. Throws Error(kNotFound) when there is none.
  static std::unique_ptr<ChatTemplate> load(const std::string& model);
  // That template with the special tokens of a model folder or a GGUF file.
  static std::unique_ptr<ChatTemplate> from_source(const std::string& source,
                                                   const std::string& model);
  // That template alone. All three throw Error(kCorruptData) with line and column when a template
  // does not parse.
  explicit ChatTemplate(const std::string& source);
  ~ChatTemplate();

  // messages: array of {"role", "content", ...}; tools: array or null; kwargs: object of further
  // variables (enable_thinking, ...). bos_token and eos_token come from the model or from
  // kwargs. Throws Error(kInvalidArgument) for raise_exception and for what Jinja
  // would raise, with line and column.
  std::string render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                     bool add_generation_prompt, const nlohmann::ordered_json& kwargs) const;

  // Its text; where there are several, those of all, one behind the other.
  const std::string& source() const;

 private:
  ChatTemplate();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nanovllm
