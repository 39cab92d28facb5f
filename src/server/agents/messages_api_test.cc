#include "server/agents/messages_api.h"

#include <algorithm>
#include <filesystem>

#include "base/testing.h"
#include "server/agents/agents_testing.h"
#include "server/agents/messages_request.h"
#include "server/openai/model_families_testing.h"
#include "server/openai/prompt_tokens.h"
#include "text/chat_messages.h"

namespace nanovllm::server {
namespace {

constexpr const char* kAsked = R"("messages":[{"role":"user","content":"ab"}])";
constexpr const char* kOneTool = R"("tools":[{"name":"f","input_schema":{"type":"object"}}])";

std::unique_ptr<ApiCall> ask(const LetterModel& model, const std::string& more = "") {
  return parse_messages(fmt::format(R"({{"model":"letters","max_tokens":9,{},{}{}}})", kAsked,
                                    kOneTool, more.empty() ? "" : "," + more),
                        model.served, "7");
}

Json whole(const LetterModel& model, const std::string& text, const RequestEnd& last = end(0)) {
  return Json::parse(told(*ask(model), events_of(text, last)));
}

struct StreamEvent {
  std::string name;
  Json data;
};

std::vector<StreamEvent> events_in(std::string_view stream) {
  std::vector<StreamEvent> events;
  while (!stream.empty()) {
    const size_t end = stream.find("\n\n");
    const size_t line = stream.find('\n');
    EXPECT_TRUE(stream.starts_with("event: ")) << stream;
    EXPECT_TRUE(stream.substr(line + 1).starts_with("data: ")) << stream;
    events.push_back({std::string(stream.substr(7, line - 7)),
                      Json::parse(stream.substr(line + 7, end - line - 7))});
    EXPECT_EQ(events.back().data["type"], events.back().name);
    stream.remove_prefix(end + 2);
  }
  return events;
}

// The message that a client makes of a stream, as Anthropic's packages do it.
Json message_of(const std::string& stream) {
  Json message, arguments = Json::object();
  bool is_open = false, has_stopped = false;
  for (const auto& [name, data] : events_in(stream)) {
    EXPECT_FALSE(has_stopped);
    EXPECT_EQ(message.is_null(), name == "message_start");
    if (name == "message_start") {
      message = data["message"];
      EXPECT_EQ(message["content"], Json::array());
      EXPECT_TRUE(message["stop_reason"].is_null());
      EXPECT_EQ(message["usage"]["output_tokens"], 0);
    } else if (name == "content_block_start") {
      EXPECT_FALSE(is_open);
      is_open = true;
      EXPECT_EQ(data["index"], message["content"].size());
      message["content"].push_back(data["content_block"]);
    } else if (name == "content_block_delta") {
      EXPECT_TRUE(is_open);
      EXPECT_EQ(data["index"].get<size_t>() + 1, message["content"].size());
      for (const auto& [key, value] : data["delta"].items()) {
        if (key == "type") continue;
        Json& text = key == "partial_json" ? arguments[data["index"].dump()]
                                           : message["content"].back()[key];
        text = (text.is_null() ? "" : text.get<std::string>()) + value.get<std::string>();
      }
    } else if (name == "content_block_stop") {
      EXPECT_TRUE(is_open);
      is_open = false;
      EXPECT_EQ(data["index"].get<size_t>() + 1, message["content"].size());
    } else if (name == "message_delta") {
      EXPECT_FALSE(is_open);
      message.update(data["delta"]);
      message["usage"].update(data["usage"]);
    } else {
      EXPECT_EQ(name, "message_stop");
      has_stopped = true;
    }
  }
  EXPECT_TRUE(has_stopped);
  for (const auto& [index, text] : arguments.items()) {
    Json& input = message["content"][std::stoul(index)]["input"];
    EXPECT_EQ(input, Json::object());
    input = text::arguments_of(text);
  }
  return message;
}

TEST(MessagesApi, AnswersWithBlocks) {
  const BracketModel model;
  RequestEnd over = end(0);
  over.num_cached_tokens = 2;
  const Json answer = whole(model, "<a>\n\nb[f {\"z\":1,\"a\":2}]", over);
  EXPECT_EQ(answer.dump(),
            R"({"id":"msg_7","type":"message","role":"assistant","model":"letters","content":[)"
            R"({"type":"thinking","thinking":"a","signature":"nanovllm"},)"
            R"({"type":"text","text":"b"},)"
            R"({"type":"tool_use","id":)" +
                answer["content"][2]["id"].dump() +
                R"(,"name":"f","input":{"z":1,"a":2}}],)"
                R"("stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":3,)"
                R"("cache_creation_input_tokens":0,"cache_read_input_tokens":2,)"
                R"("output_tokens":1}})");
  EXPECT_TRUE(answer["content"][2]["id"].get<std::string>().starts_with("toolu_"));
}

TEST(MessagesApi, NeverAnswersWithoutABlock) {
  const BracketModel model;
  for (const char* nothing : {"", " \n"}) {
    EXPECT_EQ(whole(model, nothing)["content"].dump(), R"([{"type":"text","text":""}])");
    EXPECT_EQ(
        message_of(told(*ask(model, R"("stream":true)"), events_of(nothing)))["content"].dump(),
        R"([{"type":"text","text":""}])");
  }
}

TEST(MessagesApi, TellsArgumentsThatAreNoJsonAsNone) {
  const BracketModel model;
  for (const char* wrong : {"{", "[1]", "3", "x"}) {
    const Json content = whole(model, fmt::format("[f {}]", wrong))["content"];
    EXPECT_EQ(content[0]["input"], Json::object()) << wrong;
  }
  EXPECT_EQ(whole(model, "[f {\"x\":\"a\nb\"}]")["content"][0]["input"]["x"], "a\nb");
}

TEST(MessagesApi, SaysWhyItStopped) {
  const BracketModel model;
  const auto why = [&](const std::string& text, FinishReason reason, StopReason stop = {}) {
    const Json answer = whole(model, text, end(0, reason, std::move(stop)));
    return answer["stop_reason"].get<std::string>() + " " + answer["stop_sequence"].dump();
  };
  EXPECT_EQ(why("a", FinishReason::kStop), "end_turn null");
  EXPECT_EQ(why("a", FinishReason::kStop, 5), "end_turn null");
  EXPECT_EQ(why("[f {}]", FinishReason::kStop), "tool_use null");
  EXPECT_EQ(why("[f {}]", FinishReason::kStop, 5), "tool_use null");
  EXPECT_EQ(why("a", FinishReason::kLength), "max_tokens null");
  EXPECT_EQ(why("[f {\"x\":", FinishReason::kLength), "max_tokens null");
  EXPECT_EQ(why("a", FinishReason::kStop, "X\n"), "stop_sequence \"X\\n\"");
}

TEST(MessagesApi, StreamsEventsWithTheirNames) {
  const BracketModel model;
  const auto call = ask(model, R"("stream":true)");
  EXPECT_TRUE(call->stream);
  std::string out;
  for (const char* piece : {"<a", "b>\n", "\nc", "[f ", "{}", "]\n"}) {
    const std::vector<EngineEvent> one = {delta(0, piece, {1})};
    out += call->on_events(0, one);
  }
  RequestEnd over = end(0);
  over.num_cached_tokens = 1;
  const std::vector<EngineEvent> last = {over};
  out += call->on_events(0, last) + call->finish();
  std::string id;
  for (const auto& event : events_in(out)) {
    const Json block = event.data.value("content_block", Json::object());
    if (block.contains("id")) id = block["id"].get<std::string>();
  }
  const char* usage = R"("cache_creation_input_tokens":0,"cache_read_input_tokens":)";
  EXPECT_EQ(
      out,
      fmt::format(
          "event: message_start\ndata: "
          R"({{"type":"message_start","message":{{"id":"msg_7","type":"message","role":"assistant",)"
          R"("model":"letters","content":[],"stop_reason":null,"stop_sequence":null,)"
          R"("usage":{{"input_tokens":5,{0}0,"output_tokens":0}}}}}})"
          "\n\nevent: content_block_start\ndata: "
          R"({{"type":"content_block_start","index":0,"content_block":{{"type":"thinking",)"
          R"("thinking":"","signature":""}}}})"
          "\n\nevent: content_block_delta\ndata: "
          R"({{"type":"content_block_delta","index":0,"delta":{{"type":"thinking_delta",)"
          R"("thinking":"a"}}}})"
          "\n\nevent: content_block_delta\ndata: "
          R"({{"type":"content_block_delta","index":0,"delta":{{"type":"thinking_delta",)"
          R"("thinking":"b"}}}})"
          "\n\nevent: content_block_delta\ndata: "
          R"({{"type":"content_block_delta","index":0,"delta":{{"type":"signature_delta",)"
          R"("signature":"nanovllm"}}}})"
          "\n\nevent: content_block_stop\ndata: "
          R"({{"type":"content_block_stop","index":0}})"
          "\n\nevent: content_block_start\ndata: "
          R"({{"type":"content_block_start","index":1,"content_block":{{"type":"text","text":""}}}})"
          "\n\nevent: content_block_delta\ndata: "
          R"({{"type":"content_block_delta","index":1,"delta":{{"type":"text_delta",)"
          R"("text":"c"}}}})"
          "\n\nevent: content_block_stop\ndata: "
          R"({{"type":"content_block_stop","index":1}})"
          "\n\nevent: content_block_start\ndata: "
          R"({{"type":"content_block_start","index":2,"content_block":{{"type":"tool_use",)"
          R"("id":"{1}","name":"f","input":{{}}}}}})"
          "\n\nevent: content_block_delta\ndata: "
          R"({{"type":"content_block_delta","index":2,"delta":{{"type":"input_json_delta",)"
          R"("partial_json":"{{}}"}}}})"
          "\n\nevent: content_block_stop\ndata: "
          R"({{"type":"content_block_stop","index":2}})"
          "\n\nevent: message_delta\ndata: "
          R"({{"type":"message_delta","delta":{{"stop_reason":"tool_use","stop_sequence":null}},)"
          R"("usage":{{"input_tokens":4,{0}1,"output_tokens":6}}}})"
          "\n\nevent: message_stop\ndata: "
          R"({{"type":"message_stop"}})"
          "\n\n",
          usage, id));
}

TEST(MessagesApi, EndsABrokenStreamWithAnErrorEvent) {
  const BracketModel model;
  const auto call = ask(model, R"("stream":true)");
  const std::vector<EngineEvent> events = {
      delta(0, "a", {1}), RequestError{.code = ErrorCode::kUnavailable, .message = "gone"}};
  const auto told = events_in(call->on_events(0, events) + call->finish());
  EXPECT_EQ(told.back().name, "error");
  EXPECT_EQ(told.back().data.dump(),
            R"({"type":"error","error":{"type":"overloaded_error","message":"gone"}})");
}

TEST(MessagesApi, WritesErrorsWithTheTypesOfTheirStatus) {
  for (const auto& [status, type] : {std::pair{400, "invalid_request_error"},
                                     {401, "authentication_error"},
                                     {403, "permission_error"},
                                     {404, "not_found_error"},
                                     {405, "invalid_request_error"},
                                     {408, "invalid_request_error"},
                                     {413, "request_too_large"},
                                     {415, "invalid_request_error"},
                                     {429, "rate_limit_error"},
                                     {500, "api_error"},
                                     {503, "overloaded_error"},
                                     {529, "overloaded_error"}}) {
    EXPECT_EQ(
        messages_error_body(status, {.message = "a \"b\""}),
        fmt::format(R"({{"type":"error","error":{{"type":"{}","message":"a \"b\""}}}})", type));
  }
  EXPECT_EQ(messages_error_body(
                400, {.message = "a", .param = "thread", .code = "thread_unsupported_request"}),
            R"({"type":"error","error":{"type":"invalid_request_error","message":"a","details":)"
            R"({"error_code":"thread_unsupported_request","unsupported":["thread"]}}})");
  EXPECT_EQ(messages_error_body(400, {.message = "a", .code = kContextExceeded}),
            R"({"type":"error","error":{"type":"invalid_request_error","message":"a"}})");
}

TEST(MessagesApi, TellsClientsThatAPromptIsTooLongInWordsThatTheyKnow) {
  BracketModel model;
  const size_t num_tokens = ask(model)->requests[0].prompt_token_ids.size();
  model.served.preparer.info.max_model_len = static_cast<int>(num_tokens) - 1;
  const ApiError error = api_error_of([&] { ask(model); });
  EXPECT_EQ(error.status(), 400);
  EXPECT_EQ(error.what(),
            fmt::format("prompt is too long: {} tokens > {} maximum", num_tokens, num_tokens - 1));
}

TEST(MessagesApi, CountsTheTokensThatAMessageReports) {
  const BracketModel model;
  for (const std::string more : {"", R"("system":"abc")", R"("thinking":{"type":"disabled"})"}) {
    const std::string fields = fmt::format(R"("model":"letters",{},{}{})", kAsked, kOneTool,
                                           more.empty() ? "" : "," + more);
    const Json count = Json::parse(count_tokens_body("{" + fields + "}", model.served));
    const auto call = parse_messages("{\"max_tokens\":1," + fields + "}", model.served, "7");
    const Json usage = Json::parse(told(*call, events_of("a")))["usage"];
    EXPECT_EQ(count.dump(), fmt::format(R"({{"input_tokens":{}}})",
                                        usage["input_tokens"].get<int>() +
                                            usage["cache_read_input_tokens"].get<int>() +
                                            usage["cache_creation_input_tokens"].get<int>()));
  }
}

TEST(MessagesApi, TellsTheNumberOfTokensHoweverManyThereAre) {
  const BracketModel model;  // a context of 100
  const auto error = [&](const std::string& messages) {
    return std::string(api_error_of([&] {
                         parse_messages(
                             R"({"model":"letters","max_tokens":9,"messages":[)" + messages + "]}",
                             model.served, "7");
                       }).what());
  };
  const auto said = [](size_t count) {
    return R"({"role":"user","content":")" + std::string(count, 'a') + "\"}";
  };
  // Each message ends with a token of its own, and the prompt with another one.
  EXPECT_EQ(error(said(280'010)), "prompt is too long: 280012 tokens > 100 maximum");
  std::string many = said(1);
  for (int i = 1; i < 101; ++i) many.append(",").append(said(1));
  EXPECT_EQ(error(many), "prompt is too long: 203 tokens > 100 maximum");
}

TEST(MessagesApi, CountsAMillionTokensAtMost) {
  const BracketModel model;
  const auto body = [](size_t count) {
    return R"({"model":"letters","messages":[{"role":"user","content":")" +
           std::string(count - 2, 'a') + "\"}]}";
  };
  const size_t most = most_counted_tokens(model.served);
  EXPECT_EQ(most, 1'048'576u);
  EXPECT_EQ(count_tokens_body(body(most), model.served), R"({"input_tokens":1048576})");
  const ApiError error = api_error_of([&] { count_tokens_body(body(most + 1), model.served); });
  EXPECT_STREQ(error.what(), "prompt is too long: 1048577 tokens > 1048576 maximum");
}

TEST(MessagesApi, CountsMoreThanTheContextHas) {
  BracketModel model;
  model.served.preparer.info.max_model_len = 3;
  const std::string body = fmt::format(R"({{"model":"letters",{}}})", kAsked);
  EXPECT_EQ(count_tokens_body(body, model.served), R"({"input_tokens":4})");
  EXPECT_EQ(api_error_of([&] { count_tokens_body("{}", model.served); }).status(), 400);
}

TEST(MessagesApiProperty, StreamsAddUpToWholeAnswersForEachFamily) {
  std::mt19937 random(9);
  for (const Family& family : families()) {
    for (const std::string& text : {family.first, family.second}) {
      for (const bool with_tokens : {false, true}) {
        const TranscriptCase c = {.reasoning_parser = family.format.reasoning_parser,
                                  .tool_call_parser = family.format.tool_call_parser,
                                  .text = text,
                                  .answer = {},
                                  .with_tokens = with_tokens};
        const TranscriptModel model(c);
        const MarkedText words = marked_text_of(c);
        for (const unsigned one_in : {1U, 3U, 10U, 100U}) {
          const auto events = events_of(words, random_cuts(words.text, one_in, random));
          const Json answer = Json::parse(told(*ask(model.letters), events));
          const Json streamed =
              message_of(told(*ask(model.letters, R"("stream":true)"), events, random() % 2 == 0));
          ASSERT_EQ(streamed, answer) << family.name << ": " << c.text;
          EXPECT_EQ(answer["stop_reason"], text == family.first ? "tool_use" : "end_turn");
        }
      }
    }
  }
}

// A value somewhere in it becomes another one.
void spoil(Json& json, std::mt19937& random) {
  static const std::vector<std::string> values = {
      "null", "true",          "-1",    "1e300",    "9223372036854775808",  "[]", "{}",
      "\"\"", "{\"type\":[]}", "[[1]]", "\"text\"", "[{\"type\":\"text\"}]"};
  Json* node = &json;
  while (node->is_structured() && !node->empty() && (node == &json || random() % 4 != 0)) {
    auto child = node->begin();
    std::advance(child, random() % node->size());
    node = &*child;
  }
  *node = Json::parse(values[random() % values.size()]);
}

TEST(MessagesApiProperty, AnyBodyIsACallOrAnErrorOfTheApi) {
  const BracketModel model;
  const Json body = Json::parse(R"({"model":"letters","max_tokens":2000,"stream":true,
      "system":[{"type":"text","text":"a"}],"temperature":0.5,"top_p":1,"top_k":3,
      "stop_sequences":["x"],"thinking":{"type":"enabled","budget_tokens":1024},
      "output_config":{"effort":"low"},"tool_choice":{"type":"auto"},"cache_salt":"s",
      "chat_template_kwargs":{"more":"d"},"tools":[{"name":"f","description":"d",
      "input_schema":{"type":"object"},"defer_loading":false}],
      "messages":[{"role":"user","content":"a"},{"role":"system","content":[
      {"type":"tool_addition","tool":{"type":"tool_definition",
       "definition":{"name":"g","input_schema":{}}}},{"type":"text","text":"b"}]},
      {"role":"assistant","content":[{"type":"thinking","thinking":"c","signature":"s"},
      {"type":"tool_use","id":"i","name":"f","input":{"x":"d"}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"i","content":[
      {"type":"text","text":"e"},{"type":"tool_reference","tool_name":"f"}]}]}]})");
  int num_calls = 0, num_errors = 0;
  for (unsigned seed = 0; seed < 4000; ++seed) {
    std::mt19937 random(seed);
    Json spoiled = body;
    for (unsigned i = random() % 3; i > 0; --i) spoil(spoiled, random);
    const std::string text = spoiled.dump();
    try {
      const auto call = parse_messages(text, model.served, "7");
      told(*call, events_of("<a>b[f {}]"));
      ++num_calls;
    } catch (const ApiError& error) {
      EXPECT_TRUE(error.status() == 400 || error.status() == 404) << text;
      ++num_errors;
    }
    try {
      EXPECT_TRUE(Json::accept(count_tokens_body(text, model.served)));
    } catch (const ApiError& error) {
      EXPECT_TRUE(error.status() == 400 || error.status() == 404) << text;
    }
  }
  EXPECT_GT(num_calls, 1000);
  EXPECT_GT(num_errors, 1000);
}

bool shows_calls(const ChatTemplate& chat_template) {
  const Json messages = Json::parse(R"([{"role":"user","content":"a"},
      {"role":"assistant","content":"","tool_calls":[{"id":"toolu_1","type":"function",
       "function":{"name":"f","arguments":{"x":"quokka"}}}]},
      {"role":"tool","tool_call_id":"toolu_1","content":"wallaby"}])");
  try {
    const std::string text = chat_template.render(messages, nullptr, true, {});
    return text.find("quokka") != text.npos && text.find("wallaby") != text.npos;
  } catch (const Error&) {
    return false;
  }
}

// As Claude Code's overview of its context asks for them.
TEST(MessagesApi, CountsSingleMessagesWhateverTheTemplateRefuses) {
  const auto tokenizer = Tokenizer::load(test::source_path("models/demo"));
  LetterModel letters;
  letters.served.preparer.tokenizer = tokenizer.get();
  letters.served.format.tool_call_parser = "brackets";
  int num_refused = 0;
  const std::string folder = test::source_path("tests/data/chat_templates");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".jinja") continue;
    const std::string name = entry.path().stem();
    const ChatTemplate chat_template(template_source(name));
    letters.served.preparer.chat_template = &chat_template;
    const auto count = [&](const std::string& role, const std::string& content,
                           const std::string& more = "") {
      const std::string asked = fmt::format(
          R"({{"model":"letters",{}"chat_template_kwargs":{{"bos_token":"<s>","eos_token":"</s>"}},)"
          R"("messages":[{{"role":"{}","content":{}}}]}})",
          more, role, content);
      const Json request = read_messages(asked, letters.served, true).chat;
      try {
        static_cast<void>(agent_request(request, letters.served));
      } catch (const ApiError&) {
        ++num_refused;
      }
      try {
        return Json::parse(count_tokens_body(asked, letters.served))["input_tokens"].get<int>();
      } catch (const ApiError& error) {
        ADD_FAILURE() << name << ", " << role << ": " << error.what();
        return 0;
      }
    };
    const int words = static_cast<int>(tokenizer->encode(" cat", false).size()) * 200;
    std::string cats;
    for (int i = 0; i < 200; ++i) cats += " cat";
    const auto plain = [](const std::string& said) { return Json(said).dump(); };
    const auto call = [](const std::string& said) {
      return R"([{"type":"tool_use","id":"toolu_1","name":"f","input":{"x":)" + Json(said).dump() +
             "}}]";
    };
    const auto result = [](const std::string& said) {
      return R"([{"type":"tool_result","tool_use_id":"toolu_1","content":)" + Json(said).dump() +
             "}]";
    };
    const auto grows_by_words = [&](const char* role, const auto& content, const char* more = "") {
      const int few = count(role, content("It is"), more);
      EXPECT_GT(few, 0) << name << ", " << role << more;
      EXPECT_LT(few, 3000) << name << ", " << role << more;
      EXPECT_EQ(count(role, content("It is" + cats), more), few + words)
          << name << ", " << role << more;
    };
    grows_by_words("user", plain);
    grows_by_words("assistant", plain);
    // Nemo's shows the system message in the user's last one alone, and takes it alone all the
    // same.
    if (name != "mistralai-Mistral-Nemo-Instruct-2407") {
      grows_by_words("system", plain);
      grows_by_words("assistant", plain, R"("system":"Be brief.",)");
    }
    if (shows_calls(chat_template)) {
      grows_by_words("user", result);
      grows_by_words("assistant", call);
    }
  }
  EXPECT_GT(num_refused, 20);
}

TEST(MessagesApi, CountsNoTokensOfTheUserThatAnAnswerIsPutBehind) {
  const auto tokenizer = Tokenizer::load(test::source_path("models/demo"));
  LetterModel letters;
  letters.served.preparer.tokenizer = tokenizer.get();
  const ChatTemplate chat_template(
      "{% if messages[0].role != 'user' %}{{ raise_exception('No user query found') }}{% endif %}"
      "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
      "{% if add_generation_prompt %}[assistant]{% endif %}");
  letters.served.preparer.chat_template = &chat_template;
  const auto count = [&](const std::string& messages) {
    return Json::parse(count_tokens_body(R"({"model":"letters","messages":[)" + messages + "]}",
                                         letters.served))["input_tokens"];
  };
  const auto tokens = [&](const char* text) { return tokenizer->encode(text, false).size(); };
  EXPECT_EQ(count(R"({"role":"assistant","content":"A cat."})"),
            tokens("[user];[assistant]A cat.") - tokens("[user];"));
  EXPECT_EQ(count(R"({"role":"user","content":"A cat."})"), tokens("[user]A cat.;[assistant]"));
  const ApiError error = api_error_of([&] {
    parse_messages(R"({"model":"letters","max_tokens":1,"messages":[)"
                   R"({"role":"assistant","content":"A cat."}]})",
                   letters.served, "7");
  });
  EXPECT_EQ(error.status(), 400);  // it is a count alone that puts it there
}

// Requests as Claude Code sends them: their shape, with words of our own.
class Session {
 public:
  explicit Session(const std::string& chat_template)
      : chat_template_(template_source(chat_template)), served_(letters_.served) {
    served_.preparer.chat_template = &chat_template_;
    served_.preparer.info.max_model_len = 1000;
    served_.format = {"qwen3", "hermes"};
    for (int i = 0; i < 12; ++i) {
      tools_.push_back({{"name", fmt::format("Tool{}", i)},
                        {"description", "Does it."},
                        {"input_schema",
                         {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                          {"type", "object"},
                          {"properties", {{"file_path", {{"type", "string"}}}}},
                          {"required", Json::array({"file_path"})},
                          {"additionalProperties", false}}}});
    }
    tools_[11]["defer_loading"] = true;
  }

  void say(Json message) { messages_.push_back(std::move(message)); }
  // What the model is shown. `conversation` is told in the billing header.
  std::string prompt(const std::string& conversation = "4ab") const {
    const auto block = [](const std::string& text, bool is_cached) {
      Json result = {{"type", "text"}, {"text", text}};
      if (is_cached) result["cache_control"] = {{"type", "ephemeral"}};
      return result;
    };
    Json system = Json::array();
    system.push_back(block("x-anthropic-billing-header: cc_version=2.1.332." + conversation +
                               "; cc_entrypoint=sdk-cli;",
                           false));
    system.push_back(block("You are an agent.", true));
    system.push_back(block("Be brief.", true));
    const Json body = {{"model", "letters"},
                       {"max_tokens", 32'000},
                       {"system", system},
                       {"tools", tools_},
                       {"messages", messages_},
                       {"metadata", {{"user_id", "u"}}},
                       {"thinking", {{"type", "adaptive"}}},
                       {"output_config", {{"effort", "high"}}},
                       {"context_management", {{"edits", Json::array()}}},
                       {"stream", true}};
    MessagesRequest request = read_messages(body.dump(), served_, false);
    return agent_request(std::move(request.chat), served_).prompt().text;
  }

 private:
  LetterModel letters_;
  ChatTemplate chat_template_;
  ServedModel served_;
  Json tools_ = Json::array(), messages_ = Json::array();
};

Json user(Json content) { return {{"role", "user"}, {"content", std::move(content)}}; }
Json text_block(const char* text) { return {{"type", "text"}, {"text", text}}; }

size_t num_shared(const std::string& a, const std::string& b) {
  const auto [end, other] = std::ranges::mismatch(a, b);
  return static_cast<size_t>(end - a.begin());
}

TEST(MessagesApi, RendersASessionSoThatEachPromptBeginsAsTheOneBefore) {
  for (const char* name : {"Qwen-Qwen3-0.6B", "Qwen3.5-4B"}) {
    Session session(name);
    Json reminder = text_block("<system-reminder>context</system-reminder>");
    Json question = text_block("Write it.");
    question["cache_control"] = {{"type", "ephemeral"}};
    session.say(user(Json::array({reminder, question})));
    session.say({{"role", "system"}, {"content", Json::array({text_block("Skills are: none.")})}});
    const std::string first = session.prompt();
    EXPECT_EQ(first.find("x-anthropic-billing-header"), std::string::npos);
    EXPECT_EQ(first, session.prompt("5cd"));
    EXPECT_NE(first.find("You are an agent.\nBe brief."), std::string::npos);
    EXPECT_NE(first.find("Skills are: none."), std::string::npos) << first;
    EXPECT_GT(first.find("Skills are: none."), first.find("Write it.")) << first;
    EXPECT_NE(first.find("Tool10"), std::string::npos);
    EXPECT_EQ(first.find("Tool11"), std::string::npos);
    const std::string call = R"([{"type":"thinking","thinking":"Hm.","signature":"nanovllm"},
      {"type":"text","text":"I write."},{"type":"tool_use","id":"toolu_1","name":"Tool1",
       "input":{"z":"zulu","file_path":"a.txt"}}])";
    session.say({{"role", "assistant"}, {"content", Json::parse(call)}});
    Json result = Json::parse(R"([{"type":"tool_result","tool_use_id":"toolu_1",
      "content":[{"type":"text","text":"Written."}]}])");
    session.say(user(result));
    const std::string second = session.prompt();
    const size_t asked = first.rfind("<|im_start|>assistant");
    EXPECT_GE(num_shared(first, second), asked) << second;
    EXPECT_NE(second.find("Written."), std::string::npos);
    EXPECT_NE(second.find("Hm."), std::string::npos) << second;
    EXPECT_LT(second.find("zulu"), second.find("a.txt"));
  }
}

TEST(MessagesApi, ShowsALateSystemMessageWhereItStands) {
  // Up to where the template has them alike: Qwen3.5's drops thoughts before the user's last turn.
  for (const auto& [name, alike] : {std::pair{"Qwen-Qwen3-0.6B", "Written."},
                                    {"Qwen3.5-4B", "<|im_start|>assistant"},
                                    {"Mistral-Small-3.2-24B-Instruct-2506", "Written."}}) {
    Session session(name);
    session.say(user("Write it."));
    const std::string call =
        R"([{"type":"tool_use","id":"toolu_1","name":"Tool1","input":{"file_path":"a.txt"}}])";
    session.say({{"role", "assistant"}, {"content", Json::parse(call)}});
    session.say(user(
        Json::parse(R"([{"type":"tool_result","tool_use_id":"toolu_1","content":"Written."}])")));
    const std::string before = session.prompt();
    session.say({{"role", "system"}, {"content", "Files have changed."}});
    const std::string after = session.prompt();
    EXPECT_GT(after.find("Files have changed."), after.find("Written.")) << after;
    EXPECT_NE(after.find("Files have changed."), after.npos) << after;
    EXPECT_GT(num_shared(before, after), before.find(alike)) << after;
  }
}

TEST(MessagesApi, RendersAListOfOneBlockAsItsText) {
  Session listed("Qwen-Qwen3-0.6B"), plain("Qwen-Qwen3-0.6B");
  listed.say(user(Json::array({text_block("Write it.")})));
  plain.say(user("Write it."));
  EXPECT_EQ(listed.prompt(), plain.prompt());
}

}  // namespace
}  // namespace nanovllm::server
