// One dialogue with a tool and with thoughts, as each family of models writes it: the first answer
// thinks, says something and calls a tool, the second thinks and answers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>

#include "base/testing.h"
#include "server/openai/chat_prompt.h"
#include "server/openai/model_families_testing.h"
#include "server/openai/protocol_testing.h"
#include "server/transcript/call_scanner.h"

namespace nanovllm::server {
namespace {

std::string template_text(const Family& family) {
  if (family.chat_template.find("{%") != std::string::npos) return family.chat_template;
  const std::string path =
      test::source_path("tests/data/chat_templates/") + family.chat_template + ".jinja";
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kJsonBlanks);
  if (begin == text.npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kJsonBlanks) + 1 - begin));
}

// A tokenizer of ASCII's characters and of all the families' tags.
std::unique_ptr<const Tokenizer> family_tokenizer() {
  Json vocab = {{"\n", 0}}, added = Json::array();
  for (char c = ' '; c <= '~'; ++c) vocab[std::string(1, c)] = vocab.size();
  for (const char* tag :
       {"<think>", "</think>", "<tool_call>", "</tool_call>", "[THINK]", "[/THINK]", "[TOOL_CALLS]",
        "<|tool_call|>", "<function_calls>", "</function_calls>", "<|start|>", "<|channel|>",
        "<|message|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>"}) {
    added.push_back({{"id", vocab.size() + added.size()}, {"content", tag}, {"special", true}});
  }
  return Tokenizer::from_json(
      Json({{"added_tokens", added},
            {"decoder", {{"type", "Fuse"}}},
            {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}})
          .dump(),
      "tags");
}

// What an answer says, streamed or whole; arguments are parsed.
struct FamilyAnswer {
  std::string reasoning = {}, content = {}, finish_reason = {};
  Json calls = Json::array();
  bool operator==(const FamilyAnswer&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const FamilyAnswer& answer) {
    return out << "[" << answer.reasoning << "] [" << answer.content << "] " << answer.calls << " "
               << answer.finish_reason;
  }
};

std::string text_of(const Json& message, const char* key) {
  const Json value = message.value(key, Json());
  return value.is_null() ? std::string() : value.get<std::string>();
}

class FamilyModel {
 public:
  FamilyModel(const Family& family, bool with_tokens)
      : family_(family), chat_template_(template_text(family)) {
    served_.names = {family.name};
    served_.preparer = {family.name, {}, tokenizer_.get(), &chat_template_};
    served_.preparer.info.vocab_size = tokenizer_->vocab_size();
    served_.preparer.info.max_model_len = 20'000;
    served_.preparer.info.num_kvcache_blocks = 100;
    served_.preparer.info.kvcache_block_size = 256;
    served_.format = transcript_format_of(chat_template_.source(), family.usual);
    if (with_tokens) served_.tags = transcript_tags(served_.format, *tokenizer_);
    served_.make_parser = make_transcript_parser;
  }

  const ServedModel& served() const { return served_; }

  std::string body(const Json& messages, bool stream) const {
    const Json request = {{"messages", messages},
                          {"tools", Json::parse(kFamilyTools)},
                          {"chat_template_kwargs", Json::parse(family_.kwargs)},
                          {"stream", stream}};
    return request.dump();
  }

  std::string prompt(const Json& messages) const {
    return render_chat(RequestFields(body(messages, false), "ChatRequest", served_), served_).text;
  }

  // A delta for each character and each tag.
  Json ask(const Json& messages, std::string_view transcript, bool stream) const {
    const auto call = parse_chat(body(messages, stream), served_, "7");
    std::string sent;
    const auto send = [&](EngineEvent event) { sent += call->on_events(0, {&event, 1}); };
    while (!transcript.empty()) {
      RequestDelta piece = delta(0, std::string(transcript.substr(0, 1)), {1});
      if (transcript[0] == kToken) {
        transcript.remove_prefix(1);
        const size_t end = transcript.find_first_of(">]") + 1;
        piece.text = transcript.substr(0, end);
        const auto known = served_.tags.ids.find(piece.text);
        if (known != served_.tags.ids.end()) piece.marks = {{0, known->second}};
      }
      transcript.remove_prefix(piece.text.size());
      send(std::move(piece));
    }
    send(end(0));
    sent += call->finish();
    return stream ? added_up(sent) : Json::parse(sent)["choices"][0];
  }

 private:
  // {"message", "finish_reason"} as a whole answer has them.
  static Json added_up(const std::string& stream) {
    Json message = {{"role", "assistant"}, {"reasoning", ""}, {"content", ""}}, reason;
    for (const Json& chunk : chunks_of(stream)) {
      if (chunk == "[DONE]") continue;
      const Json& choice = chunk["choices"][0];
      if (!choice["finish_reason"].is_null()) reason = choice["finish_reason"];
      for (const char* key : {"reasoning", "content"}) {
        message[key] = text_of(message, key) + text_of(choice["delta"], key);
      }
      for (const Json& call : choice["delta"].value("tool_calls", Json::array())) {
        Json& calls = message["tool_calls"];
        const auto index = call["index"].get<size_t>();
        if (index == calls.size()) {
          calls.push_back(call);
          calls.back().erase("index");
          continue;
        }
        Json& arguments = calls.at(index)["function"]["arguments"];
        arguments = arguments.get<std::string>() + text_of(call["function"], "arguments");
      }
    }
    return {{"message", message}, {"finish_reason", reason}};
  }

  const Family& family_;
  const std::unique_ptr<const Tokenizer> tokenizer_ = family_tokenizer();
  ChatTemplate chat_template_;
  ServedModel served_;
};

FamilyAnswer answer_of(const Json& choice) {
  const Json& message = choice["message"];
  FamilyAnswer answer = {.reasoning = trimmed(text_of(message, "reasoning")),
                         .content = trimmed(text_of(message, "content")),
                         .finish_reason = choice["finish_reason"].get<std::string>()};
  for (const Json& call : message.value("tool_calls", Json::array())) {
    const Json& function = call["function"];
    answer.calls.push_back({{"name", function["name"]},
                            {"arguments", Json::parse(function["arguments"].get<std::string>())}});
  }
  return answer;
}

TEST(ModelFamilies, HaveTheParsersThatTheirTemplatesShow) {
  for (const Family& family : families()) {
    const TranscriptFormat found = transcript_format_of(template_text(family), family.usual);
    EXPECT_EQ(found, family.format)
        << family.name << ": " << found.reasoning_parser << ", " << found.tool_call_parser;
  }
}

TEST(ModelFamilies, HoldOneDialogueWithAToolAndThoughts) {
  const FamilyAnswer first = {
      .reasoning = "Is it cold?",
      .content = "I look it up.",
      .finish_reason = "tool_calls",
      .calls = {{{"name", "get_weather"}, {"arguments", Json::parse(kFamilyArguments)}}}};
  const FamilyAnswer second = {
      .reasoning = "Is it cold?", .content = "It is cold.", .finish_reason = "stop"};
  for (const Family& family : families()) {
    for (const bool with_tokens : {false, true}) {
      const FamilyModel model(family, with_tokens);
      Json messages = {{{"role", "system"}, {"content", "Be brief."}},
                       {{"role", "user"}, {"content", "How is the weather in 12?"}}};
      const auto expect = [&](const std::string& transcript, FamilyAnswer answer) {
        if (!family.thinks) answer.reasoning.clear();
        const Json whole = model.ask(messages, transcript, false);
        EXPECT_EQ(answer_of(whole), answer) << family.name << ": " << transcript;
        EXPECT_EQ(answer_of(model.ask(messages, transcript, true)), answer) << family.name;
        return whole["message"];
      };
      messages.push_back(expect(family.first, first));
      if (::testing::Test::HasFailure()) return;
      messages.push_back({{"role", "tool"},
                          {"tool_call_id", messages.back()["tool_calls"][0]["id"]},
                          {"content", "Minus four."}});
      // Its template takes one text beside a call.
      if (family.name == "gpt-oss") messages[2]["content"] = nullptr;
      const std::string prompt = model.prompt(messages);
      EXPECT_NE(prompt.find("Minus four."), std::string::npos) << prompt;
      const bool shows_calls =
          model.served().preparer.chat_template->source().find("tool_calls") != std::string::npos;
      EXPECT_EQ(prompt.find("get_weather", prompt.find("How is")) != std::string::npos, shows_calls)
          << prompt;
      const std::string thought =
          "<|start|>assistant<|channel|>analysis<|message|>Is it cold?<|end|>";
      EXPECT_EQ(prompt.find(thought) != std::string::npos, family.name == "gpt-oss") << prompt;
      EXPECT_EQ(prompt.find("[THINK]Is it cold?[/THINK]I look it up.[TOOL_CALLS]get_weather") !=
                    std::string::npos,
                family.name == "Ministral 3")
          << prompt;
      expect(family.second, second);
    }
  }
}

TEST(ModelFamilies, SayTheSameHoweverTheirWordsAreCut) {
  std::mt19937 random(5);
  const ToolTypes tools(Json::parse(kFamilyTools));
  for (const Family& family : families()) {
    const FamilyModel model(family, false);
    const Json messages = {{{"role", "user"}, {"content", "How is the weather in 12?"}}};
    for (const bool is_first : {true, false}) {
      for (const bool with_tokens : {false, true}) {
        TranscriptCase c = {family.format.reasoning_parser,
                            family.format.tool_call_parser,
                            is_first ? family.first : family.second,
                            {},
                            model.prompt(messages)};
        c.with_tokens = with_tokens;
        c.tools = &tools;
        const TranscriptAnswer answer = parse_transcript(c, {});
        EXPECT_EQ(answer.calls.size(), is_first ? 1u : 0u) << c.text;
        expect_same_for_all_cuts(c, answer, random);
      }
    }
  }
}

// The table of docs/models.md is the registry's, as a test beside that compares.
TEST(ModelFamilies, HaveNoParserInTheRegistryThatTheServerDoesNotKnow) {
  std::ifstream page(test::source_path("docs/models.md"));
  const auto known = [](std::vector<std::string> names, const std::string& name) {
    names.emplace_back();
    return std::ranges::find(names, name) != names.end();
  };
  int rows = 0;
  for (std::string line; std::getline(page, line);) {
    std::vector<std::string> cells;
    std::istringstream row(line);
    for (std::string cell; std::getline(row, cell, '|');) cells.push_back(trimmed(cell));
    if (cells.size() != 6 || cells[2].find("For") == std::string::npos) continue;
    ++rows;
    EXPECT_TRUE(known(reasoning_parsers(), cells[4])) << line;
    EXPECT_TRUE(known(tool_call_parsers(), cells[5])) << line;
  }
  EXPECT_GE(rows, 19);
}

TEST(ModelFamilies, GoByTheirArchitectureWhereTheTemplateLeavesItOpen) {
  const std::string lists_tools = "{% for t in tools %}{{ t | tojson }}{% endfor %}";
  EXPECT_EQ(transcript_format_of(lists_tools, {"qwen3", "hermes"}),
            (TranscriptFormat{"", "hermes"}));  // not all that it could be think
  EXPECT_EQ(transcript_format_of(lists_tools, {"granite", "granite"}),
            (TranscriptFormat{"granite", "granite"}));
  EXPECT_EQ(transcript_format_of("{{ messages }}", {"mistral", "mistral"}),
            (TranscriptFormat{"mistral", ""}));
  EXPECT_EQ(transcript_format_of("{{ messages }}", {"qwen3", "hermes"}), TranscriptFormat{});
  EXPECT_EQ(transcript_format_of(lists_tools, {"openai_gptoss", "openai"}), TranscriptFormat{});
  EXPECT_EQ(transcript_format_of("tools <｜tool_calls｜>", {"", "llama3_json"}),
            TranscriptFormat{});
}

TEST(ModelFamilies, GptOssKnowsThreeEfforts) {
  const Family family = families().front();
  const FamilyModel model(family, false);
  const auto ask = [&](const std::string& more) {
    return render_chat(RequestFields(R"({"messages":[{"role":"user","content":"a"}])" + more + "}",
                                     "ChatRequest", model.served()),
                       model.served())
        .text;
  };
  EXPECT_NE(ask("").find("Reasoning: medium\n"), std::string::npos);
  for (const std::string effort : {"low", "medium", "high"}) {
    const std::string expected = "Reasoning: " + effort + "\n";
    EXPECT_NE(ask(R"(,"reasoning_effort":")" + effort + '"').find(expected), std::string::npos);
    EXPECT_NE(
        ask(R"(,"chat_template_kwargs":{"reasoning_effort":")" + effort + "\"}").find(expected),
        std::string::npos);
  }
  for (const std::string effort : {"none", "minimal", "xhigh"}) {
    const ApiError error = api_error_of([&] { ask(R"(,"reasoning_effort":")" + effort + '"'); });
    EXPECT_EQ(error.status(), 400);
    EXPECT_EQ(error.param(), "reasoning_effort");
    EXPECT_EQ(std::string(error.what()),
              "reasoning_effort is \"" + effort +
                  "\", which this model does not know; use \"low\", \"medium\" or \"high\".");
  }
}

}  // namespace
}  // namespace nanovllm::server
