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
  // Error(kNotFound) if there is none. A template that can't be compiled is told by fault(), and by
  // render() where it is needed.
  static std::unique_ptr<ChatTemplate> load(const std::string& model);
  // The template `source` with the special tokens of a model folder or a GGUF file. `origin` names
  // the source in errors, a file for instance.
  static std::unique_ptr<ChatTemplate> from_source(const std::string& source,
                                                   const std::string& model,
                                                   const std::string& origin = {});
  // The template `source` alone. Like from_source, throws Error(kCorruptData) with line and column
  // if it can't be compiled.
  explicit ChatTemplate(const std::string& source);
  ~ChatTemplate();

  // messages: array of {"role", "content", ...}, not empty, as OpenAI's API has them; they are
  // made into what the template reads (docs/tokenizer.md says how). tools: array or null. kwargs:
  // object of further variables (enable_thinking, ...); bos_token and eos_token in it replace the
  // model's. Throws Error(kInvalidArgument), with line and column, for raise_exception and whatever
  // else Jinja would raise, and for contents that are no text; Error(kCorruptData) for a template
  // with a fault.
  std::string render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                     bool add_generation_prompt, const nlohmann::ordered_json& kwargs) const;

  // Why chats, or chats with tools, can't be rendered, whatever they say: the file, the line and
  // what; empty = they can.
  std::string fault(bool has_tools) const;
  // Whether a GGUF file wants its BOS before every prompt: render() puts it there, once.
  bool adds_bos() const;
  // Whether the template takes no other ids of calls than nine letters and digits; render() makes
  // others into such.
  bool wants_short_call_ids() const;
  // The template's text; several templates are concatenated in the order of their names.
  const std::string& source() const;

 private:
  ChatTemplate();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nanovllm
