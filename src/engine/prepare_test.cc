#include "nanovllm/prepare.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "engine/engine_test_support.h"
#include "engine/parameter_error.h"
#include "engine/structured_outputs.h"
#include "grammar/grammar.h"
#include "nanovllm/chat.h"

namespace nanovllm {
namespace {

using Json = nlohmann::ordered_json;

EngineInfo small() {
  EngineInfo info;
  info.vocab_size = 50;
  info.max_model_len = 10;
  info.num_kvcache_blocks = 2;
  info.kvcache_block_size = 16;
  return info;
}

std::string refusal(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "";
}

TEST(Prepare, GivesTheCommandOfATextOrIds) {
  const auto tokenizer = alphabet();
  const RequestPreparer preparer{"fake", small(), tokenizer.get()};
  const AddRequest expected{.id = 3, .prompt_token_ids = {1, 2, 40}, .params = greedy(4)};
  EXPECT_EQ(preparer.prepare(3, "bcO", greedy(4)), expected);
  EXPECT_EQ(preparer.prepare(3, Ids{1, 2, 40}, greedy(4)), expected);
}

TEST(Prepare, RendersAChat) {
  const auto tokenizer = alphabet();
  const ChatTemplate chat_template(
      "{% if tools %}h{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}{{ last }}");
  const RequestPreparer preparer{"fake", small(), tokenizer.get(), &chat_template};
  const Json messages = Json::parse(R"([{"role":"user","content":"bc"}])");
  EXPECT_EQ(preparer.prepare_chat(3, messages, nullptr, nullptr, greedy(4)).prompt_token_ids,
            (Ids{1, 2}));
  const Json tools = Json::parse(R"([{"name":"f"}])");
  const Json kwargs = {{"last", "f"}};
  EXPECT_EQ(preparer.prepare_chat(3, messages, tools, kwargs, greedy(4)).prompt_token_ids,
            (Ids{7, 1, 2, 5}));
  EXPECT_EQ(refusal([&] { preparer.prepare_chat(3, Json::array(), nullptr, nullptr, greedy(4)); },
                    ErrorCode::kInvalidArgument),
            "messages must be an array of at least one message");
}

SamplingParams structured(const StructuredOutputsParams& asked) {
  SamplingParams params = greedy(4);
  params.structured_outputs = asked;
  return params;
}

TEST(Prepare, CompilesStructuredOutputs) {
  const auto tokenizer = alphabet();
  const GrammarCompiler grammars(*tokenizer);
  RequestPreparer preparer{"fake", small(), tokenizer.get()};
  // What the engine compiles itself it does not take for checked.
  const SamplingParams abc = structured({.regex = "[a-c]+"});
  EXPECT_EQ(preparer.prepare(3, Ids{1}, abc).grammar, nullptr);
  preparer.grammars = &grammars;
  EXPECT_FALSE(
      RequestPreparer({"fake", small(), tokenizer.get()}).check({{}, {1}, abc}).is_for(preparer));
  EXPECT_TRUE(preparer.check({{}, {1}, abc}).is_for(preparer));
  EXPECT_EQ(preparer.prepare(3, Ids{1}, greedy(4)).grammar, nullptr);

  const auto takes = [&](const StructuredOutputsParams& asked, std::string_view text) {
    const auto grammar = preparer.prepare(3, Ids{1}, structured(asked)).grammar;
    return grammar->is_accepting(grammar->advance(grammar->start(), text));
  };
  EXPECT_TRUE(takes({.regex = "[a-c]+"}, "abc"));
  EXPECT_FALSE(takes({.regex = "[a-c]+"}, "abd"));
  EXPECT_TRUE(takes({.choice = {{"yes", "no"}}}, "no"));
  EXPECT_FALSE(takes({.choice = {{"yes", "no"}}}, "n"));
  EXPECT_TRUE(takes({.grammar = R"(root ::= "a"+)"}, "aa"));
  EXPECT_TRUE(takes({.json_object = true}, R"({"a": 1})"));
  EXPECT_FALSE(takes({.json_object = true}, "[1]"));
  const char* schema = R"({"type": "object", "properties": {"a": {"type": "integer"}}})";
  EXPECT_TRUE(takes({.json = schema}, "{\n  \"a\": 1, \"b\": 2}"));
  EXPECT_FALSE(takes({.json = schema, .disable_any_whitespace = true}, "{\n  \"a\": 1}"));
  EXPECT_FALSE(takes({.json = schema, .disable_additional_properties = true}, R"({"b": 2})"));
  EXPECT_TRUE(takes({.json = schema, .whitespace_pattern = "\t*"}, "{\t\t\"a\":1}"));
  const char* tag =
      R"({"type": "structural_tag", "format": {"type": "const_string", "value": "only"}})";
  EXPECT_TRUE(takes({.structural_tag = tag}, "only"));
  EXPECT_FALSE(takes({.structural_tag = tag}, "on"));

  // Grammars in use are shared, and a grammar that was given is not believed.
  AddRequest request = preparer.prepare(3, Ids{1}, abc);
  EXPECT_EQ(preparer.prepare(4, Ids{1}, abc).grammar, request.grammar);
  request.params.structured_outputs = std::nullopt;
  EXPECT_EQ(preparer.check(request)->grammar, nullptr);
}

TEST(Prepare, SaysWhatIsWrongWithStructuredOutputs) {
  const auto tokenizer = alphabet();
  const GrammarCompiler grammars(*tokenizer);
  RequestPreparer preparer{"fake", small(), tokenizer.get(), nullptr, &grammars};
  const auto fault = [&](const StructuredOutputsParams& asked, ErrorCode code) -> std::string {
    try {
      preparer.prepare(3, Ids{1}, structured(asked));
    } catch (const ParameterError& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_EQ(error.parameter(), "structured_outputs");
      return error.what();
    }
    return "";
  };
  const auto invalid = ErrorCode::kInvalidArgument;
  const auto unsupported = ErrorCode::kUnsupported;
  EXPECT_EQ(fault({.json = "{", .json_object = true}, invalid),
            "You can only use one kind of structured outputs constraint but multiple are "
            "specified: json, json_object.");
  EXPECT_EQ(fault({.choice = std::vector<std::string>()}, invalid),
            "choice is an empty list; expected one text or more to choose from.");
  EXPECT_NE(fault({.json = "{"}, invalid), "");
  EXPECT_NE(fault({.json = R"({"not": {}})"}, unsupported).find("not can't be enforced"),
            std::string::npos);
  EXPECT_NE(fault({.regex = "a(b"}, invalid).find("(at position 1)"), std::string::npos);
  EXPECT_NE(fault({.grammar = "root ::= other"}, invalid).find("\"other\" is not defined"),
            std::string::npos);
  preparer.tokenizer = nullptr;
  preparer.grammars = nullptr;
  EXPECT_EQ(fault({.json_object = true}, unsupported),
            "structured_outputs need a tokenizer, and fake has no tokenizer; leave them out.");
}

TEST(Prepare, FindsTheTagsOfThoughts) {
  const auto tokenizer = alphabet();
  RequestPreparer preparer{"fake", small(), tokenizer.get()};
  SamplingParams params = greedy(4);
  params.thinking_token_budget = 3;
  EXPECT_EQ(refusal([&] { preparer.prepare(3, "bc", params); }, ErrorCode::kUnsupported),
            "thinking_token_budget is set, but it is not known how fake marks its thoughts; leave "
            "it out, or start the server with a --reasoning-parser.");
  params.thinking_token_budget = -1;
  EXPECT_EQ(preparer.prepare(3, "bc", params).params, params);
  preparer.thinking_start = "b";
  preparer.thinking_end = "fg";  // of two tokens
  EXPECT_EQ(preparer.prepare(3, "bc", params).params, params);
  params.thinking_token_budget = 0;
  const auto tags = [&](const char* prompt) {
    return preparer.prepare(3, prompt, params).params.thinking_tags;
  };
  EXPECT_EQ(tags("acd"), (ThinkingTags{{1}, {5, 6}, -1}));
  EXPECT_EQ(tags("abcd"), (ThinkingTags{{1}, {5, 6}, 2}));
  EXPECT_EQ(tags("abcdfga"), (ThinkingTags{{1}, {5, 6}, -1}));
  // A grammar begins behind the thought, or at once where there are none.
  SamplingParams constrained = structured({.regex = "a"});
  const auto tags_of_grammar = [&](const char* prompt) {
    return preparer.prepare(3, prompt, constrained).params.thinking_tags;
  };
  EXPECT_EQ(tags_of_grammar("acdb"), (ThinkingTags{{1}, {5, 6}, 0}));
  EXPECT_EQ(tags_of_grammar("acd"), (ThinkingTags{{1}, {5, 6}, -1}));
  EXPECT_EQ(tags_of_grammar("abcd"), (ThinkingTags{{1}, {5, 6}, -1}));  // it may be a user's text
  // Where nobody takes thoughts out of the output, it begins with what was asked for.
  preparer.may_think_first = false;
  EXPECT_EQ(tags_of_grammar("acdb"), (ThinkingTags{{1}, {5, 6}, 0}));
  EXPECT_EQ(tags_of_grammar("acd"), ThinkingTags());
  EXPECT_EQ(tags_of_grammar("abcd"), ThinkingTags());
  constrained.thinking_token_budget = 3;
  EXPECT_EQ(tags_of_grammar("acd"), (ThinkingTags{{1}, {5, 6}, -1}));
  EXPECT_EQ(tags_of_grammar("abcd"), (ThinkingTags{{1}, {5, 6}, 2}));
  constrained.thinking_token_budget.reset();
  preparer.may_think_first = true;
  constrained.thinking_tags = ThinkingTags();  // as they came over the wire
  EXPECT_EQ(tags_of_grammar("abcd"), ThinkingTags());
  constrained.thinking_tags.reset();
  preparer.thinking_start = preparer.thinking_end = "";
  EXPECT_EQ(tags_of_grammar("abcd"), ThinkingTags());
  preparer.thinking_start = "b";
  preparer.thinking_end = "fg";
  params.thinking_tags = ThinkingTags{{2}, {3}, 7};  // as they came over the wire
  EXPECT_EQ(tags("abcd"), params.thinking_tags);
  params.thinking_tags->end_ids = {50};
  EXPECT_EQ(
      refusal([&] { tags("abcd"); }, ErrorCode::kInvalidArgument),
      "token_id(s) [50] in thinking_tags contain out-of-vocab token ids. Vocabulary size: 50");
  params.thinking_tags->end_ids.clear();
  EXPECT_EQ(refusal([&] { tags("abcd"); }, ErrorCode::kInvalidArgument),
            "thinking_tags need a start and an end.");
}

TEST(Prepare, BlanksBehindAThoughtsTagLeaveItOpen) {
  const auto tokenizer = byte_level_tokenizer(R"("<eos>":0,"a":1,"b":2,"c":3,"Ċ":4,"Ġ":5)");
  const RequestPreparer preparer{
      .model_dir = "fake",
      .info = small(),
      .tokenizer = tokenizer.get(),
      .thinking_start = "b",
      .thinking_end = "c",
  };
  const auto num_open = [&](const Ids& prompt) {
    return preparer.prepare(3, prompt, structured({.regex = "a"}))
        .params.thinking_tags->num_prompt_tokens;
  };
  EXPECT_EQ(num_open({1, 2}), 0);
  EXPECT_EQ(num_open({1, 2, 4, 5}), 2);
  EXPECT_EQ(num_open({1, 2, 4, 1}), -1);
  EXPECT_EQ(num_open({1, 2, 4, 1, 2, 4}), 1);
  EXPECT_EQ(num_open({1, 2, 3, 4}), -1);
}

TEST(Prepare, TakesPrioritiesWhereTheyCount) {
  RequestPreparer preparer{"fake", small()};
  SamplingParams params = greedy(4);
  params.priority = -3;
  EXPECT_EQ(
      refusal([&] { preparer.prepare(3, Ids{1}, params); }, ErrorCode::kInvalidArgument),
      "Got priority -3 but Priority scheduling is not enabled; set scheduling_policy to priority.");
  preparer.info.takes_priorities = true;
  EXPECT_EQ(preparer.prepare(3, Ids{1}, params).params.priority, -3);
}

TEST(Prepare, RefusesWhatTheEngineWould) {
  const auto tokenizer = alphabet();
  const RequestPreparer preparer{"fake", small(), tokenizer.get()};
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  EXPECT_EQ(refusal([&] { preparer.prepare(0, prompt_of(9), greedy(4)); }, kInvalid), "");
  EXPECT_NE(refusal([&] { preparer.prepare(0, prompt_of(10), greedy(4)); }, kInvalid), "");
  EXPECT_EQ(refusal([&] { preparer.prepare(0, Ids{49}, greedy(4)); }, kInvalid), "");
  EXPECT_NE(refusal([&] { preparer.prepare(0, Ids{50}, greedy(4)); }, kInvalid), "");
  EXPECT_EQ(refusal([&] { preparer.prepare(0, Ids{1}, greedy(0)); }, kInvalid),
            "max_tokens must be at least 1, got 0.");
  EXPECT_EQ(refusal([&] { preparer.prepare_chat(0, Json::array(), nullptr, nullptr, greedy(4)); },
                    ErrorCode::kUnsupported),
            "fake has no chat template; give the prompt as text.");
  // Parameters come first: a text need not be tokenised, or a chat rendered, for what is refused.
  const std::string wrong = "max_tokens must be at least 1, got 0.";
  const RequestPreparer without{"fake", small()};
  EXPECT_EQ(refusal([&] { without.prepare(0, "b", greedy(0)); }, kInvalid), wrong);
  EXPECT_EQ(refusal([&] { without.check({.params = greedy(0)}, "b"); }, kInvalid), wrong);
  EXPECT_EQ(refusal([&] { without.prepare_chat(0, Json::array(), nullptr, nullptr, greedy(0)); },
                    kInvalid),
            wrong);
  EXPECT_EQ(refusal([&] { without.prepare(0, Ids{49}, greedy(4)); }, kInvalid), "");
  EXPECT_NE(refusal([&] { without.prepare(0, "b", greedy(4)); }, ErrorCode::kUnsupported), "");
}

// What is wrong whatever the tokenizer is, is found before there is one.
TEST(StructuredOutputs, AreCheckedWithoutATokenizer) {
  const auto refusal = [](const StructuredOutputsParams& asked) -> std::string {
    try {
      check_structured_outputs(asked);
    } catch (const ParameterError& error) {
      EXPECT_EQ(error.parameter(), "structured_outputs");
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal({.regex = "("}), "");
  EXPECT_EQ(refusal({.regex = "a"}), "");
  EXPECT_NE(refusal({.structural_tag = "{\"type\": "}).find("the structural tag"),
            std::string::npos);
  EXPECT_EQ(refusal({.structural_tag = R"({"type": "structural_tag", "format":
      {"type": "token", "token": "<x>"}})"}),
            "");
}

}  // namespace
}  // namespace nanovllm
