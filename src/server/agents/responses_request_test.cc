#include "server/agents/responses_request.h"

#include "server/agents/custom_input.h"
#include "server/agents/responses_input.h"
#include "server/openai/protocol_testing.h"

namespace nanovllm::server {
namespace {

const LetterModel& request_letters() {
  static const LetterModel model;
  return model;
}

// Members of a body.
ResponsesRequest translated(const std::string& members) {
  return translate_responses(
      RequestFields("{" + members + "}", kResponsesRequest, request_letters().served));
}

// What a chat's body is made to say.
Json chat_of(const std::string& members) { return translated(members).chat; }
Json messages_of_input(const std::string& input) {
  return chat_of(R"("input":)" + input)["messages"];
}

// Whatever the order of its keys.
nlohmann::json sorted(const Json& json) { return nlohmann::json::parse(json.dump()); }

// The status, the field and the words of a refusal.
std::string refusal_of(const std::string& members) {
  const ApiError error = api_error_of([&] { translated(members); });
  return fmt::format("{} {}{}: {}", error.status(), error.param(),
                     error.code().empty() ? "" : " " + error.code(), error.what());
}
std::string refusal_of_items(const std::string& items) {
  return refusal_of(R"("input":[)" + items + "]");
}
std::string refusal_of_tools(const std::string& tools) {
  return refusal_of(R"("input":"x","tools":[)" + tools + "]");
}

constexpr const char* kOneCallItem =
    R"({"type":"function_call","call_id":"call_1","name":"f","arguments":"{\"x\": 1}"})";
constexpr const char* kItsOutput =
    R"({"type":"function_call_output","call_id":"call_1","output":"y"})";

TEST(ResponsesRequest, TakesATextOrItems) {
  const Json asked = Json::parse(R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(messages_of_input(R"("hi")"), asked);
  EXPECT_EQ(messages_of_input(R"([{"role":"user","content":"hi"}])"), asked);
  EXPECT_EQ(messages_of_input(R"([{"type":"message","role":"user","id":"msg_1","status":"completed",
      "content":[{"type":"input_text","text":"h"},{"type":"text","text":"i"}]}])"),
            asked);
  EXPECT_EQ(messages_of_input(R"("")"), Json::parse(R"([{"role":"user","content":""}])"));
  EXPECT_EQ(refusal_of(R"("model":"letters")"), "400 input: input must be given.");
  EXPECT_EQ(refusal_of(R"("input":null)"), "400 input: input must be given.");
  EXPECT_EQ(refusal_of(R"("input":3)"),
            "400 input: input must be a text or a list of items, got 3.");
  EXPECT_EQ(refusal_of(R"("input":[])"), "400 input: input has no message; send one at least.");
  EXPECT_EQ(refusal_of(R"("input":[],"instructions":"a")"),
            "400 input: input has no message; send one at least.");
}

TEST(ResponsesRequest, LetsEveryInstructionReachThePrompt) {
  // The template's helper joins those at the head, and puts later ones where the template takes
  // them.
  EXPECT_EQ(chat_of(R"("instructions":"a","input":[
      {"type":"message","role":"developer","content":[{"type":"input_text","text":"b"}]},
      {"role":"system","content":"c"},{"role":"user","content":"d"},
      {"role":"developer","content":"e"}])")["messages"],
            Json::parse(R"([{"role":"system","content":"a"},{"role":"system","content":"b"},
      {"role":"system","content":"c"},{"role":"user","content":"d"},
      {"role":"system","content":"e"}])"));
}

TEST(ResponsesRequest, MakesOneMessageOfATurn) {
  const std::string turn = fmt::format(
      R"([{{"role":"user","content":"q"}},
      {{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":null,
        "content":[{{"type":"reasoning_text","text":"t"}}]}},
      {{"type":"message","role":"assistant","content":[
        {{"type":"output_text","text":"a","annotations":[],"logprobs":[]}}]}},
      {},{{"type":"custom_tool_call","call_id":"call_2","name":"g","input":"a\n\"b\""}},
      {{"type":"function_call","call_id":"call_3","name":"h","namespace":"n","arguments":""}},
      {},{{"type":"custom_tool_call_output","call_id":"call_2",
        "output":[{{"type":"input_text","text":"z"}}]}},
      {{"type":"message","role":"assistant","content":[{{"type":"refusal","refusal":"no"}}]}}])",
      kOneCallItem, kItsOutput);
  EXPECT_EQ(messages_of_input(turn), Json::parse(R"([{"role":"user","content":"q"},
      {"role":"assistant","content":"a","reasoning_content":"t","tool_calls":[
        {"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}},
        {"id":"call_2","type":"function",
         "function":{"name":"g","arguments":"{\"input\":\"a\\n\\\"b\\\"\"}"}},
        {"id":"call_3","type":"function","function":{"name":"n__h","arguments":""}}]},
      {"role":"tool","tool_call_id":"call_1","content":"y"},
      {"role":"tool","tool_call_id":"call_2","content":"z"},
      {"role":"assistant","content":"no"}])"));
}

TEST(ResponsesRequest, BeginsATurnAnewWhereNoCallWaits) {
  EXPECT_EQ(messages_of_input(R"([{"role":"assistant","content":"a"},
      {"role":"assistant","content":"b"},{"type":"reasoning","content":[{"text":"t"}]},
      {"role":"assistant","content":"c"}])"),
            Json::parse(R"([{"role":"assistant","content":"a"},{"role":"assistant","content":"b"},
      {"role":"assistant","content":"c","reasoning_content":"t"}])"));
  // The words behind a call are of its turn, as this server tells them.
  EXPECT_EQ(
      messages_of_input(fmt::format(
          R"([{{"role":"assistant","content":"a"}},{},{{"role":"assistant","content":"b"}},{}])",
          kOneCallItem, kItsOutput)),
      Json::parse(R"([{"role":"assistant","content":"ab","tool_calls":[
      {"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}]},
      {"role":"tool","tool_call_id":"call_1","content":"y"}])"));
}

TEST(ResponsesRequest, ReadsThoughtsWhereverTheyStand) {
  const auto thought = [](const std::string& members) {
    return messages_of_input(R"([{"type":"reasoning",)" + members +
                             R"(},{"role":"assistant","content":"a"}])")[0]
        .value("reasoning_content", "none");
  };
  EXPECT_EQ(thought(R"("content":[{"type":"reasoning_text","text":"t"}],"summary":[{"text":"s"}])"),
            "t");
  EXPECT_EQ(thought(R"("summary":[{"type":"summary_text","text":"s"},{"text":"u"}])"), "s\nu");
  EXPECT_EQ(thought(R"("content":null,"summary":[],"encrypted_content":"xyz")"), "none");
  EXPECT_EQ(thought(R"("content":[{"type":"reasoning_text","text":" \n"}])"), "none");
}

TEST(ResponsesRequest, PassesOverWhatOthersDid) {
  for (const char* type :
       {"web_search_call", "file_search_call", "image_generation_call", "local_shell_call",
        "tool_search_call", "tool_search_output", "compaction"}) {
    const auto request = translated(
        fmt::format(R"("input":[{{"role":"user","content":"a"}},{{"type":"{}","id":"x"}}])", type));
    EXPECT_EQ(request.chat["messages"].size(), 1u) << type;
    EXPECT_EQ(request.left_out, std::vector<std::string>{fmt::format("input[1] ({})", type)});
  }
}

TEST(ResponsesRequest, TellsTheModelOfImagesThatItsToolsReturned) {
  const ResponsesRequest request = translated(fmt::format(
      R"("input":[{},{{"type":"function_call_output","call_id":"call_1","output":[
      {{"type":"input_text","text":"a "}},{{"type":"input_image","image_url":"data:image/png,"}},
      {{"type":"input_file","file_data":"x"}}]}}])",
      kOneCallItem));
  EXPECT_EQ(request.chat["messages"][1]["content"],
            "a (image left out: this model reads text alone)"
            "(file left out: this model reads text alone)");
  EXPECT_EQ(request.left_out, (std::vector<std::string>{"input[1].output[1] (input_image)",
                                                        "input[1].output[2] (input_file)"}));
}

TEST(ResponsesRequest, JoinsAnyNumberOfPartsOfATurn) {
  constexpr size_t kNumParts = 20'000;
  const std::string words(50, 'a');
  std::vector<std::string> left_out;
  ResponsesDialogue dialogue(left_out);
  const Json thought =
      Json::parse(fmt::format(R"({{"type":"reasoning","content":[{{"text":"{}"}}]}})", words));
  const Json call = Json::parse(kOneCallItem);
  const Json text = {{"role", "assistant"}, {"content", words}};
  for (size_t i = 0; i < kNumParts; ++i) dialogue.add(JsonPart(thought, "thought"));
  dialogue.add(JsonPart(call, "call"));
  for (size_t i = 0; i < kNumParts; ++i) dialogue.add(JsonPart(text, "text"));
  const Json messages = dialogue.take();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0]["reasoning_content"].get<std::string>().size(), kNumParts * 51 - 1);
  EXPECT_EQ(messages[0]["content"].get<std::string>().size(), kNumParts * 50);
}

TEST(ResponsesRequest, TakesAsManyItemsAsTheContextHasTokens) {
  std::string items = R"([{"role":"user","content":"a"})";
  for (int i = 1; i < 100; ++i) items += R"(,{"type":"reasoning"})";
  EXPECT_EQ(messages_of_input(items + "]").size(), 1u);
  const std::string refusal = refusal_of(R"("input":)" + items + R"(,{"type":"reasoning"}])");
  EXPECT_TRUE(refusal.starts_with("400 input context_length_exceeded: ")) << refusal;
  EXPECT_NE(refusal.find("has 101 messages"), std::string::npos) << refusal;
  // Elsewhere the name means nothing.
  RequestFields("{\"messages\":[{\"role\":\"user\"}],\"input\":" + items + ",1]}", "ChatRequest",
                request_letters().served);
}

TEST(ResponsesRequest, NamesSomeOfWhatItLeavesOut) {
  std::string items = R"({"role":"user","content":"a"})";
  std::string tools = R"({"type":"t"})";
  for (int i = 0; i < 30; ++i) {
    items += R"(,{"type":"compaction"})";
    tools += R"(,{"type":"t"})";
  }
  const auto num_left_out = [](const std::string& members) {
    return translated(members).left_out.size();
  };
  EXPECT_EQ(num_left_out(R"("input":[)" + items + "]"), 20u);
  EXPECT_EQ(num_left_out(R"("input":"a","tools":[)" + tools + "]"), 20u);
}

TEST(ResponsesRequest, RefusesItemsByName) {
  EXPECT_EQ(refusal_of_items("3"), "400 input[0]: input[0] must be an object, got 3.");
  EXPECT_EQ(refusal_of_items("{}"), "400 input[0]: input[0] has neither a type nor a role.");
  EXPECT_EQ(refusal_of_items(R"({"type":3})"),
            "400 input[0].type: input[0].type must be a text, got 3.");
  EXPECT_EQ(refusal_of_items(R"({"type":"dance"})"),
            "400 input[0]: input[0] is of the type \"dance\", which is not known.");
  EXPECT_EQ(refusal_of_items(R"({"role":"robot","content":"a"})"),
            "400 input[0].role: input[0].role must be one of user, assistant, system and "
            "developer, got \"robot\".");
  EXPECT_EQ(refusal_of_items(R"({"role":"user"})"),
            "400 input[0]: input[0].content must be given.");
  EXPECT_EQ(refusal_of_items(R"({"role":"user","content":3})"),
            "400 input[0].content: input[0].content must be a text or a list of parts, got 3.");
  EXPECT_EQ(
      refusal_of_items(R"({"role":"user","content":[{"type":"input_image"}]})"),
      "400 input[0].content: input[0].content[0] is of the type \"input_image\", which is not "
      "supported yet; send text parts only.");
  EXPECT_EQ(refusal_of_items(R"({"role":"user","content":[{"type":"input_text"}]})"),
            "400 input[0].content: input[0].content[0] has no text.");
  EXPECT_EQ(refusal_of_items(R"({"type":"item_reference","id":"msg_7"})"),
            "404 input[0]: Item with id 'msg_7' not found: this server stores no items. Send the "
            "item itself.");
  EXPECT_EQ(refusal_of_items(R"({"type":"reasoning","content":"t"})"),
            "400 input[0].content: input[0].content must be a list, got \"t\".");
}

TEST(ResponsesRequest, RefusesCallsThatDoNotFitTogether) {
  EXPECT_EQ(refusal_of_items(kItsOutput),
            "400 input[0]: input[0] is the output of the call \"call_1\", which is not among the "
            "items before it.");
  EXPECT_EQ(refusal_of_items(fmt::format("{},{},{}", kOneCallItem, kItsOutput, kItsOutput)),
            "400 input[2]: input[2] is a second output of the call \"call_1\"; send one of each "
            "call.");
  EXPECT_EQ(refusal_of_items(R"({"type":"function_call","name":"f","arguments":"{}"})"),
            "400 input[0]: input[0].call_id must be given.");
  EXPECT_EQ(refusal_of_items(R"({"type":"function_call","call_id":"c","arguments":"{}"})"),
            "400 input[0]: input[0].name must be given.");
  EXPECT_EQ(refusal_of_items(R"({"type":"function_call","call_id":"c","name":"f","arguments":{}})"),
            "400 input[0].arguments: input[0].arguments must be a text, got an object.");
  EXPECT_EQ(refusal_of_items(fmt::format(
                R"({},{{"type":"function_call_output","call_id":"call_1"}})", kOneCallItem)),
            "400 input[1]: input[1].output must be given.");
  // A client may count its calls anew in each turn; a call without its output may have been cut.
  EXPECT_EQ(
      messages_of_input(fmt::format("[{0},{1},{0},{1},{0}]", kOneCallItem, kItsOutput)).size(), 5u);
}

TEST(ResponsesRequest, MakesToolsFunctions) {
  const ResponsesRequest request = translated(R"("input":"x","tools":[
      {"type":"function","name":"f","description":"does","parameters":{"type":"object"},
       "strict":false},
      {"type":"function","name":"bare"},
      {"type":"web_search","external_web_access":false},
      {"type":"custom","name":"apply_patch","description":"Patches.",
       "format":{"type":"grammar","syntax":"lark","definition":"start: x"}},
      {"type":"custom","name":"say","format":{"type":"text"}},
      {"type":"namespace","name":"agents","description":"of agents","tools":[
        {"type":"function","name":"spawn","parameters":{"type":"object","properties":{}}},
        {"type":"file_search"}]}])");
  EXPECT_EQ(request.chat["tools"], Json::parse(R"([
      {"type":"function","function":{"name":"f","description":"does",
       "parameters":{"type":"object"}}},
      {"type":"function","function":{"name":"bare"}},
      {"type":"function","function":{"name":"apply_patch",
       "description":"Patches.\n\nThe input must match this grammar (lark):\nstart: x",
       "parameters":{"type":"object","properties":{"input":{"type":"string"}},
                     "required":["input"]}}},
      {"type":"function","function":{"name":"say","description":"",
       "parameters":{"type":"object","properties":{"input":{"type":"string"}},
                     "required":["input"]}}},
      {"type":"function","function":{"name":"agents__spawn",
       "parameters":{"type":"object","properties":{}}}}])"));
  EXPECT_EQ(request.tools.at("agents__spawn"), (ResponsesTool{false, "spawn", "agents"}));
  EXPECT_EQ(request.tools.at("apply_patch"), (ResponsesTool{true, "apply_patch", ""}));
  EXPECT_EQ(request.tools.at("f"), (ResponsesTool{false, "f", ""}));
  EXPECT_EQ(request.left_out,
            (std::vector<std::string>{"tools[2] (web_search)", "tools[5].tools[1] (file_search)"}));
  const ResponsesRequest additional = translated(R"("input":[{"type":"additional_tools",
      "role":"developer","tools":[{"type":"function","name":"f"}]},{"role":"user","content":"x"}])");
  EXPECT_EQ(additional.chat["tools"].dump(), R"([{"type":"function","function":{"name":"f"}}])");
  EXPECT_EQ(additional.chat["messages"].size(), 1u);
}

TEST(ResponsesRequest, TellsAgainTheToolsThatTheModelSees) {
  const std::string tools = R"("tools":[
      {"type":"function","name":"f","description":"d","parameters":{"type":"object"},"more":1},
      {"type":"web_search"},{"type":"custom","name":"c","format":{"type":"text"}},
      {"type":"namespace","name":"n","description":"of n","tools":[{"type":"function","name":"g"}]},
      {"type":"namespace","name":"none","tools":[{"type":"file_search"}]}])";
  EXPECT_EQ(translated(R"("input":"x",)" + tools).shown_tools.dump(),
            R"([{"type":"function","name":"f","description":"d","parameters":{"type":"object"}},)"
            R"({"type":"custom","name":"c"},)"
            R"({"type":"namespace","name":"n","tools":[{"type":"function","name":"g"}]}])");
  EXPECT_TRUE(translated(R"("input":"x","tool_choice":"none",)" + tools).shown_tools.empty());
}

TEST(ResponsesRequest, BoundsWhatEachResponseTellsAgain) {
  const auto with_user = [](size_t size) {
    return R"("input":"x","user":")" + std::string(size, 'a') + "\"";
  };
  translated(with_user(1022));  // and its quotes
  EXPECT_EQ(refusal_of(with_user(1023)),
            "400 user: user may have 1024 bytes, as each response tells it again, got 1025; "
            "shorten it.");
  for (const char* member : {"text", "reasoning", "prompt_cache_options"}) {
    const std::string refusal = refusal_of(
        fmt::format(R"("input":"x","{}":{{"more":"{}"}})", member, std::string(1024, 'a')));
    EXPECT_TRUE(refusal.starts_with(fmt::format("400 {0}: {0} may have", member))) << refusal;
  }
  const auto with_metadata = [](int num_pairs, size_t key, size_t value) {
    std::string pairs;
    for (int i = 0; i < num_pairs; ++i) {
      std::string name(key, 'k');
      name.front() = static_cast<char>('a' + i);
      std::string text;
      for (size_t j = 0; j < value; ++j) text += "é";
      pairs += fmt::format(R"({}"{}":"{}")", i == 0 ? "" : ",", name, text);
    }
    return R"("input":"x","metadata":{)" + pairs + "}";
  };
  translated(with_metadata(16, 64, 512));
  EXPECT_EQ(refusal_of(with_metadata(17, 1, 1)),
            "400 metadata: metadata must not have more than 16 members.");
  const std::string bounds =
      "400 metadata: metadata may have texts of 512 characters under keys of 64; mend or leave "
      "out ";
  EXPECT_TRUE(refusal_of(with_metadata(1, 65, 1)).starts_with(bounds + "\"akk"));
  EXPECT_EQ(refusal_of(with_metadata(1, 1, 513)), bounds + "\"a\".");
  EXPECT_EQ(refusal_of(R"("input":"x","metadata":{"b":3})"), bounds + "\"b\".");
}

TEST(ResponsesRequest, PassesOverWhatOtherApisKnow) {
  const RequestFields fields(
      R"({"input":"x","suffix":"a","functions":[{"name":"f"}],"best_of":3,"guided_json":{},
      "response_format":{"type":"text"},"audio":{"voice":"v"},"use_beam_search":true})",
      kResponsesRequest, request_letters().served);
  EXPECT_EQ(translate_responses(fields).chat,
            Json::parse(R"({"messages":[{"role":"user","content":"x"}]})"));
  EXPECT_EQ(fields.unknown(), (std::vector<std::string>{"suffix", "functions", "response_format",
                                                        "audio", "use_beam_search"}));
}

TEST(ResponsesRequest, RefusesWhatWouldBindAnAnswerInOtherApis) {
  for (const char* name : {"response_format", "guided_json", "json_schema", "output_format"}) {
    EXPECT_EQ(
        refusal_of(fmt::format(R"("input":"x","{}":{{"type":"json_object"}})", name)),
        fmt::format("400 {0}: {0} is not known; use text.format, or structured_outputs.", name));
  }
}

TEST(ResponsesRequest, ShowsNoToolsThatMayNotBeCalled) {
  for (const char* members : {R"("tools":[],"tool_choice":"auto")", R"("tool_choice":"auto")",
                              R"("tools":null)", R"("tools":[{"type":"web_search"}])",
                              R"("tools":[{"type":"function","name":"f"}],"tool_choice":"none")"}) {
    const Json chat = chat_of(std::string(R"("input":"x",)") + members);
    EXPECT_FALSE(chat.contains("tools")) << members;
    EXPECT_FALSE(chat.contains("tool_choice")) << members;
  }
}

TEST(ResponsesRequest, RefusesToolsByName) {
  EXPECT_EQ(refusal_of_tools("3"), "400 tools[0]: tools[0] must be an object, got 3.");
  EXPECT_EQ(refusal_of_tools("{}"), "400 tools[0].type: tools[0].type must be given.");
  EXPECT_EQ(refusal_of_tools(R"({"type":"function"})"),
            "400 tools[0]: tools[0].name must be given.");
  EXPECT_EQ(refusal_of_tools(R"({"type":"function","function":{"name":"f"}})"),
            "400 tools[0]: tools[0].name must be given.");
  EXPECT_EQ(refusal_of_tools(R"({"type":"custom","name":""})"),
            "400 tools[0]: tools[0].name must be given.");
  EXPECT_EQ(refusal_of_tools(R"({"type":"function","name":"f","parameters":[]})"),
            "400 tools[0].parameters: tools[0].parameters must be an object, got an array.");
  EXPECT_EQ(refusal_of_tools(R"({"type":"function","name":"f","parameters":{"type":"string"}})"),
            "400 tools[0].parameters.type: tools[0].parameters.type must be \"object\", got "
            "\"string\".");
  EXPECT_EQ(refusal_of_tools(R"({"type":"function","name":"f"},{"type":"custom","name":"f"})"),
            "400 tools[1]: tools[1] is a second tool that the model would know as \"f\"; rename "
            "one.");
  EXPECT_EQ(refusal_of_tools(R"({"type":"function","name":"a__b"},
      {"type":"namespace","name":"a","tools":[{"type":"function","name":"b"}]})"),
            "400 tools[1].tools[0]: tools[1].tools[0] is a second tool that the model would know "
            "as \"a__b\"; rename one.");
  EXPECT_EQ(refusal_of_tools(R"({"type":"namespace","tools":[]})"),
            "400 tools[0]: tools[0].name must be given.");
  EXPECT_EQ(refusal_of_tools(R"({"type":"namespace","name":"n","tools":[{"type":"function"}]})"),
            "400 tools[0].tools[0]: tools[0].tools[0].name must be given.");
  EXPECT_EQ(refusal_of_tools(R"({"type":"custom","name":"c","format":{"type":"grammar"}})"),
            "400 tools[0].format: tools[0].format.definition must be given.");
}

TEST(ResponsesRequest, HandsOnWhatChatHas) {
  const ResponsesRequest request = translated(
      R"("input":"x","model":"letters","stream":true,"temperature":0.5,"top_p":0.9,"top_k":5,
      "min_p":0.1,"seed":7,"stop":["a"],"presence_penalty":1,"frequency_penalty":0.5,
      "repetition_penalty":1.1,"logit_bias":{"1":2},"chat_template_kwargs":{"a":1},
      "cache_salt":"s","priority":0,"parallel_tool_calls":false,"max_output_tokens":9,
      "reasoning":{"effort":"low","summary":"auto"},"top_logprobs":2,
      "include":["reasoning.encrypted_content","message.output_text.logprobs"],
      "n":2,"max_tokens":3,"logprobs":true,"echo":true,"store":true,"metadata":{"a":"b"},
      "text":{"format":{"type":"text"},"verbosity":"low"},"truncation":"auto","unknown":1,
      "stream_options":{"include_obfuscation":false},"client_metadata":{},"response_format":null)");
  EXPECT_EQ(sorted(request.chat),
            nlohmann::json::parse(R"({"model":"letters","temperature":0.5,"top_p":0.9,
      "top_k":5,"min_p":0.1,"seed":7,"stop":["a"],"presence_penalty":1,"frequency_penalty":0.5,
      "repetition_penalty":1.1,"logit_bias":{"1":2},"chat_template_kwargs":{"a":1},
      "cache_salt":"s","priority":0,"reasoning_effort":"low",
      "messages":[{"role":"user","content":"x"}]})"));
  EXPECT_EQ(request.max_output_tokens, 9);
  EXPECT_EQ(request.num_top_logprobs, 2);
  const ResponsesRequest bare = translated(
      R"("input":"x","top_logprobs":2,"include":["anything"],"max_output_tokens":null,
      "reasoning":{"effort":null,"summary":"auto"},"text":null)");
  EXPECT_EQ(bare.chat, Json::parse(R"({"messages":[{"role":"user","content":"x"}]})"));
  EXPECT_FALSE(bare.max_output_tokens);
  EXPECT_FALSE(bare.num_top_logprobs);
}

TEST(ResponsesRequest, RefusesWhatWouldBeStored) {
  EXPECT_EQ(refusal_of(R"("input":"x","previous_response_id":"resp_9")"),
            "404 previous_response_id previous_response_not_found: Previous response with id "
            "'resp_9' not found: this server stores no responses. Send the whole conversation as "
            "input.");
  EXPECT_EQ(refusal_of(R"("input":"x","background":true)"),
            "400 background: background is not supported, as this server stores no responses; "
            "leave it out and wait for the answer, or stream it.");
  EXPECT_EQ(refusal_of(R"("input":"x","conversation":"conv_1")"),
            "400 conversation: conversation is not supported, as this server stores none; send the "
            "whole conversation as input.");
  EXPECT_EQ(refusal_of(R"("input":"x","prompt":{"id":"p"})"),
            "400 prompt: prompt is not supported, as this server stores no templates of prompts; "
            "send its text as instructions or input.");
  translated(
      R"("input":"x","previous_response_id":null,"background":false,"conversation":null,
      "prompt":null,"store":true)");
}

TEST(ResponsesRequest, TranslatesToolChoice) {
  const std::string tools = R"("input":"x","tools":[{"type":"function","name":"f","strict":true},
      {"type":"custom","name":"c"},{"type":"namespace","name":"n","tools":[
        {"type":"function","name":"g"},{"type":"function","name":"h"}]},
      {"type":"namespace","name":"m","tools":[{"type":"function","name":"h"}]}],"tool_choice":)";
  const auto choice = [&](const std::string& given) {
    return translated(tools + given).chat.value("tool_choice", Json());
  };
  const auto named = [](const std::string& name) -> Json {
    return {{"type", "function"}, {"function", {{"name", name}}}};
  };
  EXPECT_EQ(choice(R"("auto")"), Json());
  EXPECT_EQ(choice("null"), Json());
  EXPECT_EQ(choice(R"("required")"), "required");
  EXPECT_EQ(choice(R"({"type":"function","name":"f"})"), named("f"));
  EXPECT_EQ(choice(R"({"type":"custom","name":"c"})"), named("c"));
  EXPECT_EQ(choice(R"({"type":"function","name":"n__g"})"), named("n__g"));
  EXPECT_EQ(choice(R"({"type":"function","name":"g"})"), named("n__g"));
  EXPECT_EQ(choice(R"({"type":"allowed_tools","mode":"required","tools":[
                {"type":"function","name":"f"},{"type":"custom","name":"c"}]})"),
            Json({{"type", "allowed_tools"},
                  {"allowed_tools",
                   {{"mode", "required"}, {"tools", Json::array({named("f"), named("c")})}}}}));
  // What is left out of the tools is left out of these.
  EXPECT_EQ(choice(R"({"type":"allowed_tools","tools":[{"type":"web_search"},
                {"type":"function","name":"f"}]})")["allowed_tools"]["tools"],
            Json::array({named("f")}));
  EXPECT_EQ(translated(tools + R"("auto")").chat["tools"][0]["function"]["strict"], true);
  EXPECT_EQ(translated(tools + R"("auto","parallel_tool_calls":false)").chat["parallel_tool_calls"],
            false);
  for (const auto& [given, message] :
       {std::pair{R"({"type":"function","name":"x"})",
                  "tool_choice names \"x\", which is none of the tools."},
        {R"({"type":"function","name":"h"})",
         "tool_choice names \"h\", which more than one namespace has; use its whole name, m__h or "
         "n__h."}}) {
    EXPECT_EQ(refusal_of(tools + given), std::string("400 tool_choice: ") + message);
  }
  EXPECT_TRUE(refusal_of(tools + R"({"type":"web_search"})")
                  .starts_with("400 tool_choice: tool_choice must be \"none\", \"auto\", "));
  EXPECT_EQ(refusal_of(R"("input":"x","tool_choice":"required")"),
            "400 tool_choice: Tool choice 'required' must be specified with 'tools' parameter.");
}

TEST(ResponsesRequest, TranslatesWhatTheOutputMustFollow) {
  const auto format_of = [](const std::string& members) {
    const ResponsesRequest request = translated(R"("input":"x",)" + members);
    EXPECT_STREQ(request.constraint, "text.format");
    return request.chat["response_format"].dump();
  };
  EXPECT_EQ(format_of(R"("text":{"format":{"type":"json_object"}})"), R"({"type":"json_object"})");
  EXPECT_EQ(format_of(R"("text":{"verbosity":"low","format":{"type":"json_schema","name":"n",
                "strict":true,"description":null,"schema":{"z":1,"a":2}}})"),
            R"({"type":"json_schema","json_schema":{"schema":{"z":1,"a":2}}})");
  const ResponsesRequest own = translated(R"("input":"x","structured_outputs":{"regex":"a"})");
  EXPECT_STREQ(own.constraint, "structured_outputs");
  EXPECT_EQ(own.chat["structured_outputs"].dump(), R"({"regex":"a"})");
  for (const char* text : {"null", "{}", R"({"format":null})", R"({"format":{"type":"text"}})"}) {
    EXPECT_FALSE(
        translated(R"("input":"x","text":)" + std::string(text)).chat.contains("response_format"));
  }
  EXPECT_EQ(refusal_of(R"("input":"x","text":{"format":{"type":"json_schema"}})"),
            "400 text.format.schema: text.format.schema must be given.");
  EXPECT_EQ(refusal_of(R"("input":"x","text":{"format":{"type":"grammar"}})"),
            "400 text.format.type: text.format.type must be one of "
            "[\"text\",\"json_object\",\"json_schema\"], got \"grammar\".");
  EXPECT_EQ(refusal_of(R"("input":"x","text":{"format":{"type":"json_object"}},
                "structured_outputs":{"regex":"a"})"),
            "400 text.format: text.format and structured_outputs both say what the output must "
            "follow; leave one of them out.");
}

// What responses tell again is bounded, but for a schema, which has a bound of its own.
TEST(ResponsesRequest, TakesLongSchemas) {
  const std::string name(1024, 'n');
  translated(R"("input":"x","text":{"format":{"type":"json_schema","schema":{"title":")" + name +
             R"("}}})");
  EXPECT_TRUE(
      refusal_of(R"("input":"x","text":{"format":{"type":"json_schema","schema":{},"name":")" +
                 name + R"("}})")
          .starts_with("400 text: text may have 1024 bytes"));
}

TEST(ResponsesRequest, RefusesNumbersAndTypesByName) {
  EXPECT_EQ(refusal_of(R"("input":"x","max_output_tokens":0)"),
            "400 max_output_tokens: max_output_tokens must be at least 1, got 0.");
  EXPECT_EQ(translated(R"("input":"","max_output_tokens":1)").max_output_tokens, 1);
  EXPECT_EQ(refusal_of(R"("input":"x","top_logprobs":21)"),
            "400 top_logprobs: top_logprobs must be from 0 to 20, got 21.");
  EXPECT_EQ(refusal_of(R"("input":"x","top_logprobs":-1)"),
            "400 top_logprobs: top_logprobs must be from 0 to 20, got -1.");
  EXPECT_EQ(refusal_of(R"("input":"x","max_output_tokens":"9")"),
            "400 max_output_tokens: max_output_tokens must be an integer, got \"9\".");
  EXPECT_EQ(refusal_of(R"("input":"x","reasoning":{"effort":"huge"})"),
            "400 reasoning.effort: reasoning.effort must be one of [\"none\",\"minimal\",\"low\","
            "\"medium\",\"high\",\"xhigh\",\"max\",null], got \"huge\".");
  EXPECT_EQ(refusal_of(R"("input":"x","stream":"yes")"),
            "400 stream: stream must be true or false, got \"yes\".");
  EXPECT_EQ(refusal_of(R"("input":"x","tools":{})"),
            "400 tools: tools must be a list, got an object.");
}

// What Codex sends, in small.
TEST(ResponsesRequest, TakesWhatCodexSends) {
  const char* const kFirst = R"("model":"letters","input":[
      {"type":"message","role":"developer","content":[{"type":"input_text","text":"You are."}]},
      {"type":"message","role":"developer","content":[{"type":"input_text","text":"Rules."}]},
      {"type":"message","role":"user","content":[{"type":"input_text","text":"Files."}]},
      {"type":"message","role":"user","content":[{"type":"input_text","text":"Do it."}]}],
      "tool_choice":"auto","parallel_tool_calls":true,"reasoning":{"summary":"auto"},"store":false,
      "stream":true,"include":["reasoning.encrypted_content"],"prompt_cache_key":"k",
      "client_metadata":{"a":"b"},"text":{"verbosity":"low"},"tools":)";
  std::string tools;
  for (int i = 0; i < 7; ++i) {
    tools += fmt::format(R"({{"type":"function","name":"f{}","description":"d","strict":false,
        "parameters":{{"type":"object","properties":{{}},"additionalProperties":false}}}},)",
                         i);
  }
  tools += R"({"type":"namespace","name":"multi_agent","description":"d","tools":[
      {"type":"function","name":"spawn","strict":false,"parameters":{"type":"object"}}]},
      {"type":"custom","name":"apply_patch","description":"d",
       "format":{"type":"grammar","syntax":"lark","definition":"start: x"}},
      {"type":"web_search","external_web_access":false})";
  const ResponsesRequest request = translated(kFirst + ("[" + tools + "]"));
  EXPECT_EQ(request.chat["tools"].size(), 9u);
  EXPECT_EQ(request.tools.size(), 9u);
  EXPECT_EQ(request.chat["messages"].size(), 4u);
  EXPECT_EQ(request.left_out, std::vector<std::string>{"tools[9] (web_search)"});
  const ResponsesRequest compaction = translated(kFirst + std::string("[]"));
  EXPECT_FALSE(compaction.chat.contains("tools"));
  EXPECT_EQ(compaction.chat["messages"], request.chat["messages"]);
  EXPECT_TRUE(RequestFields("{" + (kFirst + std::string("[]")) + "}", kResponsesRequest,
                            request_letters().served)
                  .unknown()
                  .empty());
}

}  // namespace
}  // namespace nanovllm::server
