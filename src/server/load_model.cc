#include "server/load_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/version.h"
#include "io/file.h"
#include "server/log.h"
#include "text/hash.h"

namespace nanovllm::server {

namespace {

void tell(const ServeOptions& options, const std::string& sentence) {
  if (options.on_note) return options.on_note(sentence);
  print_log("{}", sentence);
}

// Null where the model has none: chats are refused then.
std::unique_ptr<const ChatTemplate> load_template(const ServeOptions& options) {
  if (!options.chat_template.empty()) {
    return ChatTemplate::from_source(read_text_file(options.chat_template), options.model,
                                     options.chat_template);
  }
  try {
    auto loaded = ChatTemplate::load(options.model);
    const std::string fault = loaded->fault(false), fault_with_tools = loaded->fault(true);
    if (!fault.empty()) tell(options, "chats are refused: " + fault);
    if (!fault_with_tools.empty() && fault_with_tools != fault) {
      tell(options, "chats with tools are refused: " + fault_with_tools);
    }
    return loaded;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    tell(options, fmt::format("chats are refused: {}", error.what()));
    return nullptr;
  }
}

// Engines of the same one give the same tokens for a seed, as far as their options promise it.
std::string fingerprint_of(const EngineInfo& info) {
  const uint64_t hash = text::hash_bytes(
      fmt::format("{} {} {} {}", info.architecture, info.num_parameters, info.device, info.dtype));
  return fmt::format("nanovllm-{}-{:08x}", kVersion, static_cast<uint32_t>(hash));
}

}  // namespace

std::string name_of_model(const ServeOptions& options) {
  return options.served_model_names.empty() ? options.model : options.served_model_names.front();
}

ModelTexts load_texts(const ServeOptions& options) {
  ModelTexts texts;
  texts.tokenizer = Tokenizer::load(options.model);
  if (texts.tokenizer) texts.grammars = std::make_unique<const GrammarCompiler>(*texts.tokenizer);
  texts.chat_template = load_template(options);
  return texts;
}

std::shared_ptr<const ServedModel> served_model(const ServeOptions& options,
                                                const ModelTexts& texts, const EngineHello& hello) {
  const ChatTemplate* chat_template = texts.chat_template.get();
  auto served = std::make_shared<ServedModel>();
  served->names = options.served_model_names;
  if (served->names.empty()) served->names.push_back(options.model);
  served->preparer = {.model_dir = hello.model_dir,
                      .info = hello.info,
                      .tokenizer = texts.tokenizer.get(),
                      .chat_template = chat_template,
                      .grammars = texts.grammars.get()};
  served->defaults = hello.default_sampling_params;
  served->system_fingerprint = fingerprint_of(hello.info);
  served->created = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  served->format = transcript_format_of(chat_template ? chat_template->source() : "",
                                        {hello.info.reasoning_parser, hello.info.tool_parser});
  const TranscriptFormat& asked = options.format;
  if (!asked.reasoning_parser.empty()) served->format.reasoning_parser = asked.reasoning_parser;
  if (!asked.tool_call_parser.empty()) served->format.tool_call_parser = asked.tool_call_parser;
  if (texts.tokenizer) served->tags = transcript_tags(served->format, *texts.tokenizer);
  served->make_parser = make_transcript_parser;
  const ThoughtTags tags =
      thought_tags(served->format, chat_template ? chat_template->source() : "");
  served->preparer.thinking_start = tags.begin;
  served->preparer.thinking_end = tags.end;
  served->enable_prompt_tokens_details = options.enable_prompt_tokens_details;
  served->enable_force_include_usage = options.enable_force_include_usage;
  served->default_chat_template_kwargs = options.default_chat_template_kwargs;
  served->trust_request_chat_template = options.trust_request_chat_template;
  if (options.enable_tokenizer_info_endpoint) {
    const std::string config = options.model + "/tokenizer_config.json";
    served->tokenizer_info = tokenizer_info_body(file_exists(config) ? read_text_file(config) : "",
                                                 chat_template ? chat_template->source() : "");
  }
  // More would find no place in the queue at any time.
  served->max_num_prompts = std::min(options.max_prompts, options.fleet.max_num_queued);
  served->max_json_depth = options.max_json_depth;
  return served;
}

}  // namespace nanovllm::server
