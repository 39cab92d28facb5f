#include "server/agents/messages_request.h"

#include "base/testing.h"
#include "server/agents/agents_testing.h"

namespace nanovllm::server {
namespace {

MessagesRequest read(const std::string& fields, bool counts = false) {
  const LetterModel model;
  return read_messages(R"({"model":"letters","max_tokens":9,)" + fields + "}", model.served,
                       counts);
}

Json messages_of(const std::string& fields) { return read(fields).chat["messages"]; }

// Of one message of the user, with its content.
std::string content_of(const std::string& content) {
  return messages_of(R"("messages":[{"role":"user","content":)" + content + "}]").dump();
}

ApiError refusal(const std::string& fields, bool counts = false) {
  return api_error_of([&] { read(fields, counts); });
}

constexpr const char* kHi = R"("messages":[{"role":"user","content":"a"}])";

TEST(MessagesRequest, HasOneBlockRenderAsAText) {
  EXPECT_EQ(content_of(R"("a")"), R"([{"role":"user","content":"a"}])");
  EXPECT_EQ(content_of(R"([{"type":"text","text":"a","cache_control":{"type":"ephemeral"},)"
                       R"("citations":null,"unknown":[1]}])"),
            R"([{"role":"user","content":"a"}])");
  EXPECT_EQ(
      content_of(R"([{"type":"text","text":"a"},{"type":"text","text":"b"}])"),
      R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])");
  EXPECT_EQ(content_of("[]"), R"([{"role":"user","content":""}])");
}

TEST(MessagesRequest, JoinsTheSystemBlocksWithoutTheBillingHeader) {
  const auto system = [](const std::string& value) {
    return messages_of(fmt::format(R"("system":{},{})", value, kHi))[0].dump();
  };
  EXPECT_EQ(system(R"("b")"), R"({"role":"system","content":"b"})");
  EXPECT_EQ(system(R"([{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1.332.4ab;"},
                       {"type":"text","text":"b"},{"type":"text","text":"c"}])"),
            R"({"role":"system","content":"b\nc"})");
  for (const char* none :
       {"null", "\"\"", "[]", R"([{"type":"text","text":"x-anthropic-billing-header: a"}])"}) {
    EXPECT_EQ(system(none), R"({"role":"user","content":"a"})");
  }
}

TEST(MessagesRequest, KeepsSystemMessagesInTheirPlace) {
  EXPECT_EQ(messages_of(R"("system":"s","messages":[{"role":"user","content":"a"},
      {"role":"system","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]},
      {"role":"user","content":"d"}])")
                .dump(),
            R"([{"role":"system","content":"s"},{"role":"user","content":"a"},)"
            R"({"role":"system","content":"b\nc"},{"role":"user","content":"d"}])");
}

TEST(MessagesRequest, TakesBackWhatTheModelSaid) {
  EXPECT_EQ(messages_of(R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":[
      {"type":"thinking","thinking":"b","signature":"anything"},
      {"type":"redacted_thinking","data":"xx"},{"type":"text","text":"c"},
      {"type":"server_tool_use","id":"s","name":"web_search","input":{}},
      {"type":"web_search_tool_result","tool_use_id":"s","content":[]},
      {"type":"tool_use","id":"toolu_1","name":"f","input":{"z":1,"a":{"y":2,"b":3}}},
      {"type":"tool_use","id":"toolu_2","name":"g","input":{}}]},
      {"role":"user","content":[{"type":"text","text":"e"},
      {"type":"tool_result","tool_use_id":"toolu_1","content":"d","is_error":true},
      {"type":"tool_result","tool_use_id":"toolu_2","content":[{"type":"text","text":"x"},
       {"type":"web_search_tool_result","content":[]},
       {"type":"text","text":"y"},{"type":"tool_reference","tool_name":"h"}]}]}])")
                .dump(),
            R"([{"role":"user","content":"a"},)"
            R"({"role":"assistant","content":"c","reasoning_content":"b","tool_calls":[)"
            R"({"id":"toolu_1","type":"function","function":{"name":"f","arguments":)"
            R"({"z":1,"a":{"y":2,"b":3}}}},)"
            R"({"id":"toolu_2","type":"function","function":{"name":"g","arguments":{}}}]},)"
            R"({"role":"tool","content":"d","tool_call_id":"toolu_1"},)"
            R"({"role":"tool","content":"x\ny\nh","tool_call_id":"toolu_2"},)"
            R"({"role":"user","content":"e"}])");
  const std::string call =
      R"({"role":"assistant","content":[{"type":"thinking","thinking":"","signature":""},)"
      R"({"type":"tool_use","id":"i","name":"f","input":{}}]})";
  for (const char* empty :
       {R"("content":[])", R"("content":"")", R"("content":null)", R"("is_error":false)"}) {
    const Json messages = messages_of(
        fmt::format(R"("messages":[{{"role":"user","content":"a"}},{},{{"role":"user","content":[)"
                    R"({{"type":"tool_result","tool_use_id":"i",{}}}]}}])",
                    call, empty));
    ASSERT_EQ(messages.size(), 3u);
    EXPECT_FALSE(messages[1].contains("reasoning_content"));
    EXPECT_EQ(messages[2].dump(), R"({"role":"tool","content":"","tool_call_id":"i"})");
  }
}

TEST(MessagesRequest, TakesTheIdOfACallThatWasAnsweredAgain) {
  const std::string turn =
      R"({"role":"assistant","content":[{"type":"tool_use","id":"i","name":"f","input":{}}]},)"
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"i","content":"a"}]})";
  EXPECT_EQ(messages_of(fmt::format(R"("messages":[{},{}])", turn, turn)).size(), 4u);
}

TEST(MessagesRequest, GoesOnWithAnAnswerThatHasBegun) {
  const Json chat = read(R"("messages":[{"role":"user","content":"a"},
      {"role":"assistant","content":"b"}])")
                        .chat;
  EXPECT_EQ(chat["continue_final_message"], true);
  EXPECT_EQ(chat["add_generation_prompt"], false);
  EXPECT_FALSE(read(kHi).chat.contains("continue_final_message"));
  EXPECT_FALSE(read(R"("messages":[{"role":"assistant","content":[
      {"type":"tool_use","id":"i","name":"f","input":{}}]}])")
                   .chat.contains("continue_final_message"));
}

std::string tools_of(const std::string& fields) {
  return read(fmt::format("{},{}", fields, kHi)).chat.value("tools", Json()).dump();
}

TEST(MessagesRequest, TranslatesTools) {
  EXPECT_EQ(tools_of(R"("tools":[{"name":"f","description":"d","input_schema":{"properties":{}},
        "strict":true,"cache_control":{},"input_examples":[{}],"eager_input_streaming":true,
        "allowed_callers":["direct"]},{"type":"custom","name":"g","input_schema":{"type":"object"}},
        {"name":"later","input_schema":{},"defer_loading":true}])"),
            R"([{"type":"function","function":{"name":"f","parameters":)"
            R"({"properties":{},"type":"object"},"description":"d","strict":true}},)"
            R"({"type":"function","function":{"name":"g","parameters":{"type":"object"}}}])");
  for (const char* none : {"[]", "null"}) {
    EXPECT_EQ(tools_of(fmt::format(R"("tools":{})", none)), "null");
  }
  const std::string one = R"("tools":[{"name":"f","input_schema":{}}])";
  EXPECT_EQ(tools_of(one + R"(,"tool_choice":{"type":"none"})"), "null");
  EXPECT_NE(tools_of(one + R"(,"tool_choice":{"type":"auto"})"), "null");
  const auto choice_of = [&](const std::string& choice) -> Json {
    const Json chat = read(fmt::format(R"({},{},"tool_choice":{})", one, kHi, choice)).chat;
    return {chat.value("tool_choice", Json()), chat.value("parallel_tool_calls", Json())};
  };
  EXPECT_EQ(choice_of(R"({"type":"auto"})"), Json({nullptr, nullptr}));
  EXPECT_EQ(choice_of(R"({"type":"any"})"), Json({"required", true}));
  EXPECT_EQ(choice_of(R"({"type":"any","disable_parallel_tool_use":true})"),
            Json({"required", false}));
  EXPECT_EQ(choice_of(R"({"type":"tool","name":"f"})"),
            Json({{{"type", "function"}, {"function", {{"name", "f"}}}}, true}));
  EXPECT_TRUE(read(fmt::format("{},{}", one, kHi)).options.parallel_tool_calls);
  EXPECT_FALSE(read(fmt::format(R"({},{},"tool_choice":{{"type":"auto",)"
                                R"("disable_parallel_tool_use":true}})",
                                one, kHi))
                   .options.parallel_tool_calls);
}

std::vector<std::string> names_after(const std::string& blocks) {
  const MessagesRequest request = read(R"("tools":[{"name":"f","input_schema":{}},
          {"name":"later","input_schema":{},"defer_loading":true}],
          "messages":[{"role":"user","content":"a"},
          {"role":"assistant","content":[{"type":"tool_use","id":"i","name":"f","input":{}}]},)" +
                                       blocks + "]");
  std::vector<std::string> names;
  for (const Json& tool : request.chat["tools"]) {
    names.push_back(tool["function"]["name"].get<std::string>());
  }
  return names;
}

TEST(MessagesRequest, ChangesToolsAsMessagesSay) {
  using Names = std::vector<std::string>;
  const auto change = [](const std::string& block) {
    return names_after(R"({"role":"system","content":[)" + block + "]}");
  };
  EXPECT_EQ(change(R"({"type":"text","text":"x"})"), (Names{"f"}));
  EXPECT_EQ(change(R"({"type":"tool_addition","tool":{"type":"tool_definition",
                      "definition":{"name":"h","input_schema":{}}}})"),
            (Names{"f", "h"}));
  EXPECT_EQ(change(R"({"type":"tool_addition","tool":{"type":"tool_reference","name":"later"}})"),
            (Names{"f", "later"}));
  EXPECT_EQ(change(R"({"type":"tool_addition","tool":{"type":"tool_reference","tool_name":"later"}},
                {"type":"tool_removal","tool":{"type":"tool_reference","name":"f"}})"),
            (Names{"later"}));
  EXPECT_EQ(change(R"({"type":"tool_addition","tool":{"type":"tool_reference","name":"later"}},
                {"type":"tool_removal","tool":{"type":"tool_definition",
                 "definition":{"name":"f","input_schema":{}}}})"),
            (Names{"later"}));
  EXPECT_EQ(change(R"({"type":"tool_removal","tool":{"type":"tool_reference","name":"f"}},
                {"type":"tool_addition","tool":{"type":"tool_reference","name":"f"}})"),
            (Names{"f"}));
  EXPECT_EQ(change(R"({"type":"tool_addition","tool":{"type":"tool_definition",
                      "definition":{"name":"h","input_schema":{}}}},
                {"type":"tool_addition","tool":{"type":"tool_definition",
                      "definition":{"name":"f","input_schema":{}}}},
                {"type":"tool_removal","tool":{"type":"tool_reference","name":"none"}})"),
            (Names{"h", "f"}));
  EXPECT_EQ(names_after(R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"i",
                "content":[{"type":"tool_reference","tool_name":"later"}]}]})"),
            (Names{"f", "later"}));
}

TEST(MessagesRequest, ReadsThinkingAndEffort) {
  const auto kwargs = [](const std::string& fields) {
    return read(fmt::format("{},{}", fields, kHi)).chat["chat_template_kwargs"].dump();
  };
  EXPECT_EQ(kwargs(R"("thinking":{"type":"disabled"})"), R"({"enable_thinking":false})");
  EXPECT_EQ(kwargs(R"("thinking":{"type":"adaptive","display":"omitted"})"), "{}");
  EXPECT_EQ(kwargs(R"("thinking":null,"output_config":{"effort":"max"})"),
            R"({"reasoning_effort":"max"})");
  EXPECT_EQ(kwargs(R"("thinking":{"type":"disabled"},"output_config":{"effort":"low"},
                      "chat_template_kwargs":{"x":1,"enable_thinking":true})"),
            R"({"reasoning_effort":"low","enable_thinking":true,"x":1})");
}

TEST(MessagesRequest, GivesABudgetWhereTheModelHasThoughts) {
  LetterModel model;
  const auto budget = [&](int64_t tokens, int64_t max_tokens) {
    return read_messages(
               fmt::format(R"({{"model":"letters","max_tokens":{},"thinking":{{"type":"enabled",)"
                           R"("budget_tokens":{}}},{}}})",
                           max_tokens, tokens, kHi),
               model.served, false)
        .chat.value("thinking_token_budget", Json());
  };
  EXPECT_EQ(budget(1024, 1025), Json());
  model.served.preparer.thinking_end = "b";
  model.served.preparer.info.max_model_len = 2000;
  EXPECT_EQ(budget(1024, 1025), 1024);
  EXPECT_EQ(budget(31'999, 32'000), 2000);  // the context has no more
  for (const auto& [tokens, max_tokens, what] :
       {std::tuple{int64_t{1023}, int64_t{2000},
                   "thinking.budget_tokens must be an integer of at least 1024, got 1023."},
        {int64_t{2000}, int64_t{2000},
         "thinking.budget_tokens must be less than max_tokens, got 2000 and 2000."}}) {
    const ApiError error =
        api_error_of([&, t = tokens, m = max_tokens] { static_cast<void>(budget(t, m)); });
    EXPECT_EQ(error.status(), 400);
    EXPECT_STREQ(error.what(), what);
  }
}

TEST(MessagesRequest, LeavesABudgetOutThatIsPartOfWhatTheOutputMustFollow) {
  LetterModel model;
  model.served.preparer.thinking_end = "b";
  model.served.preparer.info.max_model_len = 2000;
  const auto has_budget = [&](const std::string& fields) {
    return read_messages(fmt::format(R"({{"model":"letters","max_tokens":1500,"thinking":{{)"
                                     R"("type":"enabled","budget_tokens":1024}},{}{}}})",
                                     fields, kHi),
                         model.served, false)
        .chat.contains("thinking_token_budget");
  };
  const std::string tools = R"("tools":[{"name":"f","input_schema":{"type":"object"}}],)";
  const std::string strict =
      R"("tools":[{"name":"f","strict":true,"input_schema":{"type":"object"}}],)";
  const std::string any = tools + R"("tool_choice":{"type":"any"},)";
  const std::string format =
      R"("output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}},)";
  for (const std::string& bound : {strict, any, format}) EXPECT_TRUE(has_budget(bound));
  model.served.format = {"openai_gptoss", "openai"};
  for (const std::string& bound : {strict, any, format}) EXPECT_FALSE(has_budget(bound)) << bound;
  EXPECT_TRUE(has_budget(tools));
}

TEST(MessagesRequest, TranslatesWhatTheOutputMustFollow) {
  const char* format = R"({"type":"json_schema","schema":{"z":1,"a":2}})";
  const char* expected = R"({"type":"json_schema","json_schema":{"schema":{"z":1,"a":2}}})";
  for (const char* field :
       {R"("output_config":{{"effort":"low","format":{}}},{})", R"("output_format":{},{})"}) {
    const std::string fields = fmt::format(fmt::runtime(field), format, kHi);
    const MessagesRequest request = read(fields);
    EXPECT_EQ(request.chat["response_format"].dump(), expected);
    EXPECT_STREQ(request.options.constraint, "output_config.format");
    EXPECT_FALSE(read(fields, true).chat.contains("response_format"));  // which no prompt shows
  }
  EXPECT_FALSE(read(fmt::format(R"("output_config":{{"format":null}},{})", kHi))
                   .chat.contains("response_format"));
}

TEST(MessagesRequest, RefusesWhatWouldBindAnAnswerInOtherApis) {
  for (const char* field :
       {R"("response_format":{"type":"json_object"})", R"("structured_outputs":{"choice":[]})",
        R"("guided_regex":"a")", R"("text":{"format":{"type":"json_object"}})"}) {
    const std::string name = std::string(field).substr(1, std::string(field).find(':') - 2);
    const std::string fields = fmt::format("{},{}", field, kHi);
    const ApiError error = refusal(fields);
    EXPECT_EQ(error.status(), 400);
    EXPECT_EQ(error.what(), name + " is not known; use output_config.format.");
    EXPECT_NO_THROW(read(fields, true));  // which no prompt shows
  }
  EXPECT_NO_THROW(read(fmt::format(R"("response_format":{{"type":"text"}},"regex":"",{})", kHi)));
}

TEST(MessagesRequest, MapsEffortsThatGptOssDoesNotKnow) {
  LetterModel model;
  model.served.format.reasoning_parser = "openai_gptoss";
  const auto effort = [&](const char* asked) {
    return read_messages(fmt::format(R"({{"model":"letters","max_tokens":1,{},)"
                                     R"("output_config":{{"effort":"{}"}}}})",
                                     kHi, asked),
                         model.served, false)
        .chat["chat_template_kwargs"]["reasoning_effort"]
        .get<std::string>();
  };
  EXPECT_EQ(effort("low"), "low");
  EXPECT_EQ(effort("high"), "high");
  EXPECT_EQ(effort("xhigh"), "high");
  EXPECT_EQ(effort("max"), "high");
}

TEST(MessagesRequest, HandsSamplingOn) {
  const MessagesRequest request =
      read(fmt::format(R"("temperature":0.5,"top_p":0.9,"top_k":5,"stop_sequences":["x","y"],)"
                       R"("stream":true,"cache_salt":"s",{})",
                       kHi));
  EXPECT_EQ(request.chat["temperature"], 0.5);
  EXPECT_EQ(request.chat["top_p"], 0.9);
  EXPECT_EQ(request.chat["top_k"], 5);
  EXPECT_EQ(request.chat["cache_salt"], "s");
  EXPECT_EQ(request.chat["stop"].dump(), R"(["x","y"])");
  EXPECT_TRUE(request.stream);
  EXPECT_EQ(request.options.max_tokens, 9);
  EXPECT_FALSE(request.chat.contains("max_tokens"));
}

TEST(MessagesRequest, IgnoresWhatChangesNoAnswer) {
  const MessagesRequest request = read(fmt::format(
      R"("metadata":{{"user_id":"u"}},"service_tier":"auto","context_management":{{"edits":[]}},)"
      R"("safeguards":{{"x":[1]}},"container":null,"mcp_servers":[],"speed":"fast","betas":["b"],)"
      R"("frobnicate":{{"deep":[{{}}]}},{})",
      kHi));
  EXPECT_EQ(request.ignored_fields, std::vector<std::string>{"frobnicate"});
  EXPECT_EQ(request.chat["messages"].dump(), R"([{"role":"user","content":"a"}])");
}

TEST(MessagesRequest, RefusesThreadsSoThatPackagesGoOnWithoutThem) {
  const ApiError error = refusal(fmt::format(R"("thread":{{"type":"create"}},{})", kHi));
  EXPECT_EQ(error.status(), 400);
  EXPECT_EQ(error.code(), "thread_unsupported_request");
  EXPECT_EQ(error.param(), "thread");
  EXPECT_EQ(read(fmt::format(R"("thread":null,{})", kHi)).chat["messages"].size(), 1u);
}

TEST(MessagesRequest, RefusesByName) {
  const std::string call = R"({"role":"assistant","content":[)"
                           R"({"type":"tool_use","id":"i","name":"f","input":{}}]},)";
  const std::string result = R"({"type":"tool_result","tool_use_id":"i","content":"a"})";
  const auto asks = [](const std::string& more) { return fmt::format("{},{}", more, kHi); };
  const auto block = [](const std::string& one) {
    return R"("messages":[{"role":"user","content":[)" + one + "]}]";
  };
  const std::pair<std::string, std::string> cases[] = {
      {R"("messages":null)", "messages must be given."},
      {R"("messages":[])", "messages must not be empty."},
      {R"("messages":3)", "messages must be a list, got 3."},
      {R"("messages":[3])", "messages[0] must be an object, got 3."},
      {R"("messages":[{"content":"a"}])", "messages[0].role must be given."},
      {R"("messages":[{"role":"tool","content":"a"}])",
       "messages[0].role must be one of [\"user\",\"assistant\",\"system\"], got \"tool\"."},
      {R"("messages":[{"role":"user","content":3}])",
       "messages[0].content must be a text or a list of blocks, got 3."},
      {block("3"), "messages[0].content[0] must be an object, got 3."},
      {block("{}"), "messages[0].content[0].type must be given."},
      {block(R"({"type":"text"})"), "messages[0].content[0].text must be given."},
      {block(R"({"type":"video"})"),
       "messages[0].content[0] is a block of the type \"video\", which is not known here."},
      {block(R"({"type":"image","source":{}})"),
       "messages[0].content[0].image: this model reads text alone; leave the image out."},
      {block(R"({"type":"document","source":{}})"),
       "messages[0].content[0].document: this model reads text alone; leave the document out."},
      {block(R"({"type":"tool_use","id":"i","name":"f","input":{}})"),
       "messages[0].content[0] is a block of the type \"tool_use\", which belongs into messages of "
       "the role assistant."},
      {block(R"({"type":"tool_addition","tool":{}})"),
       "messages[0].content[0] is a block of the type \"tool_addition\", which belongs into "
       "messages of the role system."},
      {block(result),
       "messages[0].content[0].tool_use_id is \"i\", and no tool_use block before has this id."},
      {R"("messages":[)" + call + R"({"role":"user","content":[)" + result + "," + result + "]}]",
       "messages[1].content[1] is a second result of the call \"i\"; a call has one."},
      {R"("messages":[)" + call + call + R"({"role":"user","content":"a"}])",
       "messages[1].content[0].id is \"i\", which another call before has too."},
      {R"("messages":[)" + call +
           R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"i","content":[)"
           R"({"type":"image","source":{}}]}]}])",
       "messages[1].content[0].tool_result.content[0].image: this model reads text alone; leave "
       "the image out."},
      {R"("messages":[{"role":"assistant","content":[{"type":"tool_use","id":"i","input":{}}]}])",
       "messages[0].content[0].name must be given."},
      {R"("messages":[{"role":"assistant","content":[{"type":"tool_use","id":"i","name":"f",)"
       R"("input":"{}"}]}])",
       "messages[0].content[0].input must be an object, got \"{}\"."},
      {asks(R"("system":3)"), "system must be a text or a list of blocks, got 3."},
      {asks(R"("system":[{"type":"image"}])"),
       "system[0].image: this model reads text alone; leave the image out."},
      {asks(R"("system":[{"type":"tool_use","id":"i","name":"f","input":{}}])"),
       "system[0] is a block of the type \"tool_use\", which belongs into messages of the role "
       "assistant."},
      {asks(R"("tools":[{"type":"web_search_20250305","name":"web_search"}])"),
       "tools[0] is of the type \"web_search_20250305\", a tool of Anthropic's servers, which are "
       "not here; leave it out."},
      {asks(R"("tools":[{"input_schema":{}}])"), "tools[0].name must be given."},
      {asks(R"("tools":[{"name":"","input_schema":{}}])"), "tools[0].name must be given."},
      {asks(R"("tools":[{"name":"f"}])"), "tools[0].input_schema must be given."},
      {asks(R"("tools":[{"name":"f","input_schema":[]}])"),
       "tools[0].input_schema must be an object, got an array."},
      {asks(R"("tools":[{"name":"f","input_schema":{"type":"string"}}])"),
       "tools[0].input_schema.type must be \"object\", got \"string\"."},
      {asks(R"("tools":[{"name":"f","input_schema":{}},{"name":"g","input_schema":{}},)"
            R"({"name":"f","input_schema":{"type":"object"}}])"),
       "tools[2].name is \"f\", which another tool before has too."},
      {R"("messages":[{"role":"system","content":[{"type":"tool_removal","tool":)"
       R"({"type":"tool_definition","definition":{}}}]}])",
       "messages[0].content[0].tool.definition.name must be given."},
      {asks(R"("tool_choice":{"type":"any"})"),
       "tool_choice of the type \"any\" needs tools, and there are none."},
      {asks(R"("tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"tool","name":"g"})"),
       "tool_choice.name is \"g\", which is none of the tools."},
      {asks(R"("tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"tool"})"),
       "tool_choice.name must be given."},
      {asks(R"("tool_choice":"auto")"), "tool_choice must be an object, got \"auto\"."},
      {asks(R"("output_config":{"format":{"type":"text","schema":{}}})"),
       "output_config.format.type must be one of [\"json_schema\"], got \"text\"."},
      {asks(R"("output_config":{"format":{"type":"json_schema","schema":"{}"}})"),
       "output_config.format.schema must be an object, got \"{}\"."},
      {asks(R"("output_format":{"type":"json_schema"})"), "output_format.schema must be given."},
      {asks(R"("output_config":{"format":{"type":"json_schema","schema":{}}},)"
            R"("output_format":{"type":"json_schema","schema":{}})"),
       "output_format is the older name of output_config.format; leave it out."},
      {asks(R"("output_config":{"effort":"huge"})"),
       "output_config.effort must be one of [\"low\",\"medium\",\"high\",\"xhigh\",\"max\",null], "
       "got "
       "\"huge\"."},
      {asks(R"("mcp_servers":[{}])"),
       "mcp_servers are not supported: this server asks no other ones; leave them out."},
      {asks(R"("thinking":{"type":"sometimes"})"),
       "thinking.type must be one of [\"enabled\",\"disabled\",\"adaptive\"], got "
       "\"sometimes\"."},
      {asks(R"("thinking":{"type":"enabled"})"), "thinking.budget_tokens must be given."},
      {asks(R"("stop_sequences":["a","b","c","d","e"])"),
       "stop_sequences must not have more than 4 entries, got 5."},
      {asks(R"("stop_sequences":[""])"), "stop_sequences must not hold an empty text."},
      {asks(R"("temperature":"hot")"), "temperature must be a number, got \"hot\"."},
      {asks(R"("stream":1)"), "stream must be true or false, got 1."},
  };
  for (const auto& [fields, what] : cases) {
    const ApiError error = refusal(fields);
    EXPECT_EQ(error.status(), 400) << fields;
    EXPECT_EQ(std::string(error.what()), what) << fields;
  }
}

TEST(MessagesRequest, WantsAModelMessagesAndMaxTokens) {
  const LetterModel model;
  const auto what = [&](const std::string& body, bool counts = false) {
    const ApiError error = api_error_of([&] { read_messages(body, model.served, counts); });
    return fmt::format("{} {}", error.status(), error.what());
  };
  EXPECT_EQ(what("[]"), "400 The body must be a JSON object, got an array.");
  EXPECT_TRUE(what("{").starts_with("400 The body")) << what("{");
  EXPECT_EQ(what(fmt::format(R"({{"max_tokens":1,{}}})", kHi)), "400 model must be given.");
  EXPECT_EQ(what(fmt::format(R"({{"model":"letters",{}}})", kHi)), "400 max_tokens must be given.");
  EXPECT_EQ(what(fmt::format(R"({{"model":"letters","max_tokens":0,{}}})", kHi)),
            "400 max_tokens must be at least 1, got 0.");
  for (const bool counts : {false, true}) {
    EXPECT_EQ(what(fmt::format(R"({{"model":"gpt","max_tokens":1,{}}})", kHi), counts),
              "404 The model `gpt` does not exist. Valid aliases: letters, alias.");
  }
  const std::string counted = fmt::format(R"({{"model":"alias",{}}})", kHi);
  EXPECT_EQ(read_messages(counted, model.served, true).chat["messages"].size(), 1u);
}

TEST(MessagesRequest, CountsPiecesOfAChat) {
  const std::string result = R"("messages":[{"role":"user","content":[)"
                             R"({"type":"tool_result","tool_use_id":"i","content":"a"}]}])";
  EXPECT_EQ(refusal(result).status(), 400);
  EXPECT_EQ(read(result, true).chat["messages"].size(), 1u);
}

TEST(MessagesRequest, CountsWhateverTheSamplingIs) {
  const std::string asked =
      fmt::format(R"({},"temperature":"hot","top_p":7,"top_k":-9,"cache_salt":"","stream":3,)"
                  R"("stop_sequences":["a","b","c","d",""],"thinking":{{"type":"enabled"}})",
                  kHi);
  EXPECT_EQ(refusal(asked).status(), 400);
  const MessagesRequest request = read(asked, true);
  EXPECT_FALSE(request.stream);
  EXPECT_EQ(request.chat.dump(), R"({"model":"letters","messages":[{"role":"user","content":"a"}],)"
                                 R"("chat_template_kwargs":{"enable_thinking":true}})");
  EXPECT_STREQ(refusal(R"("messages":[{"role":"tool","content":"a"}])", true).what(),
               "messages[0].role must be one of [\"user\",\"assistant\",\"system\"], got "
               "\"tool\".");
}

std::string repeated(const std::string& item, int count) {
  std::string list = item;
  for (int i = 1; i < count; ++i) list += "," + item;
  return "[" + list + "]";
}

TEST(MessagesRequest, TakesMoreMessagesThanTheContextHasTokensButNotAnyNumber) {
  const auto asks = [](int count) {
    return R"("messages":)" + repeated(R"({"role":"user","content":"a"})", count);
  };
  for (const bool counts : {false, true}) {
    EXPECT_EQ(read(asks(101), counts).chat["messages"].size(), 101u);
    EXPECT_EQ(read(asks(100'000), counts).chat["messages"].size(), 100'000u);
    EXPECT_STREQ(refusal(asks(100'001), counts).what(),
                 "messages must not have more than 100000 entries, got 100001.");
  }
}

TEST(MessagesRequest, TakesThousandsOfToolsInLinearTime) {
  const auto asks = [](int count) {
    std::string tools;
    for (int i = 0; i < count; ++i) {
      tools += fmt::format(R"({}{{"name":"f{}","input_schema":{{}}}})", i == 0 ? "" : ",", i);
    }
    return fmt::format(R"("tools":[{}],{})", tools, kHi);
  };
  EXPECT_EQ(read(asks(4096)).chat["tools"].size(), 4096u);
  EXPECT_STREQ(refusal(asks(4097)).what(), "tools must not have more than 4096 entries, got 4097.");
  // Of each of many tools, changes of the last one are found at once.
  const std::string change =
      R"({"type":"tool_addition","tool":{"type":"tool_reference","name":"f4095"}})";
  const std::string messages =
      R"("messages":[{"role":"user","content":"a"},{"role":"system","content":)" +
      repeated(change, 100'000) + "}]";
  const std::string many = asks(4096);
  const MessagesRequest request =
      read(many.substr(0, many.size() - std::string(kHi).size()) + messages);
  EXPECT_EQ(request.chat["tools"].size(), 4096u);
}

}  // namespace
}  // namespace nanovllm::server
