// Random calls and random events.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/testing.h"
#include "server/openai/protocol_testing.h"

namespace nanovllm::server {
namespace {

using Random = std::mt19937;

int below(Random& random, int bound) {
  return std::uniform_int_distribution<int>(0, bound - 1)(random);
}

// What `num_completions` gain, a token at a time and interleaved.
std::vector<EngineEvent> random_events(Random& random, int num_completions) {
  const std::vector<std::string> pieces = {"a", "\u00e9", "\U0001f600", "\n", "\"", "<",
                                           ">", "[f ",    "{}",         "] ", "",   "b "};
  std::vector<EngineEvent> events;
  std::vector<int> rest;
  for (int i = 0; i < num_completions; ++i) rest.push_back(below(random, 8));
  for (int open = num_completions; open > 0;) {
    const int index = below(random, num_completions);
    if (rest[index] < 0) continue;
    if (rest[index]-- == 0) {
      const int reason = below(random, 3);
      events.emplace_back(end(index, reason == 0 ? FinishReason::kStop : FinishReason::kLength,
                              reason == 1 ? StopReason(5) : StopReason()));
      --open;
      continue;
    }
    const int32_t id = below(random, 50);
    RequestDelta output =
        delta(index, pieces[below(random, static_cast<int>(pieces.size()))], {id});
    output.logprobs = {{logprob(id, -0.5F, 1, "x"), logprob((id + 1) % 50, -2, 2, "y")}};
    events.push_back(output);
  }
  return events;
}

// Merges neighbours of one completion, as a stream that nobody reads does.
std::vector<EngineEvent> merged(const std::vector<EngineEvent>& events) {
  std::vector<EngineEvent> result;
  for (const EngineEvent& event : events) {
    const auto* next = std::get_if<RequestDelta>(&event);
    auto* last = result.empty() ? nullptr : std::get_if<RequestDelta>(&result.back());
    if (next == nullptr || last == nullptr || next->index != last->index) {
      result.push_back(event);
      continue;
    }
    last->text += next->text;
    last->token_ids.push_back(next->token_ids[0]);
    last->logprobs.push_back(next->logprobs[0]);
  }
  return result;
}

std::string tell(ApiCall& call, const std::vector<EngineEvent>& events, Random& random) {
  std::string text;
  for (size_t at = 0; at < events.size();) {
    const size_t count = std::min<size_t>(1 + below(random, 5), events.size() - at);
    const std::vector<EngineEvent> batch(events.begin() + static_cast<ptrdiff_t>(at),
                                         events.begin() + static_cast<ptrdiff_t>(at + count));
    text += call.on_events(0, below(random, 2) == 0 ? batch : merged(batch));
    at += count;
  }
  EXPECT_TRUE(call.is_over());
  return text + call.finish();
}

// Adds what a chunk tells to what those before it told.
void append(Json& whole, const Json& piece) {
  for (const auto& [name, value] : piece.items()) {
    Json& member = whole[name];
    if (value.is_object()) {
      append(member, value);
    } else if (value.is_array() && name != "tool_calls") {
      if (member.is_null()) member = Json::array();
      for (const Json& item : value) member.push_back(item);
    } else if (value.is_array()) {
      for (const Json& call : value) append(member[call["index"].get<size_t>()], call);
    } else if (value.is_string() && member.is_string() && name != "role") {
      member = member.get<std::string>() + value.get<std::string>();
    } else if (!value.is_null() || member.is_null()) {
      member = value;
    }
  }
}

// What a stream and a whole answer have in common: choices and usage.
Json facts_of_stream(const std::string& stream) {
  std::map<int, Json> choices;
  Json usage;
  bool done = false;
  for (const Json& chunk : chunks_of(stream)) {
    EXPECT_FALSE(done);
    done = chunk == "[DONE]";
    if (done) continue;
    if (chunk["choices"].empty()) usage = chunk["usage"];
    for (const Json& choice : chunk["choices"]) {
      const int index = choice["index"];
      EXPECT_FALSE(choices[index].is_object() && !choices[index]["finish_reason"].is_null());
      append(choices[index], choice);
      choices[index]["index"] = index;
    }
  }
  EXPECT_TRUE(done);
  Json list = Json::array();
  for (auto& [index, choice] : choices) list.push_back(choice);
  return {{"choices", list}, {"usage", usage}};
}

Json member(const Json& json, const char* name) { return json.value(name, Json(nullptr)); }

void expect_same_choice(const Json& streamed, const Json& whole) {
  const bool is_chat = whole.contains("message");
  for (const char* name :
       {"index", "text", "finish_reason", "stop_reason", "logprobs", "token_ids"}) {
    EXPECT_EQ(member(streamed, name), member(whole, name)) << name;
  }
  if (!is_chat) return;
  const Json& message = whole["message"];
  const Json& told = streamed["delta"];
  EXPECT_EQ(told["role"], message["role"]);
  EXPECT_EQ(told["content"], message["content"].is_null() ? Json("") : message["content"]);
  EXPECT_EQ(member(told, "reasoning"), message["reasoning"]);
  EXPECT_EQ(member(told, "reasoning_content"), member(message, "reasoning_content"));
  const Json calls = message.value("tool_calls", Json::array());
  EXPECT_EQ(told.value("tool_calls", Json::array()).size(), calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(told["tool_calls"][i]["id"], calls[i]["id"]);
    EXPECT_EQ(told["tool_calls"][i]["function"], calls[i]["function"]);
  }
}

TEST(ProtocolProperty, StreamsAddUpToWholeAnswers) {
  LetterModel model;
  model.served.format = {.reasoning_parser = "brackets", .tool_call_parser = "brackets"};
  const std::string messages = R"({"messages":[{"role":"user","content":"ab"}])";
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";
  const std::vector<std::string> starts = {
      R"({"prompt":"ab")",
      R"({"prompt":"ab","logprobs":1,"return_token_ids":true)",
      R"({"prompt":"ab","echo":true)",
      messages,
      messages + tools + R"(,"logprobs":true,"top_logprobs":2,"return_token_ids":true)",
      messages + tools};
  for (int seed = 0; seed < 600; ++seed) {
    Random random(seed);
    const std::string& start = starts[seed % starts.size()];
    const int n = 1 + below(random, 3);
    const auto parse = [&](const char* rest) {
      const std::string body = fmt::format("{},\"n\":{}{}}}", start, n, rest);
      return start.find("messages") == std::string::npos ? parse_completion(body, model.served, "7")
                                                         : parse_chat(body, model.served, "7");
    };
    const std::vector<EngineEvent> events = random_events(random, n);
    const Json whole = Json::parse(tell(*parse(""), events, random));
    const Json streamed = facts_of_stream(
        tell(*parse(R"(,"stream":true,"stream_options":{"include_usage":true})"), events, random));
    SCOPED_TRACE(seed);
    ASSERT_EQ(streamed["choices"].size(), whole["choices"].size());
    for (size_t i = 0; i < whole["choices"].size(); ++i) {
      expect_same_choice(streamed["choices"][i], whole["choices"][i]);
    }
    for (const char* name : {"prompt_tokens", "total_tokens", "completion_tokens"}) {
      EXPECT_EQ(streamed["usage"][name], whole["usage"][name]);
    }
  }
}

const std::vector<std::string>& seeds() {
  static const std::vector<std::string> list = {
      R"({"prompt":["ab",[1,2]],"echo":true,"logprobs":1,"max_tokens":0,"n":2,"stream":true})",
      R"({"model":"letters","prompt":[1,2.0],"stop":["a"],"logit_bias":{"1":2},"seed":-1,)"
      R"("stream_options":{"include_usage":true},"temperature":0.5,"top_p":1,"top_k":-1})",
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},)"
      R"({"role":"assistant","content":null,"reasoning":"b","tool_calls":[{"id":"x",)"
      R"("type":"function","function":{"name":"f","arguments":"{\"x\":[1]}"}}]},)"
      R"({"role":"tool","tool_call_id":"x","content":"c"}],"tools":[{"type":"function",)"
      R"("function":{"name":"f","parameters":{}}}],"tool_choice":"auto","logprobs":true,)"
      R"("top_logprobs":2,"chat_template_kwargs":{"more":"d"},"documents":[{"a":"b"}],)"
      R"("continue_final_message":true,"add_generation_prompt":false,"reasoning_effort":"low"})",
      R"({"prompt":"a","structured_outputs":{"json":{"type":"object","properties":{"a":{"enum":)"
      R"(["b"]}}},"disable_any_whitespace":true,"whitespace_pattern":null}})",
      R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema",)"
      R"("json_schema":{"name":"n","strict":true,"schema":{"anyOf":[{"minItems":1},{}]}}}})",
      R"({"tokens":[1,2],"return_token_strs":true,"add_special_tokens":false})"};
  return list;
}

// Bytes changed, or a value replaced.
std::string mutated(Random& random, std::string body) {
  static const std::vector<std::string> values = {
      "null",        "true", "-1",       "1e300", "9223372036854775808",
      "[]",          "{}",   "\"\"",     "[[1]]", "{\"a\":[]}",
      "\"\\u0000\"", "0.5",  "[\"a\",1]"};
  const int count = 1 + below(random, 3);
  for (int i = 0; i < count && !body.empty(); ++i) {
    const size_t at = below(random, static_cast<int>(body.size()));
    switch (below(random, 4)) {
      case 0:
        body[at] = static_cast<char>(below(random, 256));
        break;
      case 1:
        body.erase(at, 1 + below(random, 4));
        break;
      case 2:
        body.insert(at, 1, "{}[]\",:0"[below(random, 8)]);
        break;
      default: {  // the value behind the next colon, roughly
        const size_t colon = body.find(':', at);
        const size_t stop = body.find_first_of(",}]", colon);
        if (colon == std::string::npos || stop == std::string::npos) break;
        body.replace(colon + 1, stop - colon - 1,
                     values[below(random, static_cast<int>(values.size()))]);
      }
    }
  }
  return body;
}

void run(ApiCall& call, Random& random) {
  std::string text;
  for (size_t prompt = 0; prompt < call.requests.size(); ++prompt) {
    text += call.on_events(prompt, random_events(random, call.requests[prompt].params.n));
  }
  EXPECT_TRUE(call.is_over());
  text += call.finish();
  if (call.stream) {
    chunks_of(text);
  } else {
    EXPECT_TRUE(Json::accept(text));
  }
}

TEST(ProtocolProperty, AnyBodyIsACallOrAnApiError) {
  LetterModel model;
  model.served.format = {.reasoning_parser = "brackets", .tool_call_parser = "brackets"};
  int num_calls = 0, num_errors = 0;
  for (int seed = 0; seed < test::full_or_reduced(20'000, 4'000); ++seed) {
    Random random(seed);
    const std::string body = mutated(random, seeds()[seed % seeds().size()]);
    for (const auto& parse : {parse_completion, parse_chat}) {
      try {
        const auto call = parse(body, model.served, "7");
        ++num_calls;
        if (call->requests[0].params.n < 100) run(*call, random);
      } catch (const ApiError& error) {
        ++num_errors;
        EXPECT_TRUE(error.status() == 400 || error.status() == 404) << body;
        EXPECT_TRUE(Json::accept(error_body(error.status(), error.what(), error.param())));
      }
    }
    for (const auto& answer : {tokenize_body, detokenize_body}) {
      try {
        EXPECT_TRUE(Json::accept(answer(body, model.served)));
      } catch (const ApiError& error) {
        EXPECT_TRUE(error.status() == 400 || error.status() == 404) << body;
      }
    }
  }
  EXPECT_GT(num_calls, 100);
  EXPECT_GT(num_errors, 100);
}

}  // namespace
}  // namespace nanovllm::server
