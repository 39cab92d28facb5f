#include "server/transcript/call_scanner.h"

#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <ostream>
#include <random>
#include <vector>

#include "server/transcript/call_scanners.h"
#include "server/transcript/pythonic_json.h"

namespace nanovllm::server {
namespace {

const ToolTypes& scanned_tools() {
  static const ToolTypes tools(nlohmann::ordered_json::parse(R"([{"type": "function", "function": {
    "name": "f", "parameters": {"type": "object",
      "$defs": {"Place": {"type": "object"}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}]}},
      "properties": {
        "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"},
        "b": {"type": "boolean"}, "o": {"type": "object"}, "a": {"type": "array"},
        "sn": {"type": ["string", "null"]}, "any_of": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "e": {"enum": [1, 2]}, "es": {"enum": ["1", "2"]}, "place": {"$ref": "#/$defs/Place"},
        "loop": {"$ref": "#/$defs/Loop"}, "lost": {"$ref": "#/$defs/None"}, "py": {"type": "Dict[str, int]"},
        "free": {}}}}},
    {"type": "function", "function": {"name": "g"}}])"));
  return tools;
}

struct ScannedCall {
  std::string name, arguments;
  size_t taken = 0;
  bool is_call = false, is_done = false;
  bool operator==(const ScannedCall&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const ScannedCall& call) {
    return out << call.name << "(" << call.arguments << ") " << call.taken << " " << call.is_call
               << call.is_done;
  }
};

// In pieces of at most so many bytes; 0 = in random ones.
ScannedCall scan(const CallSyntax& syntax, const std::string& text, bool closes, size_t piece) {
  static std::mt19937 random(1);
  const auto scanner = make_call_scanner(syntax, &scanned_tools());
  ScannedCall call;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view given = rest.substr(0, piece > 0 ? piece : 1 + random() % 9);
    const size_t taken = scanner->read(given);
    call.arguments += scanner->take_arguments();
    call.taken += taken;
    if (taken < given.size() || scanner->is_done() || scanner->is_no_call()) break;
    rest.remove_prefix(given.size());
  }
  if (closes) scanner->close();
  call.arguments += scanner->take_arguments();
  call.is_call = scanner->is_call();
  call.is_done = scanner->is_done();
  if (call.is_call) call.name = scanner->name();
  return call;
}

void expect_call(const CallSyntax& syntax, const std::string& text, const std::string& name,
                 const std::string& arguments, bool closes = true) {
  const ScannedCall whole = scan(syntax, text, closes, text.size() + 1);
  EXPECT_TRUE(whole.is_call) << text;
  EXPECT_EQ(whole.name, name) << text;
  EXPECT_EQ(whole.arguments, arguments) << text;
  EXPECT_EQ(scan(syntax, text, closes, 1), whole) << text;
  for (int round = 0; round < 20; ++round) EXPECT_EQ(scan(syntax, text, closes, 0), whole) << text;
}

void expect_none(const CallSyntax& syntax, const std::string& text, bool closes = true) {
  for (const size_t piece : {text.size() + 1, size_t{1}, size_t{0}}) {
    EXPECT_FALSE(scan(syntax, text, closes, piece).is_call) << text;
  }
}

const CallSyntax kCoderCalls = {.form = CallForm::kTagged, .tagged = &kQwen3CoderCall};
const CallSyntax kGlmCalls = {.form = CallForm::kTagged, .tagged = &kGlmCall};
const CallSyntax kPythonicCalls = {.form = CallForm::kPythonic};

std::string coder_call(const std::string& argument, const std::string& value) {
  return "\n<function=f>\n<parameter=" + argument + ">\n" + value + "\n</parameter>\n</function>\n";
}

TEST(TaggedCalls, ValuesGetTheTypesOfTheSchema) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"s", "5", R"("5")"},
      {"s", "null", R"("null")"},
      {"s", "a \"b\"\\\n\tc</p> é\x01", R"("a \"b\"\\\n\tc</p> é\u0001")"},
      {"s", "", R"("")"},
      {"s", "\n  x\n\n", R"("\n  x\n\n")"},
      {"i", "5", "5"},
      {"i", " -12 ", "-12"},
      {"i", "123456789012345678901234567890", "123456789012345678901234567890"},
      {"i", "5.0", "5.0"},
      {"i", "five", R"("five")"},
      {"i", "01", R"("01")"},
      {"n", "-1.5e3", "-1.5e3"},
      {"n", "7", "7"},
      {"n", "nan", R"("nan")"},
      {"n", "1e999", R"("1e999")"},
      {"b", "true", "true"},
      {"b", "False", "false"},
      {"b", "0", "false"},
      {"b", "yes", R"("yes")"},
      {"o", R"({"x": [1, {"y": "</parameter"}]})", R"({"x": [1, {"y": "</parameter"}]})"},
      {"o", R"({'x': True, 'y': None, "z": 'it\'s "so"'})",
       R"({"x": true, "y": null, "z": "it's \"so\""})"},
      {"o", "{x", R"("{x")"},
      {"a", "[1,\n 2]", "[1,\n 2]"},
      {"a", "('a', (1, 2))", R"j("('a', (1, 2))")j"},
      {"a", "['a', (1, 2)]", R"(["a", [1, 2]])"},
      {"sn", "null", "null"},
      {"sn", "nul", R"("nul")"},
      {"any_of", "None", "null"},
      {"any_of", "3", "3"},
      {"e", "2", "2"},
      {"es", "2", R"("2")"},
      {"place", R"({"x": 1})", R"({"x": 1})"},
      {"loop", "1", R"("1")"},
      {"lost", "1", R"("1")"},
      {"py", R"({"a": 1})", R"({"a": 1})"},
      {"free", "1", R"("1")"},
      {"unknown", "1", R"("1")"},
  };
  for (const auto& [argument, value, json] : cases) {
    const std::string arguments = "{\"" + argument + "\": " + json + "}";
    EXPECT_TRUE(nlohmann::json::accept(arguments)) << arguments;
    expect_call(kCoderCalls, coder_call(argument, value), "f", arguments);
    expect_call(kGlmCalls,
                "f\n<arg_key>" + argument + "</arg_key>\n<arg_value>" + value + "</arg_value>\n",
                "f", arguments);
  }
  expect_call(kCoderCalls, "<function=g><parameter=i>1</parameter></function>", "g",
              R"({"i": "1"})");
  expect_call(kCoderCalls, "<function=other><parameter=i>1</parameter></function>", "other",
              R"({"i": "1"})");
}

TEST(TaggedCalls, AreReadAsQwen3CoderWritesThem) {
  expect_call(kCoderCalls, "<function=f>\n</function>", "f", "{}");
  expect_call(kCoderCalls, "<function=f></function>", "f", "{}");
  expect_call(kCoderCalls,
              "<function=f>\n<parameter=i>\n1\n</parameter>\n<parameter=s>\n2\n</parameter>\n"
              "</function>",
              "f", R"({"i": 1, "s": "2"})");
  // What models forget.
  expect_call(kCoderCalls, "<function=f>\n<parameter=i>\n1\n<parameter=s>\n2\n</function>\n", "f",
              R"({"i": 1, "s": "2"})");
  expect_call(kCoderCalls, "<function=f>\n<parameter=i>\n1\n</parameter>\n", "f", R"({"i": 1})");
  // Other text between arguments ends it.
  expect_call(kCoderCalls, "<function=f> <parameter=i>1</parameter> x<parameter=s>2</parameter>",
              "f", R"({"i": 1})");
  // Only at the beginning of a line.
  expect_call(kCoderCalls, coder_call("s", "a</function> <parameter=b>"), "f",
              R"({"s": "a</function> <parameter=b>"})");
  // Breaking off.
  expect_call(kCoderCalls, "<function=f>\n<parameter=s>\nab</par", "f", R"({"s": "ab)");
  expect_call(kCoderCalls, "<function=f>\n<parameter=i>\n12", "f", R"({"i": )");
  expect_call(kCoderCalls, "<function=f>\n<parameter=", "f", "");
  for (const char* text : {"", "f", "<function", "<function=>", "<function=f", "<function=f>",
                           "<function=f>\n", "<function=f> x <parameter=i>1</parameter>",
                           "<function=a b></function>", "{\"name\": \"f\", \"arguments\": {}}"}) {
    expect_none(kCoderCalls, text);
  }
}

TEST(TaggedCalls, AreReadAsGlmWritesThem) {
  expect_call(kGlmCalls, "f", "f", "{}");
  expect_call(kGlmCalls, "\nf\n", "f", "{}");
  expect_call(kGlmCalls, "f<arg_key>i</arg_key><arg_value>1</arg_value>", "f", R"({"i": 1})");
  expect_call(kGlmCalls,
              "f\n<arg_key>i</arg_key>\n<arg_value>1</arg_value>\n<arg_key>s</arg_key>\n"
              "<arg_value>\n2\n</arg_value>\n",
              "f", R"({"i": 1, "s": "\n2\n"})");
  expect_call(kGlmCalls, "f\n<arg_key>s</arg_key>\n<arg_value>ab</arg", "f", R"({"s": "ab)", false);
  expect_call(kGlmCalls, "f\n<arg_key>i", "f", "", false);
  expect_call(kGlmCalls, "f\n<arg_key>i</arg_key> 1", "f", "{}", false);
  expect_none(kGlmCalls, "f", false);
  for (const char* text : {"", "two words", "<arg_key>i</arg_key>", "{}", "f\n<arg_"}) {
    expect_none(kGlmCalls, text);
  }
}

TEST(JsonCalls, HaveArgumentsInAStringWhereItHoldsAnObject) {
  const CallSyntax lenient = {.form = CallForm::kJson, .lenient_arguments = true};
  const auto call = [](const std::string& arguments) {
    return R"({"name": "f", "arguments": )" + arguments + "}";
  };
  expect_call(lenient, call(R"(" {\"x\": 1}")"), "f", R"( {"x": 1})");
  for (const std::string text : {R"("hello")", R"("")", R"("{")", R"("[1]")", R"("5")"}) {
    expect_call(lenient, call(text), "f", text);
  }
  expect_call(lenient, call("null"), "f", "{}");
}

TEST(PythonicCalls, BecomeJson) {
  expect_call(kPythonicCalls, "f()", "f", "{}");
  expect_call(kPythonicCalls, "\n ns.f( )", "ns.f", "{}");
  expect_call(kPythonicCalls, "f(x=1)", "f", R"({"x": 1})");
  expect_call(kPythonicCalls, "f(x = -1.5e3, y=\"a, b)\", )", "f",
              R"j({"x": -1.5e3, "y": "a, b)"})j");
  expect_call(kPythonicCalls, R"j(f(a=[1, {"b": null}], c='it\'s', d=True, e=(1, 2)))j", "f",
              R"({"a": [1, {"b": null}], "c": "it's", "d": true, "e": [1, 2]})");
  expect_call(kPythonicCalls, R"j(f(x="\u00e9\n\"", y=2))j", "f", R"({"x": "\u00e9\n\"", "y": 2})");
  // Breaking off.
  expect_call(kPythonicCalls, "f(x=\"ab", "f", R"({"x": "ab)");
  expect_call(kPythonicCalls, "f(x=", "f", R"({"x": )");
  // A bracket that closes none ends it.
  expect_call(kPythonicCalls, "f(x=1])\ng(y=2)", "f", R"({"x": 1)");
  expect_call(kPythonicCalls, "f(x=[1]})", "f", R"({"x": [1])");
  EXPECT_EQ(scan(kPythonicCalls, "f(x=1])\ng(y=2)", false, 1).taken, 5U);
  expect_call(kPythonicCalls, "f(x=\"\"\"a\"\"\", y=2)", "f", R"({"x": "a", "y": 2})");
  expect_call(kPythonicCalls, "f(x='''a 'b' \"c\", \n''')", "f", R"({"x": "a 'b' \"c\", \n"})");
  expect_call(kPythonicCalls, "f(x=\"\"\"\"\"\", y='', z=['a''b', \"\"])", "f",
              R"({"x": "", "y": "", "z": ["ab", ""]})");
  for (const char* text : {"", "f", "f(", "f(x", "f(x)", "f(1)", "f(\"a\")", "(x=1)", "1 + 1",
                           "two words(x=1)", "{\"name\": \"f\"}"}) {
    expect_none(kPythonicCalls, text);
  }
}  // namespace

TEST(PythonicJson, IsWhatPythonMeans) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", ""},
      {"True", "true"},
      {"None", "null"},
      {"true", "true"},
      {"x", "\"x\""},
      {"'\"'", R"("\"")"},
      {R"('\x41\t\q\\')", R"("\u0041\t\\q\\")"},
      {"'a\nb'", R"("a\nb")"},
      {"'a\\\nb'", R"("ab")"},
      {"{'a': [1, (2, False)]}", R"({"a": [1, [2, false]]})"},
      {R"({"a": ["b\"", 1e5, null]})", R"({"a": ["b\"", 1e5, null]})"},
  };
  for (const auto& [python, json] : cases) {
    PythonicJson reader;
    std::string text;
    for (const char byte : python) text += reader.take(byte);
    EXPECT_EQ(text + reader.finish(), json) << python;
  }
}

}  // namespace
}  // namespace nanovllm::server
