// A model that is dictated what it says, from the tokens to the answer: engine, frames, buffer,
// API.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "engine/wire.h"
#include "grammar/grammar.h"
#include "nanovllm/engine_loop.h"
#include "server/fleet/request_stream.h"
#include "server/openai/protocol_testing.h"
#include "server/transcript/transcript_testing.h"

namespace nanovllm::server {
namespace {

// ASCII's characters are tokens, and so are the tags, every other one of which is special.
std::unique_ptr<const Tokenizer> tagged_ascii() {
  Json vocab = {{"<eos>", 0}};
  for (char c = ' '; c <= '~'; ++c) vocab[std::string(1, c)] = vocab.size();
  Json added = Json::array();
  const auto add = [&](const std::string& text, bool special) {
    added.push_back({{"id", vocab.size() + added.size() - (added.empty() ? 0 : 1)},
                     {"content", text},
                     {"special", special}});
  };
  added.push_back({{"id", 0}, {"content", "<eos>"}, {"special", true}});
  bool special = false;
  for (const char* tag : {"<think>", "</think>", "<tool_call>", "</tool_call>"}) {
    add(tag, special = !special);
  }
  return Tokenizer::from_json(
      Json({{"added_tokens", added},
            {"decoder", {{"type", "Fuse"}}},
            {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}})
          .dump(),
      "ASCII with tags");
}

// Each character's token, but for a tag behind kToken.
Ids spelled(std::string_view text) {
  const auto tokenizer = tagged_ascii();
  Ids ids;
  while (!text.empty()) {
    std::string_view token = text.substr(0, 1);
    if (token[0] == kToken) token = text.substr(1, text.find('>'));
    ids.push_back(tokenizer->token_to_id(token).value());
    text.remove_prefix(token.size() + (text[0] == kToken ? 1 : 0));
  }
  ids.push_back(0);
  return ids;
}

class DictatedModel {
 public:
  explicit DictatedModel(std::string_view answer)
      : loop_(LLMEngine(core(spelled(answer))),
              [this](std::vector<EngineEvent> events) { hear(std::move(events)); }) {
    served_.names = {"dictated"};
    served_.preparer = loop_.preparer(&template_);
    served_.format = {"qwen3", "hermes"};
    served_.tags = transcript_tags(served_.format, *served_.preparer.tokenizer);
    served_.make_parser = make_transcript_parser;
  }

  // The message and the usage, streamed or whole.
  Json ask(bool stream) {
    const auto call = parse_chat(
        fmt::format(
            R"({{"messages":[{{"role":"user","content":"ab"}}],"temperature":0,{}"stream":{},)"
            R"("tools":[{{"type":"function","function":{{"name":"f"}}}}]}})",
            stream ? R"("stream_options":{"include_usage":true},)" : "", stream),
        served_, "7");
    std::string bytes;
    append_frame(EngineCommand(call->requests.at(0)), bytes);
    std::string_view frame = bytes;
    EngineCommand command;
    EXPECT_TRUE(take_frame(frame, command));
    loop_.submit(std::move(command));
    std::string text;
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return is_over_; });
    is_over_ = false;
    for (EngineEvent& event : std::exchange(events_, {})) {
      if (stream) text += call->on_events(0, {&event, 1});
      buffer_.append(std::move(event), false);
    }
    const std::vector<EngineEvent> merged = buffer_.take();
    if (!stream) call->on_events(0, merged);
    EXPECT_TRUE(call->is_over());
    text += call->finish();
    return stream ? of_stream(text) : of_whole(Json::parse(text));
  }

 private:
  static std::unique_ptr<EngineCore> core(Ids script) {
    EngineParts parts;
    parts.config.kvcache_block_size = 16;
    parts.info.max_model_len = 400;
    parts.tokenizer = tagged_ascii();
    parts.info.vocab_size = parts.tokenizer->vocab_size();
    parts.model_dir = "dictated";
    parts.eos_token_ids = {0};
    parts.runner = std::make_unique<Reciter>(std::move(script), 64);
    return std::make_unique<EngineCore>(std::move(parts));
  }

  void hear(std::vector<EngineEvent>&& events) {
    std::string bytes;
    append_frame(EngineReport(std::move(events)), bytes);
    std::string_view frame = bytes;
    EngineReport report;
    EXPECT_TRUE(take_frame(frame, report));
    const std::scoped_lock lock(mutex_);
    for (EngineEvent& event : std::get<std::vector<EngineEvent>>(report)) {
      if (std::holds_alternative<StepStats>(event)) continue;
      is_over_ = is_over_ || std::holds_alternative<RequestEnd>(event);
      events_.push_back(std::move(event));
    }
    ended_.notify_one();
  }

  static Json of_whole(const Json& answer) {
    const Json& message = answer["choices"][0]["message"];
    Json calls = Json::array();
    for (const Json& call : message.value("tool_calls", Json::array())) {
      calls.push_back(call["function"]);
    }
    return {{"reasoning", message["reasoning"].is_null() ? Json("") : message["reasoning"]},
            {"content", message["content"].is_null() ? Json("") : message["content"]},
            {"calls", calls},
            {"reasoning_tokens", answer["usage"]["completion_tokens_details"]["reasoning_tokens"]}};
  }

  static Json of_stream(const std::string& stream) {
    std::string reasoning, content;
    Json calls = Json::array(), usage;
    for (const Json& chunk : chunks_of(stream)) {
      if (chunk == "[DONE]") continue;
      if (chunk.contains("usage") && chunk["choices"].empty()) usage = chunk["usage"];
      for (const Json& choice : chunk["choices"]) {
        const Json& delta = choice["delta"];
        reasoning += delta.value("reasoning", "");
        content += delta.value("content", "");
        for (const Json& call : delta.value("tool_calls", Json::array())) {
          const Json& function = call["function"];
          if (call["index"] == calls.size()) {
            calls.push_back({{"name", function["name"]}, {"arguments", ""}});
          }
          Json& arguments = calls[call["index"].get<size_t>()]["arguments"];
          arguments = arguments.get<std::string>() + function.value("arguments", "");
        }
      }
    }
    return {{"reasoning", reasoning},
            {"content", content},
            {"calls", calls},
            {"reasoning_tokens", usage["completion_tokens_details"]["reasoning_tokens"]}};
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<EngineEvent> events_;
  bool is_over_ = false;
  StreamBuffer buffer_;
  ChatTemplate template_{"{{ messages[0].content }}"};
  ServedModel served_;
  EngineLoop loop_;
};

void expect_answer(std::string_view dictated, const std::string& reasoning,
                   const std::string& content, const TranscriptCalls& calls, int reasoning_tokens) {
  Json list = Json::array();
  for (const auto& [name, arguments] : calls) {
    list.push_back({{"name", name}, {"arguments", arguments}});
  }
  const Json expected = {{"reasoning", reasoning},
                         {"content", content},
                         {"calls", list},
                         {"reasoning_tokens", reasoning_tokens}};
  DictatedModel model(dictated);
  EXPECT_EQ(model.ask(false), expected) << dictated;
  EXPECT_EQ(model.ask(true), expected) << dictated;
}

TEST(ChatTags, AreTheTokensAndNotTheirCharacters) {
  expect_answer("\1<think>aaa\1</think>x.replace('</think>', '')", "aaa",
                "x.replace('</think>', '')", {}, 3);
  expect_answer("say </think> so\1</think>b", "say </think> so", "b", {}, 15);
  expect_answer("aaa\1</think>bbb\1<think>ccc\1</think>ddd", "aaa", "bbb<think>ccc</think>ddd", {},
                3);
  const std::string call = R"({"name": "f", "arguments": {"x": "</tool_call>"}})";
  const TranscriptCalls one = {{"f", R"({"x": "</tool_call>"})"}};
  const std::string tagged = "\1<tool_call>" + call + "\1</tool_call>";
  expect_answer("a\1</think>Write <tool_call>, as in " + tagged + " done", "a",
                "Write <tool_call>, as in  done", one, 1);
  expect_answer("a" + tagged + "b\1</think>c", "a<tool_call>" + call + "</tool_call>b", "c", {},
                static_cast<int>(call.size()) + 4);
}

// Thinks in tags, and its template closes the thought where it is asked to.
struct ThinkingModel {
  ThinkingModel() {
    served.names = {"thinking"};
    served.preparer = {"thinking", {}, tokenizer.get(), &chat_template, &grammars};
    served.preparer.info.vocab_size = tokenizer->vocab_size();
    served.preparer.info.max_model_len = 400;
    served.preparer.info.num_kvcache_blocks = 100;
    served.preparer.info.kvcache_block_size = 16;
    served.preparer.thinking_start = "<think>";
    served.preparer.thinking_end = "</think>";
    served.format = {"qwen3", "hermes"};
    served.make_parser = make_transcript_parser;
  }

  std::unique_ptr<ApiCall> ask(std::string_view fields) const {
    return parse_chat(fmt::format(R"({{"messages":[{{"role":"user","content":"ab"}}]{}}})", fields),
                      served, "7");
  }

  std::unique_ptr<const Tokenizer> tokenizer = tagged_ascii();
  GrammarCompiler grammars{*tokenizer};
  ChatTemplate chat_template{
      "{{ messages[0].content }}{% if enable_thinking is false %}<think></think>{% endif %}"};
  ServedModel served;
};

TEST(ChatTags, BeginNoThoughtAgainThatTheTemplateHasClosed) {
  const ThinkingModel model;
  const auto params = [&](const char* fields) { return model.ask(fields)->requests[0].params; };
  const auto id_of = [&](const char* tag) { return model.tokenizer->token_to_id(tag).value(); };
  const ThinkingTags open = {{id_of("<think>")}, {id_of("</think>")}, 0};
  EXPECT_EQ(params(R"(,"structured_outputs":{"regex":"a"})").thinking_tags, open);
  const SamplingParams closed = params(
      R"(,"structured_outputs":{"regex":"a"},"chat_template_kwargs":{"enable_thinking":false},)"
      R"("thinking_token_budget":5)");
  EXPECT_EQ(closed.thinking_tags, ThinkingTags());
  EXPECT_EQ(closed.thinking_token_budget, std::nullopt);
  const SamplingParams free =
      params(R"(,"chat_template_kwargs":{"enable_thinking":false},"thinking_token_budget":5)");
  EXPECT_EQ(free.thinking_tags, (ThinkingTags{open.start_ids, open.end_ids, -1}));
}

TEST(ChatTags, AreNoCallsInThoughtsWhereCallsAreBound) {
  const ThinkingModel model;
  const std::string text = R"(a<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>)";
  const auto message = [&](const char* more) {
    const auto call = model.ask(fmt::format(
        R"(,"tools":[{{"type":"function","function":{{"name":"f","strict":{}}}}}])", more));
    const std::vector<EngineEvent> events = {delta(0, text, {1}), end(0)};
    call->on_events(0, events);
    return Json::parse(call->finish())["choices"][0]["message"];
  };
  const Json loose = message("false");
  EXPECT_EQ(loose["reasoning"], "a");
  EXPECT_EQ(loose["tool_calls"][0]["function"]["arguments"], R"({"x": 1})");
  const Json strict = message("true");
  EXPECT_EQ(strict["reasoning"], text);
  EXPECT_TRUE(strict.value("tool_calls", Json::array()).empty()) << strict;
}

TEST(ChatTags, AreFoundForATokenizer) {
  const auto tokenizer = tagged_ascii();
  const TranscriptTags tags = transcript_tags({"qwen3", "hermes"}, *tokenizer);
  const auto id_of = [&](const char* tag) { return tokenizer->token_to_id(tag).value(); };
  EXPECT_EQ(tags.ids.size(), 4u);
  EXPECT_EQ(tags.begin_of_thought, id_of("<think>"));
  EXPECT_EQ(tags.end_of_thought, id_of("</think>"));
  EXPECT_EQ(tags.ids.find("</tool_call>")->second, id_of("</tool_call>"));
  EXPECT_EQ(transcript_tags({"", "mistral"}, *tokenizer).ids.size(), 0u);
  // A word of the vocabulary may be spelled by other tokens too.
  const auto plain = Tokenizer::from_json(
      R"({"added_tokens":[],"model":{"type":"BPE","vocab":{"</think>":0,"a":1},"merges":[]}})",
      "words");
  EXPECT_EQ(transcript_tags({"qwen3", ""}, *plain).ids.size(), 0u);
  EXPECT_FALSE(transcript_tags({"qwen3", ""}, *plain).end_of_thought);
}

}  // namespace
}  // namespace nanovllm::server
