// What a long request of an agent costs before it reaches an engine: its JSON read, translated,
// rendered and tokenized, on one core.
//
// usage: agent_prompt_bench MODEL TEXT_FILE
// MODEL needs a tokenizer and a chat template, no weights. The request has 20 tools and 50 kB,
// which are cut from the text. Prints one line of JSON: for each API the bytes, the tokens, and the
// processor's milliseconds of the first run and of the best.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "io/file.h"
#include "models/load_config.h"
#include "nanovllm/chat.h"
#include "nanovllm/tokenizer.h"
#include "server/agents/messages_api.h"
#include "server/agents/responses_api.h"
#include "server/openai/protocol.h"

namespace {

using namespace nanovllm;          // NOLINT(google-build-using-namespace)
using namespace nanovllm::server;  // NOLINT(google-build-using-namespace)
using Json = nlohmann::ordered_json;

constexpr size_t kBytes = 50'000;
constexpr int kNumTools = 20, kNumTurns = 10;

// Cuts pieces off a text, one behind the other.
class Cutter {
 public:
  explicit Cutter(std::string text) : text_(std::move(text)) {}
  std::string cut(size_t size) {
    if (at_ + size > text_.size()) at_ = 0;
    std::string piece = text_.substr(at_, size);
    at_ += size;
    return piece;
  }

 private:
  const std::string text_;
  size_t at_ = 0;
};

Json parameters(Cutter& text) {
  Json properties = Json::object();
  for (const char* name : {"path", "pattern", "replacement", "reason"}) {
    properties[name] = {{"type", "string"}, {"description", text.cut(80)}};
  }
  properties["limit"] = {{"type", "integer"}, {"minimum", 0}, {"description", text.cut(60)}};
  return {{"type", "object"}, {"properties", properties}, {"required", {"path", "pattern"}}};
}

// A session that has called some tools, as chat has it.
Json chat_body(const std::string& text_file) {
  Cutter text(text_file);
  Json tools = Json::array(), messages = Json::array();
  for (int i = 0; i < kNumTools; ++i) {
    tools.push_back({{"type", "function"},
                     {"function",
                      {{"name", fmt::format("tool_{}", i)},
                       {"description", text.cut(500)},
                       {"parameters", parameters(text)}}}});
  }
  messages.push_back({{"role", "system"}, {"content", text.cut(9'000)}});
  messages.push_back({{"role", "user"}, {"content", "Do it."}});
  for (int i = 0; i < kNumTurns; ++i) {
    const std::string id = fmt::format("call_{}", i);
    const Json arguments = {{"path", text.cut(40)}, {"pattern", text.cut(100)}};
    const Json function = {{"name", fmt::format("tool_{}", i)}, {"arguments", arguments.dump()}};
    const Json call = {{"id", id}, {"type", "function"}, {"function", function}};
    messages.push_back(
        {{"role", "assistant"}, {"content", text.cut(100)}, {"tool_calls", Json::array({call})}});
    messages.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", text.cut(900)}});
  }
  Json body = {{"messages", messages}, {"tools", tools}, {"max_tokens", 1000}};
  const size_t size = body.dump().size();
  if (size < kBytes) body["messages"][1]["content"] = text.cut(kBytes - size);
  return body;
}

Json messages_body(const Json& chat) {
  Json body = {{"model", "bench"}, {"max_tokens", 1000}, {"tools", Json::array()}};
  for (const Json& tool : chat["tools"]) {
    const Json& function = tool["function"];
    body["tools"].push_back({{"name", function["name"]},
                             {"description", function["description"]},
                             {"input_schema", function["parameters"]}});
  }
  for (const Json& message : chat["messages"]) {
    const Json text = Json::array({{{"type", "text"}, {"text", message["content"]}}});
    if (message["role"] == "system") {
      body["system"] = text;
    } else if (message["role"] == "tool") {
      const Json block = {{"type", "tool_result"},
                          {"tool_use_id", message["tool_call_id"]},
                          {"content", message["content"]}};
      body["messages"].push_back({{"role", "user"}, {"content", Json::array({block})}});
    } else {
      body["messages"].push_back({{"role", message["role"]}, {"content", text}});
      for (const Json& call : message.value("tool_calls", Json::array())) {
        const auto input = Json::parse(call["function"]["arguments"].get<std::string>());
        body["messages"].back()["content"].push_back({{"type", "tool_use"},
                                                      {"id", call["id"]},
                                                      {"name", call["function"]["name"]},
                                                      {"input", input}});
      }
    }
  }
  return body;
}

Json responses_body(const Json& chat) {
  Json body = {{"model", "bench"}, {"input", Json::array()}, {"tools", Json::array()}};
  for (const Json& tool : chat["tools"]) {
    body["tools"].push_back(tool["function"]);
    body["tools"].back()["type"] = "function";
  }
  for (const Json& message : chat["messages"]) {
    if (message["role"] == "tool") {
      body["input"].push_back({{"type", "function_call_output"},
                               {"call_id", message["tool_call_id"]},
                               {"output", message["content"]}});
      continue;
    }
    body["input"].push_back({{"role", message["role"]}, {"content", message["content"]}});
    for (const Json& call : message.value("tool_calls", Json::array())) {
      body["input"].push_back({{"type", "function_call"},
                               {"call_id", call["id"]},
                               {"name", call["function"]["name"]},
                               {"arguments", call["function"]["arguments"]}});
    }
  }
  return body;
}

template <typename Parse>
Json measure(const std::string& body, Parse&& parse) {
  double first = 0, best = 1e9;
  size_t num_tokens = 0;
  for (int i = 0; i < 50; ++i) {
    const std::clock_t start = std::clock();
    const std::unique_ptr<ApiCall> call = parse(body);
    const double ms = static_cast<double>(std::clock() - start) * 1e3 / CLOCKS_PER_SEC;
    num_tokens = call->requests.at(0).prompt_token_ids.size();
    if (i == 0) first = ms;
    best = std::min(best, ms);
  }
  return {{"bytes", body.size()}, {"tokens", num_tokens}, {"first_ms", first}, {"best_ms", best}};
}

Json measure_apis(const std::string& model_dir, const std::string& text_file) {
  const auto tokenizer = Tokenizer::load(model_dir);
  const auto chat_template = ChatTemplate::load(model_dir);
  ServedModel model;
  model.names = {"bench"};
  model.preparer.model_dir = model_dir;
  model.preparer.tokenizer = tokenizer.get();
  model.preparer.chat_template = chat_template.get();
  EngineInfo& info = model.preparer.info;
  info.max_model_len = 1 << 16;
  info.vocab_size = load_model_config(model_dir).vocab_size;
  info.num_kvcache_blocks = 256;
  info.kvcache_block_size = 256;
  info.max_num_seqs = 1;
  info.max_num_batched_tokens = 1 << 14;
  model.format = transcript_format_of(chat_template->source(), {});
  model.tags = transcript_tags(model.format, *tokenizer);
  model.make_parser = make_transcript_parser;
  const Json chat = chat_body(read_text_file(text_file));
  const auto with = [&](auto parse) {
    return [&model, parse](const std::string& body) { return parse(body, model, "bench"); };
  };
  return {{"chat", measure(chat.dump(), with(parse_chat))},
          {"messages", measure(messages_body(chat).dump(), with(parse_messages))},
          {"responses", measure(responses_body(chat).dump(), with(parse_responses))}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: agent_prompt_bench MODEL TEXT_FILE\n");
    return 2;
  }
  try {
    fmt::print("{}\n", measure_apis(argv[1], argv[2]).dump());
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
