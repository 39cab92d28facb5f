#include <gtest/gtest.h>

#include "grammar/grammar.h"
#include "server/openai/protocol_testing.h"

namespace nanovllm::server {
namespace {

constexpr const char* kHello = R"("messages":[{"role":"user","content":"ab"}])";
constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"f","parameters":{}}}])";

std::unique_ptr<ApiCall> chat(const LetterModel& model, const std::string& fields) {
  return parse_chat("{" + fields + "}", model.served, "7");
}

std::string prompt_of(const LetterModel& model, const std::string& fields) {
  const auto call = chat(model, fields);
  std::string letters;
  for (const int32_t id : call->requests.at(0).prompt_token_ids) {
    letters += model.tokenizer->id_to_token(id).value();
  }
  return letters;
}

ApiError refusal(const LetterModel& model, const std::string& fields) {
  return api_error_of([&] { chat(model, fields); });
}

TEST(ChatApi, RendersMessages) {
  const LetterModel model;
  EXPECT_EQ(prompt_of(model, kHello), "abXG");
  EXPECT_EQ(prompt_of(model, fmt::format(R"({},"add_generation_prompt":false)", kHello)), "abX");
  EXPECT_EQ(prompt_of(model, fmt::format(R"({},"chat_template_kwargs":{{"more":"c"}})", kHello)),
            "abXcG");
  EXPECT_EQ(prompt_of(model, fmt::format(R"({},"reasoning_effort":"none")", kHello)), "abXFG");
  EXPECT_EQ(prompt_of(model, fmt::format(R"({},"reasoning_effort":"low")", kHello)), "abXTG");
  EXPECT_EQ(prompt_of(model, fmt::format(R"({},"reasoning_effort":"low",)"
                                         R"("chat_template_kwargs":{{"enable_thinking":false}})",
                                         kHello)),
            "abXFG");
}

TEST(ChatApi, TakesContentInParts) {
  const LetterModel model;
  const auto prompt = [&](const std::string& content) {
    const auto call =
        chat(model,
             R"("return_prompt_text":true,"messages":[{"role":"user","content":)" + content + "}]");
    const std::vector<EngineEvent> events = {end(0)};
    call->on_events(0, events);
    return Json::parse(call->finish())["prompt_text"].get<std::string>();
  };
  EXPECT_EQ(prompt(R"([{"type":"text","text":"a"},{"type":"text","text":"b"}])"), "abXG");
  EXPECT_EQ(prompt(R"(["a"])"), "aXG");
  EXPECT_EQ(prompt("null"), "XG");
  EXPECT_EQ(prompt("[]"), "XG");
  for (const char* content :
       {R"([{"type":"image_url","image_url":{"url":"x"}}])", R"([{"type":"input_audio"}])", "3",
        "{}", "[3]", R"([{"type":"text"}])", R"([{"type":"text","text":3}])",
        R"([{"text":"a"}])"}) {
    const ApiError error =
        refusal(model, fmt::format(R"("messages":[{{"role":"user","content":{}}}])", content));
    EXPECT_EQ(error.status(), 400) << content;
    EXPECT_EQ(error.param(), "messages") << content;
    EXPECT_NE(std::string(error.what()).find("messages[0].content"), std::string::npos)
        << error.what();
    const bool is_other = std::string_view(content).find("image_url\",") != std::string::npos;
    EXPECT_EQ(std::string(error.what()).find("not supported yet") != std::string::npos,
              is_other || std::string_view(content).find("audio") != std::string::npos)
        << error.what();
  }
}

TEST(ChatApi, TakesReasoningAndCallsOfTheHistory) {
  const LetterModel model;
  const auto prompt = [&](const std::string& members) {
    return prompt_of(model, R"("messages":[{"role":"assistant","content":"a",)" + members + "}]");
  };
  EXPECT_EQ(prompt(R"("reasoning":"b")"), "aRbXG");
  EXPECT_EQ(prompt(R"("reasoning_content":"b")"), "aRbXG");
  EXPECT_EQ(prompt(R"("reasoning":null,"reasoning_content":"b")"), "aRbXG");
  const auto calls = [&](const char* arguments) {
    return prompt(fmt::format(
        R"("tool_calls":[{{"id":"i","type":"function","function":{{"name":"f","arguments":{}}}}}])",
        arguments));
  };
  EXPECT_EQ(calls(R"("{\"x\":\"c\"}")"), "acXG");
  EXPECT_EQ(calls(R"({"x":"c"})"), "acXG");
  for (const char* none : {"\"\"", "\"{\"", "\"[1]\"", "null", "3"}) EXPECT_EQ(calls(none), "aXG");
  EXPECT_EQ(prompt(R"("tool_calls":[])"), "aXG");
  for (const char* wrong : {R"("tool_calls":3)", R"("tool_calls":[3])", R"("tool_calls":[{}])",
                            R"("tool_calls":[{"type":"x","function":{}}])", R"("reasoning":3)"}) {
    EXPECT_EQ(
        refusal(model, fmt::format(R"("messages":[{{"role":"assistant",{}}}])", wrong)).param(),
        "messages")
        << wrong;
  }
}

TEST(ChatApi, RefusesOtherMessages) {
  const LetterModel model;
  for (const char* messages : {"null", "[]", "3", "[3]", "[{}]", R"([{"role":3}])"}) {
    const ApiError error = refusal(model, fmt::format(R"("messages":{})", messages));
    EXPECT_EQ(error.status(), 400) << messages;
    EXPECT_EQ(error.param(), "messages") << messages;
  }
}

TEST(ChatApi, ContinuesTheFinalMessage) {
  const LetterModel model;
  const char* messages =
      R"("messages":[{"role":"user","content":"ab"},{"role":"assistant","content":"cd"}])";
  const std::string continues =
      fmt::format(R"({},"continue_final_message":true,"add_generation_prompt":false)", messages);
  EXPECT_EQ(prompt_of(model, continues), "abXcd");
  EXPECT_EQ(refusal(model, fmt::format(R"({},"continue_final_message":true)", messages)).param(),
            "continue_final_message");
  const ChatTemplate trims("{% for m in messages %}{{ m.content | trim }}X{% endfor %}");
  const ChatTemplate drops("X");
  LetterModel other;
  other.served.preparer.chat_template = &trims;
  EXPECT_EQ(prompt_of(other, R"("messages":[{"role":"assistant","content":"cd  "}],)"
                             R"("continue_final_message":true,"add_generation_prompt":false)"),
            "cd");
  other.served.preparer.chat_template = &drops;
  EXPECT_EQ(refusal(other, continues).param(), "continue_final_message");
}

TEST(ChatApi, AnswersInTheRoleOfTheTurn) {
  const LetterModel model;
  const auto call =
      chat(model, fmt::format(R"({},"add_generation_prompt":false,"echo":true)", kHello));
  const std::vector<EngineEvent> events = {delta(0, "c", {2}), end(0)};
  call->on_events(0, events);
  const Json message = Json::parse(call->finish())["choices"][0]["message"];
  EXPECT_EQ(message["role"], "user");
  EXPECT_EQ(message["content"], "abc");
}

TEST(ChatApi, RefusesTemplatesUnlessTrusted) {
  LetterModel model;
  const std::string own = fmt::format(R"({},"chat_template":"q")", kHello);
  EXPECT_EQ(refusal(model, own).param(), "chat_template");
  EXPECT_EQ(
      refusal(model, fmt::format(R"({},"chat_template_kwargs":{{"chat_template":"q"}})", kHello))
          .param(),
      "chat_template_kwargs");
  const ChatTemplate raises("{{ raise_exception('not so') }}");
  model.served.preparer.chat_template = &raises;
  EXPECT_EQ(refusal(model, kHello).status(), 400);
  model.served.preparer.chat_template = nullptr;
  EXPECT_NE(std::string(refusal(model, kHello).what()).find("--chat-template"), std::string::npos);
}

TEST(ChatApi, RendersTemplatesOfRequestsWhereTheyAreTrusted) {
  LetterModel model;
  model.served.trust_request_chat_template = true;
  EXPECT_EQ(prompt_of(model, fmt::format(R"({},"chat_template":"q")", kHello)), "q");
  EXPECT_EQ(refusal(model, fmt::format(R"({},"chat_template":"{{{{")", kHello)).param(),
            "chat_template");
}

TEST(ChatApi, TakesTheServersTemplateKwargsWhereTheRequestHasNone) {
  LetterModel model;
  model.served.default_chat_template_kwargs = {{"enable_thinking", false}, {"more", "c"}};
  EXPECT_EQ(prompt_of(model, kHello), "abXcFG");
  EXPECT_EQ(prompt_of(model, fmt::format(R"({},"chat_template_kwargs":{{"more":"d"}})", kHello)),
            "abXdFG");
}

TEST(ChatApi, FindsTheThoughtBehindWhichAGrammarBegins) {
  LetterModel model;
  const auto tags = [&](const char* fields) {
    return chat(model, fmt::format(R"({}{})", kHello, fields))->requests[0].params.thinking_tags;
  };
  const char* format = R"(,"response_format":{"type":"json_object"})";
  EXPECT_EQ(tags(format), ThinkingTags());
  model.served.preparer.thinking_start = "p";
  model.served.preparer.thinking_end = "qr";
  EXPECT_EQ(tags(format), (ThinkingTags{{15}, {16, 17}, -1}));
  EXPECT_EQ(tags(R"(,"structured_outputs":{"regex":"a"},"thinking_token_budget":-1)"),
            (ThinkingTags{{15}, {16, 17}, -1}));
  EXPECT_EQ(tags(R"(,"chat_template_kwargs":{"more":"pc"},"structured_outputs":{"regex":"a"})"),
            (ThinkingTags{{15}, {16, 17}, 2}));  // open at the prompt's end
  EXPECT_EQ(tags(""), std::nullopt);
}

TEST(ChatApi, TellsUsageInEveryChunkWhereTheServerWantsIt) {
  LetterModel model;
  model.served.enable_force_include_usage = true;
  const auto call = chat(model, fmt::format(R"({},"stream":true,"n":2)", kHello));
  const std::vector<EngineEvent> events = {delta(1, "x", {23}), end(0), end(1)};
  std::string text = call->on_events(0, events);
  text += call->finish();
  std::vector<Json> chunks = chunks_of(text);
  EXPECT_EQ(chunks.back(), "[DONE]");
  chunks.pop_back();
  ASSERT_EQ(chunks.size(), 5u);
  for (const Json& chunk : chunks) EXPECT_EQ(chunk["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], 1);
}

TEST(ChatApi, ReadsParameters) {
  const LetterModel model;
  const auto params = [&](const std::string& fields) {
    return chat(model, kHello + fields)->requests[0].params;
  };
  EXPECT_EQ(params("").max_tokens, kAsManyAsFit);
  EXPECT_EQ(params(R"(,"max_tokens":null)").max_tokens, kAsManyAsFit);
  EXPECT_EQ(params(R"(,"max_tokens":5)").max_tokens, 5);
  EXPECT_EQ(params(R"(,"max_tokens":5,"max_completion_tokens":6)").max_tokens, 6);
  EXPECT_EQ(params("").logprobs, std::nullopt);
  EXPECT_EQ(params(R"(,"logprobs":true)").logprobs, 0);
  EXPECT_EQ(params(R"(,"logprobs":true,"top_logprobs":2)").logprobs, 2);
  EXPECT_EQ(params(R"(,"logprobs":false,"top_logprobs":0)").logprobs, std::nullopt);
  EXPECT_EQ(refusal(model, kHello + std::string(R"(,"top_logprobs":2)")).param(), "top_logprobs");
  EXPECT_EQ(refusal(model, kHello + std::string(R"(,"logprobs":2)")).param(), "logprobs");
  EXPECT_EQ(refusal(model, kHello + std::string(R"(,"max_completion_tokens":0)")).param(),
            "max_completion_tokens");
}

// The names and schemas of the calls that the request's tag lets come; "" = there is no tag.
std::string tag_of(const LetterModel& model, const std::string& fields) {
  const auto call = chat(model, fields);
  const auto& asked = call->requests.at(0).params.structured_outputs;
  return asked ? asked->structural_tag.value() : "";
}

struct HermesModel : LetterModel {
  HermesModel() {
    served.format.tool_call_parser = "hermes";
    served.preparer.grammars = &grammars;
  }
  GrammarCompiler grammars{*tokenizer};
};

constexpr const char* kTwoTools =
    R"("tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"x":{}}}}},)"
    R"({"type":"function","function":{"name":"g"}}])";

TEST(ChatApi, LetsNothingComeButTheCallsThatAreAskedFor) {
  const HermesModel model;
  const auto tag = [&](const std::string& fields) {
    return tag_of(model,
                  fmt::format("{},{}{}{}", kHello, kTwoTools, fields.empty() ? "" : ",", fields));
  };
  EXPECT_EQ(tag(""), "");
  EXPECT_EQ(tag(R"("tool_choice":"auto")"), "");
  EXPECT_EQ(tag(R"("tool_choice":"none")"), "");
  const auto calls = [](const std::string& text) -> Json {
    Json format = Json::parse(text)["format"];
    if (format["type"] == "sequence") format = format["elements"][1];
    Json names = Json::array();
    for (const Json& one : format["tags"]) {
      names.push_back(one["content"]["elements"][0]["pattern"]);
    }
    return {format["type"], names, format["stop_after_first"]};
  };
  const std::string list = "tags_with_separator", text = "triggered_tags";
  EXPECT_EQ(calls(tag(R"("tool_choice":"required")")), Json({list, {"f", "g"}, false}));
  EXPECT_EQ(calls(tag(R"("tool_choice":"required","parallel_tool_calls":false)")),
            Json({list, {"f", "g"}, true}));
  EXPECT_EQ(calls(tag(R"("tool_choice":{"type":"function","function":{"name":"g"}})")),
            Json({list, Json::array({"g"}), true}));
  const std::string allowed = R"("tools":[{"type":"function","function":{"name":"f"}}]}})";
  EXPECT_EQ(calls(tag(R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto",)" +
                      allowed)),
            Json({text, Json::array({"f"}), false}));
  EXPECT_EQ(
      calls(tag(R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required",)" +
                allowed)),
      Json({list, Json::array({"f"}), false}));
  // Where one is strict, all are bound, and the others' arguments are an object.
  const std::string strict = fmt::format(
      R"({},"tools":[{{"type":"function","function":{{"name":"f","strict":true,"parameters":)"
      R"({{"properties":{{"x":{{}}}}}}}}}},{{"type":"function","function":{{"name":"g",)"
      R"("parameters":{{"properties":{{"y":{{}}}}}}}}}}])",
      kHello);
  EXPECT_EQ(calls(tag_of(model, strict)), Json({text, {"f", "g"}, false}));
  EXPECT_NE(tag_of(model, strict).find("\"x\""), std::string::npos);
  EXPECT_EQ(tag_of(model, strict).find("\"y\""), std::string::npos);
  EXPECT_NE(tag_of(model, strict + R"(,"tool_choice":"required")").find("\"y\""),
            std::string::npos);
}

TEST(ChatApi, NamesTheFunctionWhoseParametersCannotBeEnforced) {
  const HermesModel model;
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{"properties":)"
      R"({"x":{"not":{}}}}}}])";
  EXPECT_NO_THROW(chat(model, fmt::format("{},{}", kHello, tools)));
  const ApiError error =
      refusal(model, fmt::format(R"({},{},"tool_choice":"required")", kHello, tools));
  EXPECT_EQ(error.status(), 400);
  EXPECT_EQ(error.param(), "tools");
  EXPECT_EQ(std::string(error.what()),
            "The parameters of the function \"f\" can't be enforced: JSON schema at "
            "/properties/x: not can't be enforced; leave it out, or say it in another way.");
}

TEST(ChatApi, TellsWhoIsToBlameForWhatCannotBeEnforced) {
  const HermesModel model;
  const auto refused = [&](const std::string& tools, const std::string& fields) {
    const ApiError error =
        refusal(model, fmt::format(R"({},"tools":[{}],{})", kHello, tools, fields));
    EXPECT_EQ(error.status(), 400) << error.what();
    return fmt::format("{}: {}", error.param(), error.what());
  };
  const std::string loose =
      R"({"type":"function","function":{"name":"f","parameters":{"properties":{"x":{"not":{}}}}}})";
  const std::string strict =
      R"({"type":"function","function":{"name":"g","strict":true,"parameters":{"properties":)"
      R"({"tags":{"not":{}}}}}})";
  const std::string odd =
      R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"odd"}}})";
  EXPECT_EQ(refused(loose, odd),
            "response_format: JSON schema: type is \"odd\", which is no type.");
  EXPECT_EQ(refused(loose + "," + strict, R"("parallel_tool_calls":false)"),
            "tools: The parameters of the function \"g\" can't be enforced: JSON schema at "
            "/properties/tags: not can't be enforced; leave it out, or say it in another way.");
  const std::string large(size_t{1} << 20, 'd');
  const std::string long_tool = fmt::format(
      R"({{"type":"function","function":{{"name":"g","parameters":{{"description":"{}"}}}}}})",
      large);
  const std::string too_long = refused(long_tool, R"("tool_choice":"required")");
  EXPECT_TRUE(too_long.starts_with("tools: What the answer must follow has 1049116 bytes "))
      << too_long.substr(0, 300);
}

TEST(ChatApi, NamesTheFunctionThatNoCallCanFit) {
  const HermesModel model;
  const auto refused = [&](const char* parameters) -> std::string {
    const std::string tools = fmt::format(
        R"({},"tools":[{{"type":"function","function":{{"name":"f"}}}},)"
        R"({{"type":"function","function":{{"name":"g","strict":true,"parameters":{}}}}}])",
        kHello, parameters);
    EXPECT_NO_THROW(chat(model, tools + R"(,"tool_choice":"none")"));
    const ApiError error =
        refusal(model, tools + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})");
    EXPECT_EQ(error.status(), 400);
    EXPECT_EQ(error.param(), "tools");
    return error.what();
  };
  const std::string its = "The parameters of the function \"g\" can't be enforced: ";
  for (const char* parameters : {R"({"minProperties":2,"maxProperties":1})",
                                 R"({"required":["a"],"properties":{"a":false}})"}) {
    EXPECT_TRUE(refused(parameters).starts_with(its)) << refused(parameters);
  }
  EXPECT_EQ(refused(R"({"type":"string"})"),
            its + "JSON schema: type must be \"object\", got \"string\".");
  EXPECT_EQ(refused(R"({"type":["string","null"]})"),
            its + "JSON schema: type must be \"object\", got an array.");
  const std::string types = fmt::format(
      R"({},"tools":[{{"type":"function","function":{{"name":"f","parameters":{{"type":"string"}}}}}},)"
      R"({{"type":"function","function":{{"name":"g","parameters":{{"type":["null","object"]}}}}}}])",
      kHello);
  EXPECT_NO_THROW(chat(model, types));
  EXPECT_NO_THROW(
      chat(model, types + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})"));
  EXPECT_EQ(refusal(model, types + R"(,"tool_choice":"required")").param(), "tools");
}

TEST(ChatApi, RefusesConstraintsThatSayNothingOrTooMuchBesideToolsToo) {
  const HermesModel model;
  for (const auto& [fields, param, part] :
       {std::tuple{R"("structured_outputs":{})", "structured_outputs", "none are specified"},
        {R"("structured_outputs":{"disable_any_whitespace":true})", "structured_outputs",
         "none are specified"},
        {R"("structured_outputs":{"regex":"a","json_object":true})", "structured_outputs",
         "multiple are specified: regex, json_object."},
        {R"("response_format":{"type":"json_object"},"structured_outputs":{})",
         "structured_outputs", "none are specified"},
        {R"("structured_outputs":{"structural_tag":"[]"})", "structured_outputs",
         "the structural tag is no JSON object."},
        {R"("tool_choice":{"type":"allowed_tools","allowed_tools":"x"})", "tool_choice",
         "must have a list of tools"},
        {R"("tool_choice":{"type":"allowed_tools","allowed_tools":[1]})", "tool_choice",
         "must have a list of tools"}}) {
    const ApiError error = refusal(model, fmt::format("{},{},{}", kHello, kTwoTools, fields));
    EXPECT_EQ(error.status(), 400) << fields;
    EXPECT_EQ(error.param(), param) << fields;
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(ChatApi, EndsWithStopWhereACallWasAskedForByName) {
  const HermesModel model;
  for (const auto& [choice, reason] :
       {std::pair{R"("auto")", "tool_calls"},
        {R"("required")", "tool_calls"},
        {R"({"type":"function","function":{"name":"f"}})", "stop"}}) {
    const auto call =
        chat(model, fmt::format(R"({},{},"tool_choice":{})", kHello, kTwoTools, choice));
    const std::vector<EngineEvent> events = {delta(0, "[f x]", {1}), end(0)};
    call->on_events(0, events);
    const Json one = Json::parse(call->finish())["choices"][0];
    EXPECT_EQ(one["message"]["tool_calls"].size(), 1u);
    EXPECT_EQ(one["finish_reason"], reason);
  }
}

TEST(ChatApi, ChecksTools) {
  LetterModel model;
  const auto with = [&](const std::string& tools) { return fmt::format("{},{}", kHello, tools); };
  const std::string auto_tools = with(kTools);
  EXPECT_EQ(refusal(model, auto_tools).param(), "tool_choice");  // nobody could tell a call
  EXPECT_EQ(prompt_of(model, auto_tools + R"(,"tool_choice":"none")"), "abXfG");
  model.served.format.tool_call_parser = "brackets";
  EXPECT_EQ(prompt_of(model, auto_tools), "abXfG");
  EXPECT_EQ(prompt_of(model, auto_tools + R"(,"tool_choice":"auto")"), "abXfG");
  for (const auto& [choice, what] :
       {std::pair{R"({"type":"function","function":{"name":"g"}})",
                  "The tool \"g\" specified in `tool_choice` does not match any"},
        {R"({"type":"function","name":"f"})", "tool_choice must be \"none\", "},
        {R"({"type":"custom","custom":{"name":"f"}})", "got an object"},
        {R"({"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}})",
         "must have a list of tools"},
        {R"({"type":"allowed_tools","allowed_tools":{"mode":"some","tools":[{"type":"function",
             "function":{"name":"f"}}]}})",
         "must have a list of tools"},
        {R"("sometimes")", "got \"sometimes\""},
        {"3", "got 3"}}) {
    const ApiError error = refusal(model, auto_tools + R"(,"tool_choice":)" + choice);
    EXPECT_EQ(error.param(), "tool_choice");
    EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
  }
  EXPECT_EQ(refusal(model, with(R"("tool_choice":"auto")")).param(), "tool_choice");
  EXPECT_NO_THROW(chat(model, with(R"("tool_choice":"none")")));
  for (const char* tools :
       {"[]", "3", "[3]", R"([{"type":"x"}])", R"([{"type":"function"}])", R"([{"function":{}}])",
        R"([{"function":{"name":"f","parameters":3}}])"}) {
    EXPECT_EQ(refusal(model, with(fmt::format(R"("tools":{})", tools))).param(), "tools") << tools;
  }
  for (const char* choice : {"", R"(,"tool_choice":"none")", R"(,"tool_choice":"required")"}) {
    const ApiError error = refusal(
        model, with(R"("tools":[{"function":{"name":"f"}},{"function":{"name":""}}])") + choice);
    EXPECT_EQ(error.status(), 400);
    EXPECT_EQ(error.param(), "tools");
    EXPECT_STREQ(error.what(), "tools[1].function.name must not be empty.") << choice;
  }
}

TEST(ChatApi, WritesToolsInOneOrder) {
  LetterModel model;
  const ChatTemplate writes("{{ tools | tojson }}");
  model.served.preparer.chat_template = &writes;
  model.served.format.tool_call_parser = "hermes";
  const auto call = chat(
      model,
      fmt::format(R"({},"return_prompt_text":true,"tools":[{{"function":{{"strict":true,"x":1,)"
                  R"("parameters":{{"b":1,"a":2}},"name":"f"}},"type":"function"}}])",
                  kHello));
  const std::vector<EngineEvent> events = {end(0)};
  call->on_events(0, events);
  EXPECT_EQ(Json::parse(call->finish())["prompt_text"],
            R"([{"type": "function", "function": {"name": "f", "description": null, )"
            R"("parameters": {"b": 1, "a": 2}, "strict": true}}])");
}

TEST(ChatApi, HasNoMoreMessagesThanTheContextHasTokens) {
  LetterModel model;
  const ChatTemplate first_alone("{{ messages[0].content }}");
  model.served.preparer.chat_template = &first_alone;
  const auto body = [](size_t count) {
    std::string list;
    for (size_t i = 0; i < count; ++i) {
      list += R"({"role":"user","content":[{"type":"text","text":"a"}]},)";
    }
    list.back() = ']';
    return R"("messages":[)" + list;
  };
  EXPECT_EQ(chat(model, body(100))->requests[0].prompt_token_ids, (Ids{0}));
  const ApiError error = refusal(model, body(101));
  EXPECT_EQ(error.status(), 400);
  EXPECT_EQ(error.param(), "messages");
  EXPECT_EQ(std::string(error.what()),
            "This model's maximum context length is 100 tokens. However, your chat has 101 "
            "messages, each of which takes one token at least. Please reduce the number of "
            "messages.");
  EXPECT_EQ(api_error_of([&] { tokenize_body("{" + body(101) + "}", model.served); }).param(),
            "messages");
}

TEST(ChatApi, LongAnswersComeInPieces) {
  const LetterModel model;
  const auto call =
      chat(model, fmt::format(R"({},"logprobs":true,"top_logprobs":2,"n":2)", kHello));
  EXPECT_TRUE(call->wants_events_soon);
  constexpr int kTokens = 3000;
  std::vector<EngineEvent> events;
  for (int i = 0; i < kTokens; ++i) {
    for (const int choice : {0, 1}) {
      RequestDelta output = delta(choice, "d", {3});
      output.logprobs = {{logprob(3, -1.5, 2, "d"), logprob(4, -1, 1, "e")}};
      events.push_back(std::move(output));
    }
  }
  events.push_back(end(0));
  events.push_back(end(1));
  EXPECT_EQ(call->on_events(0, events), "");
  std::string all;
  size_t num_pieces = 0;
  for (bool has_more = true; has_more; ++num_pieces) {
    std::string piece;
    has_more = call->next_piece(piece);
    EXPECT_LT(piece.size(), kAnswerPiece + 1000);
    all += piece;
  }
  EXPECT_GT(num_pieces, 5u);
  const Json answer = Json::parse(all);
  for (const Json& choice : answer["choices"]) {
    ASSERT_EQ(choice["logprobs"]["content"].size(), kTokens);
    for (const Json& token : choice["logprobs"]["content"]) {
      ASSERT_EQ(token.dump(), R"({"token":"d","logprob":-1.5,"bytes":[100],"top_logprobs":[)"
                              R"({"token":"d","logprob":-1.5,"bytes":[100]},)"
                              R"({"token":"e","logprob":-1.0,"bytes":[101]}]})");
    }
  }
  EXPECT_FALSE(chat(model, kHello)->wants_events_soon);
}

TEST(ChatApi, LongTextsComeInPieces) {
  const LetterModel model;
  const auto call = chat(model, kHello);
  const std::string text(3 * kAnswerPiece, 'd');
  const std::vector<EngineEvent> events = {delta(0, text, {3}), end(0)};
  call->on_events(0, events);
  std::string all;
  for (bool has_more = true; has_more;) {
    std::string piece;
    has_more = call->next_piece(piece);
    EXPECT_LE(piece.size(), kAnswerPiece);
    all += piece;
  }
  EXPECT_EQ(Json::parse(all)["choices"][0]["message"]["content"], text);
}

TEST(ChatApi, AnswersWhole) {
  const LetterModel model;
  const auto call = chat(model, fmt::format(R"({},"logprobs":true,"top_logprobs":1)", kHello));
  RequestDelta output = delta(0, "d", {3});
  output.logprobs = {{logprob(3, -1.5, 2, "d"), logprob(4, -1, 1, "e")}};
  const std::vector<EngineEvent> events = {output, end(0, FinishReason::kStop, 3)};
  call->on_events(0, events);
  Json answer = Json::parse(call->finish());
  answer["created"] = 0;
  EXPECT_EQ(answer.dump(),
            R"({"id":"chatcmpl-7","object":"chat.completion","created":0,"model":"letters",)"
            R"("choices":[{"index":0,"message":{"role":"assistant","content":"d","refusal":null,)"
            R"("annotations":null,"audio":null,"function_call":null,"reasoning":null},)"
            R"("logprobs":{"content":[{"token":"d","logprob":-1.5,"bytes":[100],"top_logprobs":[)"
            R"({"token":"d","logprob":-1.5,"bytes":[100]}]}]},"finish_reason":"stop",)"
            R"("stop_reason":3,"token_ids":null,"routed_experts":null}],"service_tier":null,)"
            R"("system_fingerprint":"fp","usage":{"prompt_tokens":4,"total_tokens":5,)"
            R"("completion_tokens":1,"prompt_tokens_details":null,)"
            R"("completion_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,)"
            R"("prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,)"
            R"("metrics":null})");
}

TEST(ChatApi, StreamsRoleThenDeltas) {
  const LetterModel model;
  const auto call = chat(model, fmt::format(R"({},"stream":true,"n":2)", kHello));
  std::vector<EngineEvent> events = {StepStats{}};
  EXPECT_EQ(call->on_events(0, events), "");
  events = {delta(1, "x", {23}), delta(0, "y", {24}), end(0)};
  std::vector<Json> chunks = chunks_of(call->on_events(0, events));
  ASSERT_EQ(chunks.size(), 4u);
  for (Json& chunk : chunks) chunk.erase("created");
  EXPECT_EQ(chunks[1].dump(),
            R"({"id":"chatcmpl-7","object":"chat.completion.chunk","model":"letters","choices":[)"
            R"({"index":1,"delta":{"role":"assistant","content":""},"logprobs":null,)"
            R"("finish_reason":null}],"prompt_token_ids":null,"prompt_text":null})");
  EXPECT_EQ(chunks[2].dump(),
            R"({"id":"chatcmpl-7","object":"chat.completion.chunk","model":"letters","choices":[)"
            R"({"index":0,"delta":{"content":"y"},"logprobs":null,"finish_reason":"stop",)"
            R"("stop_reason":null,"token_ids":null}],"system_fingerprint":"fp"})");
  EXPECT_EQ(chunks[3].dump(),
            R"({"id":"chatcmpl-7","object":"chat.completion.chunk","model":"letters","choices":[)"
            R"({"index":1,"delta":{"content":"x"},"logprobs":null,"finish_reason":null,)"
            R"("token_ids":null}]})");
}

TEST(ChatApi, TellsReasoningAndCalls) {
  LetterModel model;
  model.served.format = {.reasoning_parser = "brackets", .tool_call_parser = "brackets"};
  const std::vector<EngineEvent> events = {delta(0, "<why>so[f {\"x\":1}]", {1, 2, 3}), end(0)};
  const std::string fields = fmt::format("{},{}", kHello, kTools);
  const auto call = chat(model, fields);
  call->on_events(0, events);
  const Json choice = Json::parse(call->finish())["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "so");
  EXPECT_EQ(choice["message"]["reasoning"], "why");
  EXPECT_EQ(choice["message"]["reasoning_content"], "why");
  const Json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_TRUE(calls[0]["id"].get<std::string>().starts_with("chatcmpl-tool-"));
  EXPECT_EQ(calls[0]["function"].dump(), R"({"name":"f","arguments":"{\"x\":1}"})");

  const auto stream = chat(model, fields + R"(,"stream":true)");
  const std::vector<Json> chunks = chunks_of(stream->on_events(0, events));
  ASSERT_EQ(chunks.size(), 2u);
  const Json& last = chunks[1]["choices"][0];
  EXPECT_EQ(last["finish_reason"], "tool_calls");
  EXPECT_EQ(last["delta"]["tool_calls"][0]["id"], calls[0]["id"]);
  EXPECT_EQ(last["delta"]["tool_calls"][0]["index"], 0);

  const auto silent = chat(model, fields + R"(,"include_reasoning":false,"logprobs":true)");
  silent->on_events(0, events);
  const Json hidden = Json::parse(silent->finish())["choices"][0];
  EXPECT_EQ(hidden["message"]["reasoning"], nullptr);
  EXPECT_EQ(hidden["logprobs"], nullptr);
}

TEST(ChatApi, GivesOutIdsThatTheTemplateTakesBack) {
  const ChatTemplate wants_short(
      "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
      "{{ raise_exception('nine') }}{% endif %}{{ c.function.arguments.key }}{% endfor %}"
      "{{ m.content }}{% endfor %}");
  LetterModel model;
  model.served.format.tool_call_parser = "brackets";
  model.served.preparer.chat_template = &wants_short;
  const std::vector<EngineEvent> events = {delta(0, "[f {}][f {}]", {1}), end(0)};
  const auto call = chat(model, fmt::format("{},{}", kHello, kTools));
  call->on_events(0, events);
  Json message = Json::parse(call->finish())["choices"][0]["message"];
  const auto id_of = [&](size_t i) { return message["tool_calls"][i]["id"].get<std::string>(); };
  EXPECT_EQ(id_of(0).size(), 9u);
  EXPECT_EQ(id_of(1).size(), 9u);
  EXPECT_NE(id_of(0), id_of(1));
  const Json history = {{{"role", "user"}, {"content", "a"}}, message};
  EXPECT_EQ(prompt_of(model, "\"messages\":" + history.dump()), "a");
}

TEST(ChatApi, CountsReasoningTokens) {
  LetterModel model;
  model.served.format.reasoning_parser = "brackets";
  model.served.tags = {.begin_of_thought = 0, .end_of_thought = 1};
  const auto details = [&](const std::string& text, std::vector<int32_t> ids) {
    const auto call = chat(model, kHello);
    const std::vector<EngineEvent> events = {delta(0, text, std::move(ids)), end(0)};
    call->on_events(0, events);
    return Json::parse(call->finish())["usage"]["completion_tokens_details"].dump();
  };
  EXPECT_EQ(details("<aa>b", {0, 2, 2, 1, 3}), R"({"reasoning_tokens":2})");
  EXPECT_EQ(details("<aa", {2, 2}), R"({"reasoning_tokens":2})");
  EXPECT_EQ(details("b", {3}), R"({"reasoning_tokens":0})");
  EXPECT_EQ(details("<aa>b", {2, 2, 1, 3, 0, 3, 1, 3}), R"({"reasoning_tokens":2})");
}

TEST(ChatApi, TakesOneCallWhereNotParallel) {
  LetterModel model;
  model.served.format.tool_call_parser = "brackets";
  const std::vector<EngineEvent> events = {delta(0, "[f {}][f {}]", {1}), end(0)};
  for (const bool parallel : {true, false}) {
    const auto call =
        chat(model, fmt::format(R"({},{},"parallel_tool_calls":{})", kHello, kTools, parallel));
    call->on_events(0, events);
    const Json message = Json::parse(call->finish())["choices"][0]["message"];
    EXPECT_EQ(message["tool_calls"].size(), parallel ? 2u : 1u);
    EXPECT_EQ(message["content"], nullptr);
  }
}

}  // namespace
}  // namespace nanovllm::server
