#include "server/transcript/transcript_parser.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <random>

#include "nanovllm/error.h"
#include "server/transcript/transcript_testing.h"

namespace nanovllm::server {
namespace {

std::vector<TranscriptCase> reasoning_cases() {
  std::vector<TranscriptCase> cases;
  for (const char* name : {"qwen3", "deepseek_r1"}) {
    const std::vector<TranscriptCase> both = {
        {name, "", "", {}},
        {name, "", "<think>\nhm\n</think>\n\nHi", {"\nhm\n", "\n\nHi"}},
        {name, "", "hm</think>Hi", {"hm", "Hi"}},
        {name, "", "hm</think>Hi", {"hm", "Hi"}, "<|im_start|>assistant\n<think>\n"},
        {name, "", "hm", {"hm", ""}},
        {name, "", "<think>1 < 2, </thin> </think", {"1 < 2, </thin> </think", ""}},
        {name, "", "<think>a<think>b</think></think>c", {"a<think>b", "</think>c"}},
        {name, "", "\n<think>a</think>b", {"\na", "b"}},
        {name, "", "a<think>b</think>c", {"a<think>b", "c"}},
        {name, "", "aaa</think>bbb<think>ccc</think>ddd", {"aaa", "bbb<think>ccc</think>ddd"}},
        {name, "", "a</think>x.replace('</think>', '')", {"a", "x.replace('</think>', '')"}},
        {name, "", "x.replace('</think>', '')", {"", "x.replace('</think>', '')"}, kReasoningOff},
        {name, "", "Hi <think>there", {"", "Hi <think>there"}, kReasoningOff},
        {name, "", "Hi", {"", "Hi"}, "<｜Assistant｜><think></think>"},
        // Of another turn.
        {name, "", "a</think>b", {"a", "b"}, "<think></think><|im_start|>assistant\n"},
        {name, "", "a</think>b", {"a", "b"}, "</think>x<｜Assistant｜><think>\n"},
        {name, "", "a<b<c</think>x<", {"a<b<c", "x<"}},
        {name, "", "<think>é<日本></think>🙂<", {"é<日本>", "🙂<"}},
        {name, "hermes", "<think>x</think>\n\n" + kOneCall, {"x", "", {{"f", "{\"x\": 1}"}}}},
        {name, "hermes", "x</think>ok" + kOneCall, {"x", "ok" + kOneCall}, "", false},
        {name,
         "llama3_json",
         "x</think>{\"name\":\"f\",\"parameters\":{}}",
         {"x", "", {{"f", "{}"}}}},
        {name, "mistral", "x</think>[TOOL_CALLS]f{}", {"x", "", {{"f", "{}"}}}},
    };
    cases.insert(cases.end(), both.begin(), both.end());
  }
  cases.push_back({"qwen3", "hermes", "x" + kOneCall, {"x", "", {{"f", "{\"x\": 1}"}}}});
  cases.push_back({"qwen3", "hermes", "x" + kOneCall, {"x" + kOneCall, ""}, "", false});
  const TranscriptCalls one = {{"f", "{\"x\": 1}"}}, two = {one[0], one[0]};
  const auto add = [&](const std::string& text, const TranscriptAnswer& answer) {
    cases.push_back({"qwen3", "hermes", text, answer});
  };
  // Calls in a thought that is never closed behind them.
  add("x\n" + kOneCall + "\n" + kOneCall + "\n", {"x\n", "", two});
  add("x" + kOneCall + " y", {"x", " y", one});
  add("x<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}", {"x", "", one});
  add("x<tool_call>" + kOneCall, {"x<tool_call>", "", one});
  // Those that a thought talks about.
  add("x" + kOneCall + " y</think>z", {"x" + kOneCall + " y", "z"});
  add(kOneCall + kOneCall + "</think>" + kOneCall, {kOneCall + kOneCall, "", one});
  add("x<tool_call>{\"name\": \"f\", \"arguments\": {</think>z",
      {"x<tool_call>{\"name\": \"f\", \"arguments\": {", "z"});
  for (const char* text : {"<tool_call>", "I take <tool_call> here", "<tool_call>{\"name\": \"f\"",
                           "<tool_call>{\"name\": \"f\"}</tool_call> y"}) {
    add(text, {text, ""});
    add(text + std::string("</think>z"), {text, "z"});
  }
  cases.push_back({"qwen3",
                   "mistral",
                   "x[TOOL_CALLS] [{\"name\": \"f\"}]</think>z",
                   {"x[TOOL_CALLS] [{\"name\": \"f\"}]", "z"}});
  cases.push_back({"qwen3", "mistral", "x[TOOL_CALLS] [", {"x[TOOL_CALLS] [", ""}});
  cases.push_back({"qwen3", "mistral", "x[TOOL_CALLS]f{}", {"x", "", {{"f", "{}"}}}});
  cases.push_back({"deepseek_r1", "hermes", "x" + kOneCall, {"x" + kOneCall, ""}});
  cases.push_back({"", "", "<think>x</think>y", {"", "<think>x</think>y"}});
  return cases;
}

std::vector<TranscriptCase> hermes_cases() {
  const auto call = [](const std::string& json) { return "<tool_call>" + json + "</tool_call>"; };
  const std::string nested = R"({"a": {"b": [1, {"c": "}]{[\"\\"}]}, "d": "é🙂\u00e9\n"})";
  std::vector<TranscriptCase> cases;
  const auto add = [&](const std::string& text, const TranscriptAnswer& answer) {
    cases.push_back({"", "hermes", text, answer});
  };
  add("", {});
  add("Hello", {"", "Hello"});
  add(" \n", {"", " \n"});
  add("1 < 2 <tool <tool_call", {"", "1 < 2 <tool <tool_call"});
  add("<", {"", "<"});
  add(kOneCall, {"", "", {{"f", "{\"x\": 1}"}}});
  add("\n\n" + kOneCall + "\n", {"", "", {{"f", "{\"x\": 1}"}}});
  add("Let me see. \n" + kOneCall, {"", "Let me see. \n", {{"f", "{\"x\": 1}"}}});
  add("\n a" + kOneCall, {"", "\n a", {{"f", "{\"x\": 1}"}}});
  add(kOneCall + "\nand\n" + kOneCall + "tail <",
      {"", "\nand\ntail <", {{"f", "{\"x\": 1}"}, {"f", "{\"x\": 1}"}}});
  add(kOneCall + kOneCall, {"", "", {{"f", "{\"x\": 1}"}, {"f", "{\"x\": 1}"}}});
  add(call("{\"name\":\"g\",\"arguments\":" + nested + "}"), {"", "", {{"g", nested}}});
  add(call(" {\n \"name\" : \"g\" , \"arguments\" :  { } \t} "), {"", "", {{"g", "{ }"}}});
  add(call(R"({"arguments": {"x": [2]}, "name": "late"})"), {"", "", {{"late", "{\"x\": [2]}"}}});
  add(call(R"({"id": "1\"", "name": "g", "n": -1.5e3, "arguments": {}, "more": {"name": "h"}})"),
      {"", "", {{"g", "{}"}}});
  add(call(R"({"na\u006de": "\u00fc\"", "arguments": {}})"), {"", "", {{"ü\"", "{}"}}});
  for (const char* value : {"null", "12", "-0.5", "true", "[1, {}]", "\"{\\\"x\\\": 1}\""}) {
    add(call(std::string(R"({"name": "g", "arguments": )") + value + "}"),
        {"", "", {{"g", value}}});
    add(call(std::string(R"({"arguments":)") + value + R"( , "name": "g"})"),
        {"", "", {{"g", value}}});
  }
  // No calls: text, with the tags.
  for (const char* json : {"",
                           "hello",
                           "{}",
                           "{",
                           "[]",
                           R"({"name": "f"})",
                           R"({"arguments": {}})",
                           R"({"name")",
                           R"({"name": 1, "arguments": {}})",
                           R"({"name": "", "arguments": {}})",
                           R"({"name": "f", "arguments": })",
                           R"({"name": "f", "arguments": nul})",
                           R"({"name": "f" "arguments": {}})",
                           R"({name: "f", "arguments": {}})",
                           "{{",
                           "{]",
                           R"({"name": "\q", "arguments": {}})",
                           R"({"name": "\ud800", "arguments": {}})",
                           R"({"name": "f", "parameters": {}})",
                           R"({"arguments": {x}, "name": "f"})",
                           R"({"name": "f", "arguments": 1"2"})",
                           R"("{\"name\": \"f\"}")",
                           "\n<function=f>\n<parameter=x>1</parameter></function>\n"}) {
    add(call(json), {"", call(json)});
    const std::string text = fmt::format("a{}b <", call(json));
    add(text, {"", text});
    add(call(json) + kOneCall + "b", {"", call(json) + "b", {{"f", "{\"x\": 1}"}}});
    // Not closed.
    const std::string open = fmt::format("a<tool_call>{}", json);
    add(open, {"", open});
    add(open + kOneCall, {"", open, {{"f", "{\"x\": 1}"}}});
  }
  add(kOneCall + " a " + call("{}") + " b", {"", " a " + call("{}") + " b", {{"f", "{\"x\": 1}"}}});
  // Breaking off in the arguments.
  for (const char* arguments : {"{", R"({"x")", R"({"x": "ab)", R"({"x": "\)", R"({"x": [{}, )"}) {
    const std::string text = std::string(R"(<tool_call>{"name": "f", "arguments": )") + arguments;
    const TranscriptCalls calls = {{"f", arguments}};
    add(text, {"", "", calls});
    add(text + "</tool_call>tail", {"", "tail", calls});
    add(text + kOneCall, {"", "", {calls[0], {"f", "{\"x\": 1}"}}});
  }
  add(R"(<tool_call>{"name": "f", "arguments": {x: <1}}</tool_call>)",
      {"", "", {{"f", "{x: <1}"}}});
  add(R"(<tool_call>{"name": "f", "arguments": {}} x {"name": "g", "arguments": {}})",
      {"", R"( x {"name": "g", "arguments": {}})", {{"f", "{}"}}});
  add(R"(<tool_call>{"name": "f", "arguments": {}}} </tool_call> )", {"", "}  ", {{"f", "{}"}}});
  add(R"(<tool_call>{"name": "f", "arguments": {}} </tool_call></tool_call>)",
      {"", "</tool_call>", {{"f", "{}"}}});
  add("</tool_call>a" + kOneCall, {"", "</tool_call>a", {{"f", "{\"x\": 1}"}}});
  return cases;
}

std::vector<TranscriptCase> llama_cases() {
  const std::string tag = "<|python_tag|>";
  const std::string f = R"({"name": "f", "parameters": {"x": "1; {\""}})";
  const TranscriptCalls one = {{"f", R"({"x": "1; {\""})"}};
  const TranscriptCalls two = {one[0], one[0]};
  std::vector<TranscriptCase> cases;
  const auto add = [&](const std::string& text, const TranscriptAnswer& answer) {
    cases.push_back({"", "llama3_json", text, answer});
  };
  add("", {});
  add("\n", {"", "\n"});
  add("Hello {} <|python", {"", "Hello {} <|python"});
  add(" <", {"", " <"});
  add("Use " + f, {"", "Use " + f});
  add(f, {"", "", one});
  add("\n\n" + f + "\n", {"", "", one});
  add(tag + f, {"", "", one});
  add("\n" + tag + " " + f, {"", "", one});
  add("ok " + tag + f, {"", "ok ", one});
  add(f + "; " + f, {"", "", two});
  add(f + ";" + f + ";", {"", "", two});
  add(f + f, {"", "", two});
  add(tag + f + " and " + tag + f, {"", " and ", two});
  add(tag + f + "; " + f + ";", {"", "", two});
  add(tag + f + " a {b} " + f, {"", " a {b} " + f, one});
  add(f + " a; " + tag + f + "; b", {"", " a; ; b", two});
  add(R"({"name": "f", "arguments": {}, "parameters": {"x": 1}})", {"", "", {{"f", "{}"}}});
  add(R"({"type": "function", "name": "f", "parameters": {"a": {"b": {}}}})",
      {"", "", {{"f", R"({"a": {"b": {}}})"}}});
  add(tag + "print('hi')", {"", "print('hi')"});
  add(R"({"city": "Paris"} yes)", {"", R"({"city": "Paris"} yes)"});
  add(R"({"name": "f", "parameters": )", {"", R"({"name": "f", "parameters": )"});
  add(R"({"name": "f", "parameters": {"x")", {"", "", {{"f", R"({"x")"}}});
  // Without a tag it is calls where all that begins as such is.
  add(f + " I used it; so " + f + ", that's it.", {"", " I used it; so , that's it.", two});
  for (const char* behind :
       {R"(; {"name": "g"})", R"(; {"name": "g")", " I used {tool} for this.", " {", " a {} b"}) {
    add(f + behind, {"", f + behind});
    add("\n" + f + f + behind + f, {"", "\n" + f + f + behind + f});
    add(f + behind + tag + f, {"", f + behind, one});
  }
  add(R"({"name":"i","parameters":{"x":9}} I used {tool} for this.)",
      {"", R"({"name":"i","parameters":{"x":9}} I used {tool} for this.)"});
  cases.push_back({"", "llama3_json", f, {"", f}, "", false});
  return cases;
}

std::vector<TranscriptCase> mistral_cases() {
  const std::string tag = "[TOOL_CALLS]";
  const std::string f = R"({"name": "f", "arguments": {"x": "]{"}})";
  const TranscriptCalls one = {{"f", R"({"x": "]{"})"}};
  const TranscriptCalls two = {one[0], one[0]};
  std::vector<TranscriptCase> cases;
  const auto add = [&](const std::string& text, const TranscriptAnswer& answer) {
    cases.push_back({"", "mistral", text, answer});
  };
  add("", {});
  add("a [1] [TOOL", {"", "a [1] [TOOL"});
  add(f, {"", f});
  add(tag + " [" + f + "]", {"", "", one});
  add(tag + "[" + f + ", " + f + "]", {"", "", two});
  add("ok " + tag + " [\n" + f + "\n,\n" + f + "\n] tail {}", {"", "ok  tail {}", two});
  add(tag + f + " tail " + f, {"", " tail " + f, one});
  add(tag + "[" + f + "\n] \n", {"", "", one});
  add(tag + "[" + f + "] , ", {"", " , ", one});
  add(tag + R"([{"name": "f"}])", {"", "", {{"f", "{}"}}});
  add(tag + R"([{"name": "f", "arguments": null}])", {"", "", {{"f", "{}"}}});
  add(tag + R"([{"arguments": "{\"x\": \"\u00e9\"}", "name": "f"}])",
      {"", "", {{"f", R"({"x": "é"})"}}});
  add(tag + R"(f{"x": "]{"})", {"", "", one});
  add(tag + R"( f {"x": "]{"} tail {})", {"", " tail {}", one});
  add(tag + R"(f[ARGS]{"x": "]{"})" + tag + R"(f[CALL_ID]a1b2[ARGS] {"x": "]{"})", {"", "", two});
  add("a" + tag + "ns.f-1:x/y{}", {"", "a", {{"ns.f-1:x/y", "{}"}}});
  add(tag + "f{\"x\": [", {"", "", {{"f", "{\"x\": ["}}});
  add(tag + "f{\"x\": " + tag + "g{}", {"", "", {{"f", "{\"x\": "}, {"g", "{}"}}});
  add(tag + tag + "f{}", {"", "", {{"f", "{}"}}});
  // No calls: text, without the tag.
  for (const char* text : {"", " ", " [", "[]", "[ 1, 2]", " I would call {}", "[{}]", "{\"a\": 1}",
                           "f", "f g{}", "(", "[ARGS]{}", "f[ARGS", "f] g {", "[[{}]]"}) {
    add(tag + text, {"", text});
    add("a" + tag + text + tag + "f{}", {"", std::string("a") + text, {{"f", "{}"}}});
  }
  add(tag + "[" + f + ", {}, " + f + "]" + tag + "g{}",
      {"", ", {}, " + f + "]", {one[0], {"g", "{}"}}});
  cases.push_back({"", "mistral", tag + f, {"", tag + f}, "", false});
  return cases;
}

std::vector<TranscriptCase> all_cases() {
  std::vector<TranscriptCase> all;
  for (const auto& cases : {reasoning_cases(), hermes_cases(), llama_cases(), mistral_cases()}) {
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

TEST(TranscriptParser, TakesTranscriptsApart) {
  for (const TranscriptCase& c : all_cases()) {
    EXPECT_EQ(parse_transcript(c, {}), c.answer)
        << c.reasoning_parser << " " << c.tool_call_parser << ": " << c.text;
  }
}

TEST(TranscriptParser, AnySplitAddsUpToTheWhole) {
  std::mt19937 random(1);
  for (const TranscriptCase& c : all_cases()) expect_same_for_all_cuts(c, c.answer, random);
}

TEST(TranscriptParser, StreamsArgumentsOnceTheNameIsKnown) {
  const auto parser = make_transcript_parser({"", "hermes"}, {}, "", &no_schemas());
  EXPECT_EQ(parser->append("<tool_call>{\"name\": \"f\", \"arguments\":", {}), TranscriptDelta{});
  EXPECT_EQ(parser->append(" {\"x\":", {}), (TranscriptDelta{"", "", {{0, "f", "{\"x\":"}}}));
  EXPECT_EQ(parser->append(" \"a", {}), (TranscriptDelta{"", "", {{0, "", " \"a"}}}));
  EXPECT_EQ(parser->append("<", {}), TranscriptDelta{});
  EXPECT_EQ(parser->append("b\"}}", {}), (TranscriptDelta{"", "", {{0, "", "<b\"}"}}}));
  EXPECT_EQ(parser->append("</tool_call>", {}), TranscriptDelta{});
  EXPECT_EQ(parser->finish(), TranscriptDelta{});
}

TEST(TranscriptParser, HoldsBackWhatFollowsACallInAThought) {
  const std::string text = "x" + kOneCall;
  const auto open = make_transcript_parser({"qwen3", "hermes"}, {}, "", &no_schemas());
  EXPECT_EQ(open->append(text, {}), (TranscriptDelta{"x", "", {}}));
  EXPECT_EQ(open->append(" y", {}), TranscriptDelta{});
  EXPECT_EQ(open->finish(), (TranscriptDelta{"", " y", {{0, "f", "{\"x\": 1}"}}}));
  const auto closed = make_transcript_parser({"qwen3", "hermes"}, {}, "", &no_schemas());
  EXPECT_EQ(closed->append(text, {}), (TranscriptDelta{"x", "", {}}));
  EXPECT_EQ(closed->append(" y</think>z", {}), (TranscriptDelta{kOneCall + " y", "z", {}}));
  const auto none = make_transcript_parser({"qwen3", "hermes"}, {}, "", &no_schemas());
  EXPECT_EQ(none->append("x<tool_call> ", {}), (TranscriptDelta{"x", "", {}}));
  EXPECT_EQ(none->append("is", {}), (TranscriptDelta{"<tool_call> is", "", {}}));
}

TEST(TranscriptParser, HoldsBackAnAnswerThatBeginsWithACallWithoutATag) {
  const std::string call = R"({"name": "f", "parameters": {}})";
  const auto parser = make_transcript_parser({"", "llama3_json"}, {}, "", &no_schemas());
  EXPECT_EQ(parser->append(call + " and ", {}), TranscriptDelta{});
  EXPECT_EQ(parser->append("{x", {}), (TranscriptDelta{"", call + " and {x", {}}));
  EXPECT_EQ(parser->append("}", {}), (TranscriptDelta{"", "}", {}}));
}

TEST(TranscriptParser, ShowsTextThatIsNoTagAtOnce) {
  const auto parser = make_transcript_parser({"qwen3", "hermes"}, {}, "", &no_schemas());
  EXPECT_EQ(parser->append("think <t", {}), (TranscriptDelta{"think ", "", {}}));
  EXPECT_EQ(parser->append("d>", {}), (TranscriptDelta{"<td>", "", {}}));
  EXPECT_EQ(parser->append("</think>a", {}), (TranscriptDelta{"", "a", {}}));
  EXPECT_EQ(parser->append(" b\n", {}), (TranscriptDelta{"", " b\n", {}}));
}

// Many calls in one piece take 0.1 s each time, and minutes if what looks ahead looks to the end.
TEST(TranscriptParser, TakesTimeInProportionToTheText) {
  const auto start = std::chrono::steady_clock::now();
  const std::string listed = R"({"name": "f", "arguments": {"x": 1}}, )";
  const std::pair<const char*, std::array<std::string, 2>> cases[] = {
      {"hermes", {"", kOneCall}},
      {"llama3_json", {"", listed}},
      {"mistral", {"[TOOL_CALLS] [", listed}},
      {"granite", {"<|tool_call|>[", listed}},
      {"qwen3_coder",
       {"", "<tool_call><function=f><parameter=x>1</parameter></function></tool_call>"}},
      {"glm45", {"", "<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>"}},
      {"olmo3", {"<function_calls>", "f(x=1)\n"}},
      {"openai",
       {"", "<|channel|>commentary to=functions.f<|message|>{}<|call|><|start|>assistant"}},
  };
  for (const auto& [name, parts] : cases) {
    std::string text = parts[0];
    for (int i = 0; i < 40'000; ++i) text += parts[1];
    const auto parser = make_transcript_parser({"", name}, {}, "", &no_schemas());
    const size_t num_shown = parser->append(text, {}).tool_calls.size();
    const size_t num_held = parser->finish().tool_calls.size();
    EXPECT_EQ(name == std::string_view("llama3_json") ? num_held : num_shown, 40'000u) << name;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(TranscriptParser, TakesTimeInProportionToTheBlanks) {
  const auto start = std::chrono::steady_clock::now();
  for (const std::string text : {"", "[TOOL_CALLS]"}) {
    const auto parser =
        make_transcript_parser({.tool_call_parser = "mistral"}, {}, "", &no_schemas());
    TranscriptClient client;
    client.add(parser->append(text, {}));
    for (int i = 0; i < 300'000; ++i) client.add(parser->append("\n", {}));
    client.add(parser->finish());
    EXPECT_EQ(client.answer.content, std::string(300'000, '\n'));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(TranscriptParser, RefusesUnknownNames) {
  EXPECT_EQ(reasoning_parsers(),
            (std::vector<std::string>{"qwen3", "deepseek_r1", "glm45", "glm47", "granite",
                                      "mistral", "olmo3", "openai_gptoss"}));
  EXPECT_EQ(tool_call_parsers(), (std::vector<std::string>{"hermes", "llama3_json", "mistral",
                                                           "qwen3_coder", "qwen3_xml", "glm45",
                                                           "glm47", "granite", "olmo3", "openai"}));
  EXPECT_THROW(make_transcript_parser({"harmony", ""}, {}, "", &no_schemas()), Error);
  EXPECT_THROW(make_transcript_parser({"", "pythonic"}, {}, "", nullptr), Error);
  const auto mixed = [](const TranscriptFormat& format) {
    try {
      make_transcript_parser(format, {}, "", nullptr);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(mixed({"openai_gptoss", "hermes"}),
            "--reasoning-parser openai_gptoss and --tool-call-parser hermes do not fit together: "
            "openai_gptoss goes with openai alone");
  EXPECT_NE(mixed({"qwen3", "openai"}), "");
  EXPECT_EQ(mixed({"", "openai"}), "");
  EXPECT_EQ(mixed({"openai_gptoss", ""}), "");
}

}  // namespace
}  // namespace nanovllm::server
