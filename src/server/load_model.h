// What a server reads of a model beside its engines, and the model as its API knows it.
#pragma once

#include <memory>
#include <string>

#include "grammar/grammar.h"
#include "nanovllm/chat.h"
#include "nanovllm/tokenizer.h"
#include "server/openai/protocol.h"
#include "server/server.h"

namespace nanovllm::server {

// Outlives the ServedModel that is made with it.
struct ModelTexts {
  std::unique_ptr<const Tokenizer> tokenizer = nullptr;         // null where the model has none
  std::unique_ptr<const GrammarCompiler> grammars = nullptr;    // likewise
  std::unique_ptr<const ChatTemplate> chat_template = nullptr;  // likewise: chats are refused then
};

std::string name_of_model(const ServeOptions& options);
// Throws Error where there is something that can't be used.
ModelTexts load_texts(const ServeOptions& options);
std::shared_ptr<const ServedModel> served_model(const ServeOptions& options,
                                                const ModelTexts& texts, const EngineHello& hello);

}  // namespace nanovllm::server
