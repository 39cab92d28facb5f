#include "server/agents/responses_api.h"

#include <random>
#include <set>

#include "server/openai/protocol_testing.h"

namespace nanovllm::server {
namespace {

constexpr const char* kResponsesTools = R"("tools":[{"type":"function","name":"f","parameters":{}},
    {"type":"custom","name":"patch"},
    {"type":"namespace","name":"n","tools":[{"type":"function","name":"g"}]}])";

// "<a>" is a thought, "[f {}]" a call.
struct TalkingModel : LetterModel {
  TalkingModel() { served.format = {"qwen3", "hermes"}; }
};

std::unique_ptr<ApiCall> responses_call(const LetterModel& model, const std::string& members) {
  return parse_responses("{" + members + "}", model.served, "7");
}

ApiError responses_refusal(const LetterModel& model, const std::string& members) {
  return api_error_of([&] { responses_call(model, members); });
}

// A piece of text with a token for each of its bytes.
RequestDelta said_piece(const std::string& text) {
  return delta(0, text, std::vector<int32_t>(text.size(), 1));
}

RequestEnd response_end(FinishReason reason = FinishReason::kStop) {
  RequestEnd result = end(0, reason);
  result.num_cached_tokens = 2;
  result.last = true;
  return result;
}

// What openai-python's stream helper does, and checks of what it relies on.
class ResponsesClient {
 public:
  void read(std::string_view stream) {
    while (!stream.empty()) {
      const size_t size = stream.find("\n\n");
      ASSERT_NE(size, stream.npos);
      read_event(stream.substr(0, size));
      stream.remove_prefix(size + 2);
    }
  }

  Json types() const {
    Json list = Json::array();
    for (const Json& event : events) list.push_back(event["type"]);
    return list;
  }

  std::vector<Json> events = {};
  Json output = Json::array();  // added up from the deltas
  Json response = {};           // of the last event
  bool is_done = false;

 private:
  void read_event(std::string_view text) {
    ASSERT_FALSE(is_done);
    if (text == "data: [DONE]") {
      is_done = true;
      return;
    }
    ASSERT_TRUE(text.starts_with("event: "));
    const size_t line = text.find('\n');
    ASSERT_TRUE(text.substr(line + 1).starts_with("data: "));
    const Json event = Json::parse(text.substr(line + 7));
    EXPECT_EQ(event["type"], text.substr(7, line - 7));
    EXPECT_EQ(event["sequence_number"], events.size());
    events.push_back(event);
    take(event["type"].get<std::string>(), event);
  }

  void take(const std::string& type, const Json& event) {
    if (event.contains("response")) response = event["response"];
    if (!event.contains("output_index")) return;
    if (type == "response.output_item.added") {
      EXPECT_EQ(event["output_index"], output.size());
      EXPECT_EQ(event["item"]["status"], "in_progress");
      output.push_back(event["item"]);
      return;
    }
    ASSERT_EQ(event["output_index"], output.size() - 1) << event.dump();
    Json& item = output.back();
    if (event.contains("item_id")) {
      EXPECT_EQ(event["item_id"], item["id"]);
    }
    if (type == "response.content_part.added") {
      EXPECT_EQ(event["content_index"], 0);
      item["content"].push_back(event["part"]);
    } else if (type == "response.content_part.done") {
      EXPECT_EQ(event["part"], item["content"][0]);
    } else if (type == "response.output_item.done") {
      item["status"] = event["item"]["status"];
      EXPECT_EQ(event["item"], item);
    } else {
      take_text(type, event, item);
    }
  }

  static void take_text(const std::string& type, const Json& event, Json& item) {
    const bool is_part = item.contains("content");
    Json& holder = is_part ? item["content"][0] : item;
    const char* name = is_part ? "text" : holder.contains("input") ? "input" : "arguments";
    if (type.ends_with(".delta")) {
      EXPECT_FALSE(event["delta"].get_ref<const std::string&>().empty());
      holder[name] = holder[name].get<std::string>() + event["delta"].get<std::string>();
      for (const Json& one : event.value("logprobs", Json::array())) {
        holder["logprobs"].push_back(one);
      }
    } else {
      EXPECT_TRUE(type.ends_with(".done")) << type;
      EXPECT_EQ(event[name], holder[name]);
      if (event.contains("logprobs")) {
        EXPECT_EQ(event["logprobs"], holder["logprobs"]);
      }
      if (event.contains("name")) {
        EXPECT_EQ(event["name"], item["name"]);
      }
    }
  }
};

// Streams an answer in these pieces.
ResponsesClient streamed_response(const LetterModel& model, const std::string& members,
                                  const std::vector<std::string>& pieces,
                                  FinishReason reason = FinishReason::kStop) {
  const auto call = responses_call(model, members + R"(,"stream":true)");
  EXPECT_TRUE(call->stream);
  ResponsesClient client;
  for (const std::string& piece : pieces) {
    const EngineEvent event = said_piece(piece);
    client.read(call->on_events(0, {&event, 1}));
    EXPECT_FALSE(call->is_over());
  }
  const EngineEvent event = response_end(reason);
  client.read(call->on_events(0, {&event, 1}));
  EXPECT_TRUE(call->is_over());
  client.read(call->finish());
  EXPECT_TRUE(client.is_done);
  return client;
}

Json answered_whole(const LetterModel& model, const std::string& members, const std::string& text,
                    FinishReason reason = FinishReason::kStop) {
  const auto call = responses_call(model, members);
  const std::vector<EngineEvent> events = {said_piece(text), response_end(reason)};
  EXPECT_EQ(call->on_events(0, events), "");
  EXPECT_TRUE(call->is_over());
  return Json::parse(call->finish());
}

TEST(ResponsesApi, AnswersWithEveryMember) {
  const TalkingModel model;
  const std::string members = std::string(R"("input":"ab","instructions":"c","user":"u",
      "metadata":{"a":"b"},"temperature":0.5,"max_output_tokens":9,"reasoning":{"effort":"low"},
      "store":true,"truncation":"auto","prompt_cache_key":"k",)") +
                              kResponsesTools;
  const size_t num_prompt_tokens =
      responses_call(model, members)->requests.at(0).prompt_token_ids.size();
  const std::string words = "<hm>hello[f {\"x\":1}]";
  Json answer = answered_whole(model, members, words);
  EXPECT_GT(answer["created_at"].get<int64_t>(), 1'700'000'000);
  answer.erase("created_at");
  const std::string call_id = answer["output"][2]["call_id"];
  EXPECT_TRUE(call_id.starts_with("call_"));
  const Json tools = Json::parse("{" + std::string(kResponsesTools) + "}")["tools"];
  EXPECT_EQ(answer.dump(),
            fmt::format(R"({{"id":"resp_7","object":"response","status":"completed","error":null,)"
                        R"("incomplete_details":null,"output":[{{"id":"rs_7_0","type":"reasoning",)"
                        R"("status":"completed","summary":[],"encrypted_content":null,)"
                        R"("content":[{{"type":"reasoning_text","text":"hm"}}]}},{{"id":"msg_7_1",)"
                        R"("type":"message","status":"completed","role":"assistant",)"
                        R"("content":[{{"type":"output_text","text":"hello","annotations":[],)"
                        R"("logprobs":[]}}]}},{{"id":"fc_7_2","type":"function_call",)"
                        R"("status":"completed","call_id":"{}","name":"f",)"
                        R"("arguments":"{{\"x\":1}}"}}],"usage":{{"input_tokens":{},)"
                        R"("input_tokens_details":{{"cached_tokens":2,"cache_write_tokens":0}},)"
                        R"("output_tokens":{},"output_tokens_details":{{"reasoning_tokens":0}},)"
                        R"("total_tokens":{}}},"instructions":"c","model":"letters",)"
                        R"("parallel_tool_calls":true,"previous_response_id":null,)"
                        R"("reasoning":{{"effort":"low"}},"store":false,"temperature":0.5,)"
                        R"("text":{{"format":{{"type":"text"}}}},"tool_choice":"auto","tools":{},)"
                        R"("top_p":1.0,"truncation":"auto","max_output_tokens":9,)"
                        R"("max_tool_calls":null,"metadata":{{"a":"b"}},"user":"u",)"
                        R"("safety_identifier":null,"prompt_cache_key":"k","background":false,)"
                        R"("service_tier":"default","top_logprobs":0}})",
                        call_id, num_prompt_tokens, words.size(), num_prompt_tokens + words.size(),
                        tools.dump()));
}

TEST(ResponsesApi, StreamsEventsInTheirOrder) {
  const TalkingModel model;
  const ResponsesClient client =
      streamed_response(model, std::string(R"("input":"ab",)") + kResponsesTools,
                        {"<h", "m>", "hel", "lo", "[f {\"x\"", ":1}]", "[patch {\"input\":\"a\\n",
                         "b\"}]", "[n__g {}]"});
  EXPECT_EQ(client.types(), Json::parse(R"([
      "response.created","response.in_progress",
      "response.output_item.added","response.content_part.added",
      "response.reasoning_text.delta","response.reasoning_text.delta",
      "response.reasoning_text.done","response.content_part.done","response.output_item.done",
      "response.output_item.added","response.content_part.added",
      "response.output_text.delta","response.output_text.delta",
      "response.output_text.done","response.content_part.done","response.output_item.done",
      "response.output_item.added",
      "response.function_call_arguments.delta","response.function_call_arguments.delta",
      "response.function_call_arguments.done","response.output_item.done",
      "response.output_item.added",
      "response.custom_tool_call_input.delta","response.custom_tool_call_input.delta",
      "response.custom_tool_call_input.done","response.output_item.done",
      "response.output_item.added","response.function_call_arguments.delta",
      "response.function_call_arguments.done","response.output_item.done",
      "response.completed"])"));
  const Json& created = client.events[0]["response"];
  EXPECT_EQ(created["status"], "in_progress");
  EXPECT_EQ(created["output"], Json::array());
  EXPECT_TRUE(created["usage"].is_null());
  EXPECT_EQ(client.events[1]["response"], created);
  EXPECT_EQ(client.response["status"], "completed");
  EXPECT_EQ(client.response["id"], created["id"]);
  EXPECT_EQ(client.response["output"], client.output);
  EXPECT_EQ(client.output[2]["arguments"], R"({"x":1})");
  EXPECT_EQ(client.output[3]["type"], "custom_tool_call");
  EXPECT_EQ(client.output[3]["name"], "patch");
  EXPECT_EQ(client.output[3]["input"], "a\nb");
  EXPECT_EQ(client.output[4]["name"], "g");
  EXPECT_EQ(client.output[4]["namespace"], "n");
  std::set<std::string> ids;
  for (const Json& item : client.output) {
    ids.insert(item["id"].get<std::string>());
    if (item.contains("call_id")) ids.insert(item["call_id"].get<std::string>());
  }
  EXPECT_EQ(ids.size(), 8u);
}

TEST(ResponsesApi, OpensNoItemForBlanks) {
  const TalkingModel model;
  const std::string members = std::string(R"("input":"ab",)") + kResponsesTools;
  const auto types_of = [](const Json& output) {
    std::string types;
    for (const Json& item : output) types += item["type"].get<std::string>() + " ";
    return types;
  };
  for (const std::string text : {"<\n>\n\n[f {}]\n", "\n\n[f {}]", "< >[f {}]"}) {
    EXPECT_EQ(types_of(answered_whole(model, members, text)["output"]), "function_call ") << text;
    EXPECT_EQ(types_of(streamed_response(model, members, {text}).output), "function_call ") << text;
  }
  EXPECT_EQ(answered_whole(model, members, "")["output"], Json::array());
  EXPECT_EQ(streamed_response(model, members, {}).response["output"], Json::array());
}

TEST(ResponsesApi, SaysWhyAnAnswerIsCut) {
  const TalkingModel model;
  const std::string members = std::string(R"("input":"ab",)") + kResponsesTools;
  const Json whole = answered_whole(model, members, "<a>hel", FinishReason::kLength);
  EXPECT_EQ(whole["status"], "incomplete");
  EXPECT_EQ(whole["incomplete_details"].dump(), R"({"reason":"max_output_tokens"})");
  EXPECT_EQ(whole["output"][0]["status"], "completed");
  EXPECT_EQ(whole["output"][1]["status"], "incomplete");
  EXPECT_EQ(whole["usage"]["output_tokens"], 6);
  const ResponsesClient client =
      streamed_response(model, members, {"<a>", "[f {\"x", "y"}, FinishReason::kLength);
  EXPECT_EQ(client.events.back()["type"], "response.incomplete");
  EXPECT_EQ(client.response["incomplete_details"].dump(), R"({"reason":"max_output_tokens"})");
  EXPECT_EQ(client.response["output"], client.output);
  EXPECT_EQ(client.output[1]["status"], "incomplete");
  EXPECT_EQ(client.output[1]["arguments"], "{\"xy");
}

TEST(ResponsesApi, TellsOfAnErrorWithinAStream) {
  const TalkingModel model;
  for (const auto& [code, name] : {std::pair(ErrorCode::kUnavailable, "server_error"),
                                   std::pair(ErrorCode::kInvalidArgument, "invalid_prompt")}) {
    const auto call = responses_call(model, R"("input":"ab","stream":true)");
    ResponsesClient client;
    const EngineEvent piece = said_piece("hel");
    client.read(call->on_events(0, {&piece, 1}));
    const EngineEvent error = RequestError{.id = 0, .code = code, .message = "It fell."};
    client.read(call->on_events(0, {&error, 1}));
    EXPECT_TRUE(call->is_over());
    client.read(call->finish());
    EXPECT_TRUE(client.is_done);
    EXPECT_EQ(client.events.back()["type"], "response.failed");
    EXPECT_EQ(client.response["status"], "failed");
    EXPECT_EQ(client.response["error"], Json({{"code", name}, {"message", "It fell."}}));
    EXPECT_EQ(client.response["output"][0]["content"][0]["text"], "hel");
    EXPECT_EQ(client.response["output"][0]["status"], "incomplete");
  }
  // Where it comes first, behind comments alone, the stream has its begin still.
  const auto call = responses_call(model, R"("input":"ab","stream":true)");
  ResponsesClient client;
  const EngineEvent error = RequestError{.id = 0, .code = ErrorCode::kInternal, .message = "No."};
  client.read(call->on_events(0, {&error, 1}));
  EXPECT_EQ(client.types(), Json::parse(R"(["response.created","response.in_progress",
      "response.failed"])"));
  // An answer that is no stream has the status of the error.
  const auto whole = responses_call(model, R"("input":"ab")");
  whole->on_events(0, {&error, 1});
  EXPECT_EQ(api_error_of([&] { whole->finish(); }).status(), 500);
}

TEST(ResponsesApi, AddsUpToTheWholeAnswerHoweverItIsCut) {
  const TalkingModel model;
  const std::string members = std::string(R"("input":"ab",)") + kResponsesTools;
  const std::string parts[] = {"<thought>",
                               "<\n>",
                               "text é 😀",
                               "\n\n",
                               "[f {\"x\": \"y\"}]",
                               "[patch {\"input\":\"a\\n\\u00e9\\\"b\"}]",
                               "[patch bare]",
                               "[n__g {}]",
                               " ",
                               "[other {}]",
                               "\u2028"};
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (unsigned i = random() % 8; i > 0; --i) text += parts[random() % std::size(parts)];
    std::vector<std::string> pieces;
    for (size_t from = 0, to = 0; from < text.size(); from = to) {
      to = from + 1 + random() % 9;
      while (to < text.size() && (static_cast<unsigned char>(text[to]) & 0xC0) == 0x80) ++to;
      pieces.push_back(text.substr(from, to - from));
    }
    const FinishReason reason = random() % 2 == 0 ? FinishReason::kStop : FinishReason::kLength;
    const Json whole = answered_whole(model, members, text, reason);
    const ResponsesClient client = streamed_response(model, members, pieces, reason);
    EXPECT_EQ(client.output, whole["output"]) << text;
    EXPECT_EQ(client.response["output"], whole["output"]) << text;
    EXPECT_EQ(client.response["usage"], whole["usage"]);
    EXPECT_EQ(client.response["status"], whole["status"]);
  }
}

TEST(ResponsesApi, KeepsTheFirstCallAloneWhereOneIsWanted) {
  const TalkingModel model;
  const Json answer = answered_whole(
      model, std::string(R"("input":"ab","parallel_tool_calls":false,)") + kResponsesTools,
      "[f {}][f {}]");
  EXPECT_EQ(answer["output"].size(), 1u);
  EXPECT_EQ(answer["parallel_tool_calls"], false);
}

TEST(ResponsesApi, LetsCallsBeTextWhereNoneMayBe) {
  const TalkingModel model;
  const Json answer = answered_whole(
      model, std::string(R"("input":"ab","tool_choice":"none",)") + kResponsesTools, "[f {}]");
  EXPECT_EQ(answer["output"][0]["content"][0]["text"], "[f {}]");
  EXPECT_EQ(answer["tool_choice"], "none");
}

TEST(ResponsesApi, CutsMaxOutputTokensToTheContext) {
  const LetterModel model;
  const auto max_tokens = [&](const char* members) {
    return responses_call(model, std::string(R"("input":"ab")") + members)
        ->requests[0]
        .params.max_tokens;
  };
  EXPECT_EQ(max_tokens(R"(,"max_output_tokens":1)"), 1);
  const auto most = max_tokens("");
  EXPECT_EQ(max_tokens(R"(,"max_output_tokens":null)"), most);
  EXPECT_EQ(max_tokens(R"(,"max_output_tokens":32000)"), most);
  EXPECT_EQ(max_tokens(R"(,"max_output_tokens":9000000000000)"), most);
}

TEST(ResponsesApi, RefusesInTheWordsOfItsOwnFields) {
  const LetterModel model;
  const auto words = [&](const std::string& members) {
    const ApiError error = responses_refusal(model, members);
    return fmt::format("{} {} {}: {}", error.status(), error.param(), error.code(), error.what());
  };
  EXPECT_EQ(words(R"("input":"ab","model":"other")"),
            "404 model : The model `other` does not exist. Valid aliases: letters, alias.");
  EXPECT_EQ(words(R"("input":")" + std::string(200, 'a') + "\""),
            "400  context_length_exceeded: The prompt has 202 tokens, and this model's context has "
            "room for 100. Please reduce the length of the prompt.");
  EXPECT_EQ(words(fmt::format(R"("input":"ab",{})", kResponsesTools)),
            "400 tool_choice : \"auto\" tool choice requires a parser of the model's calls; start "
            "the server with --tool-call-parser, or let tool_choice be none.");
  EXPECT_TRUE(words(R"("input":"ab","temperature":-1)").starts_with("400 temperature : "));
  std::string messages;
  for (int i = 0; i < 101; ++i) messages += R"({"role":"user","content":"a"},)";
  messages.pop_back();
  EXPECT_TRUE(words(R"("input":[)" + messages + "]").starts_with("400 input context_length_"));
}

TEST(ResponsesApi, NamesInTheLogWhatItLeavesOut) {
  const TalkingModel model;
  const auto call = responses_call(model, R"("input":"ab","safeguards":1,"client_metadata":{},
      "stream_options":{},"tools":[{"type":"web_search"}])");
  EXPECT_EQ(call->ignored_fields,
            (std::vector<std::string>{"safeguards", "tools[0] (web_search)"}));
}

TEST(ResponsesApi, TakesAnyEffortWhereThreeAreKnown) {
  LetterModel model;
  model.served.format = {"openai_gptoss", "openai"};
  for (const char* effort : {"none", "minimal", "low", "high", "xhigh", "max"}) {
    const Json answer = answered_whole(
        model, fmt::format(R"("input":"ab","reasoning":{{"effort":"{}"}})", effort), "c");
    EXPECT_EQ(answer["reasoning"]["effort"], effort);
  }
}

TEST(ResponsesApi, TakesLongTextsAndTellsThatTheyAreTooLong) {
  LetterModel model;
  model.served.preparer.info.max_model_len = 2 << 20;
  model.served.preparer.info.num_kvcache_blocks = 1 << 20;
  const std::string members = R"("input":")" + std::string(1 << 20, 'a') + "\"";
  EXPECT_GT(responses_call(model, members)->requests[0].prompt_token_ids.size(), 1U << 20);
  model.served.preparer.info.max_model_len = 1 << 20;
  EXPECT_EQ(responses_refusal(model, members).code(), "context_length_exceeded");
}

// A value somewhere in a body becomes another one.
void spoil_response_body(Json& body, std::mt19937& random) {
  const char* const values[] = {
      "null", "true",          "-1",    "1e300",    "9223372036854775808",  "[]", "{}",
      "\"\"", "{\"type\":[]}", "[[1]]", "\"text\"", "[{\"type\":\"text\"}]"};
  Json* node = &body;
  while (node->is_structured() && !node->empty() && (node == &body || random() % 4 != 0)) {
    auto child = node->begin();
    std::advance(child, random() % node->size());
    node = &*child;
  }
  *node = Json::parse(values[random() % std::size(values)]);
}

TEST(ResponsesApiProperty, AnyBodyIsACallOrAnErrorOfTheApi) {
  const TalkingModel model;
  const Json body = Json::parse(R"({"model":"letters","input":[
      {"type":"message","role":"developer","content":[{"type":"input_text","text":"a"}]},
      {"type":"reasoning","summary":[{"type":"summary_text","text":"b"}],
       "content":[{"type":"reasoning_text","text":"c"}]},
      {"type":"function_call","call_id":"i","name":"g","namespace":"n","arguments":"{}"},
      {"type":"custom_tool_call","call_id":"j","name":"c","input":"d"},
      {"type":"function_call_output","call_id":"i","output":[{"type":"input_text","text":"e"}]},
      {"type":"custom_tool_call_output","call_id":"j","output":"f"},{"role":"user","content":"g"},
      {"type":"additional_tools","tools":[{"type":"function","name":"h"}]},{"type":"compaction"}],
      "instructions":"h","stream":true,"stream_options":{},"tool_choice":"auto","tools":[
      {"type":"function","name":"f","description":"d","parameters":{"type":"object"}},
      {"type":"custom","name":"c","format":{"type":"grammar","syntax":"lark","definition":"x"}},
      {"type":"namespace","name":"n","tools":[{"type":"function","name":"g"}]},
      {"type":"web_search"}],"parallel_tool_calls":true,"reasoning":{"effort":"low",
      "summary":"auto"},"max_output_tokens":9,"include":["message.output_text.logprobs"],
      "top_logprobs":2,"text":{"format":{"type":"text"},"verbosity":"low"},"temperature":0.5,
      "top_p":1,"top_k":3,"stop":["x"],"chat_template_kwargs":{"more":"d"},"store":true,
      "metadata":{"a":"b"},"user":"u","service_tier":"auto","truncation":"auto",
      "prompt_cache_key":"k","prompt_cache_options":{},"client_metadata":{},
      "previous_response_id":null,"background":false,"conversation":null,"prompt":null})");
  int num_calls = 0, num_errors = 0;
  for (unsigned seed = 0; seed < 4000; ++seed) {
    std::mt19937 random(seed);
    Json spoiled = body;
    for (unsigned i = random() % 3; i > 0; --i) spoil_response_body(spoiled, random);
    const std::string text = spoiled.dump();
    try {
      const auto call = parse_responses(text, model.served, "7");
      const std::vector<EngineEvent> events = {said_piece("<a>b[f {}]"), response_end()};
      const std::string told = call->on_events(0, events) + call->finish();
      EXPECT_FALSE(told.empty());
      ++num_calls;
    } catch (const ApiError& error) {
      EXPECT_TRUE(error.status() == 400 || error.status() == 404) << text;
      ++num_errors;
    }
  }
  EXPECT_GT(num_calls, 1000);
  EXPECT_GT(num_errors, 500);
}

TEST(ResponsesApi, StoresNothingThatCouldBeAskedFor) {
  EXPECT_EQ(missing_response("/v1/responses/resp_1"),
            "Response with id 'resp_1' not found: this server stores no responses.");
  EXPECT_EQ(missing_response("/v1/responses/resp_1/cancel"),
            "Response with id 'resp_1' not found: this server stores no responses.");
  EXPECT_EQ(missing_response("/v1/responses/compact"),
            "/v1/responses/compact is not there; /v1/responses answers whole conversations.");
}

}  // namespace
}  // namespace nanovllm::server
