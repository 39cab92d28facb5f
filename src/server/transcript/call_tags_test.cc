// What each parser's format declares of its calls: random outputs under the masks of a tag are read
// back as calls whose arguments fit their schemas.
#include "server/transcript/call_tags.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <random>

#include "grammar/testing.h"
#include "grammar/token_index.h"
#include "server/transcript/transcript_testing.h"

namespace nanovllm::server {
namespace {

using Json = nlohmann::ordered_json;

// Strings have bounds, so that random ones end.
const Json& call_tools() {
  static const Json kTools = Json::parse(R"([
    {"type": "function", "function": {"name": "get_weather", "parameters": {
      "type": "object", "properties": {
        "city": {"type": "string", "maxLength": 6},
        "days": {"type": "integer", "minimum": 1, "maximum": 99},
        "detailed": {"type": "boolean"},
        "kind": {"enum": ["rain", "<wind>", "a \"b\" \\ c"]},
        "place": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
        "parts": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2}},
      "required": ["city", "parts"], "additionalProperties": false,
      "$defs": {"place": {"type": "object", "properties": {
        "name": {"type": "string", "pattern": "^[a-z<>/\n]{0,9}$"}, "x": {"type": "number"}},
        "required": ["name"], "additionalProperties": false}}}}},
    {"type": "function", "function": {"name": "now", "parameters": {
      "type": "object", "properties": {}, "additionalProperties": false}}}])");
  return kTools;
}

Json strict_tools() {
  Json tools = call_tools();
  for (Json& tool : tools) tool["function"]["strict"] = true;
  return tools;
}

// What arguments are held to where no call must come: those of the others are an object.
Json bound_tools(Json tools) {
  for (Json& tool : tools) {
    Json& function = tool["function"];
    if (!function.value("strict", false)) function["parameters"] = {{"type", "object"}};
  }
  return tools;
}

std::string template_named(const std::string& name) {
  std::ifstream file(test::source_path("tests/data/chat_templates/" + name + ".jinja"));
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Declared {
  std::string parser, chat_template;  // a file of tests/data/chat_templates; empty = none
};

// All parsers, and those of one name whose templates differ.
std::vector<Declared> all_declared() {
  return {{"hermes", "Qwen-Qwen3-0.6B"},
          {"hermes", ""},
          {"llama3_json", ""},
          {"mistral", ""},
          {"mistral", "mistralai-Mistral-Nemo-Instruct-2407"},
          {"mistral", "mistralai-Ministral-3-14B-Reasoning-2512"},
          {"mistral", "Mistral-Small-3.2-24B-Instruct-2506"},
          {"qwen3_coder", "Qwen3-Coder"},
          {"qwen3_xml", ""},
          {"glm45", "GLM-4.6"},
          {"glm45", "GLM-4.7-Flash"},
          {"glm45", ""},
          {"glm47", ""},
          {"granite", "ibm-granite-granite-3.3-2B-Instruct"},
          {"granite", ""},
          {"olmo3", ""},
          {"openai", "openai-gpt-oss-120b"}};
}

// The demo's tokens, and the tags of all formats if `with_marks`.
struct Vocabulary {
  explicit Vocabulary(bool with_marks)
      : tokenizer(grammar::tokenizer_with_marks(
            with_marks ? std::vector<std::string>{"<tool_call>",      "</tool_call>",
                                                  "<arg_key>",        "</arg_key>",
                                                  "<arg_value>",      "</arg_value>",
                                                  "[TOOL_CALLS]",     "[ARGS]",
                                                  "[CALL_ID]",        "<|tool_call|>",
                                                  "<function_calls>", "</function_calls>",
                                                  "<|python_tag|>",   "<|start|>",
                                                  "<|channel|>",      "<|message|>",
                                                  "<|constrain|>",    "<|end|>",
                                                  "<|return|>",       "<|call|>"}
                       : std::vector<std::string>{})),
        compiler(*tokenizer) {}
  const std::unique_ptr<Tokenizer> tokenizer;
  const GrammarCompiler compiler;

  static const Vocabulary& of(bool with_marks) {
    static const Vocabulary kWith(true), kWithout(false);
    return with_marks ? kWith : kWithout;
  }
};

// What tokens at random hardly ever spell: it opens calls, and ends what has no bound.
constexpr const char* kRareTexts[] = {"<tool_call>",      "[TOOL_CALLS]",   "<|tool_call|>",
                                      "<function_calls>", "<|python_tag|>", "\n</parameter>",
                                      "</arg_value>"};

// A text as a model's tokens write it, with marks where tags are tokens.
struct Written {
  std::string text = {};
  std::vector<TokenMark> marks = {};
};

class Walk {
 public:
  Walk(const Declared& declared, bool with_marks)
      : format_{declared.parser == "openai" ? "openai_gptoss" : "", declared.parser},
        vocabulary_(Vocabulary::of(with_marks)),
        tags_(transcript_tags(format_, *vocabulary_.tokenizer)),
        chat_template_(declared.chat_template.empty() ? ""
                                                      : template_named(declared.chat_template)) {}

  std::string tag(const CallRules* rules, const Json* text = nullptr) const {
    return answer_tag(format_, tags_, chat_template_, "<|start|>assistant", rules, text);
  }
  std::shared_ptr<const Grammar> grammar(const CallRules* rules, const Json* text = nullptr) const {
    return vocabulary_.compiler.structural_tag(tag(rules, text));
  }

  // Tokens at random up to an end. Those that are more likely to lead there come more often.
  Written at_random(const Grammar& grammar, std::mt19937& random) const {
    Written out;
    GrammarState state = grammar.start();
    for (int i = 0; i < 5000; ++i) {
      const auto words = grammar.mask(state);
      std::vector<int32_t> open, likely, marks;
      for (int32_t id = 0; id < vocabulary_.compiler.tokens().vocab_size(); ++id) {
        if (((*words)[id / 32] >> id % 32 & 1) == 0) continue;
        open.push_back(id);
        const std::string_view bytes = vocabulary_.compiler.tokens().bytes(id);
        if (grammar::TokenIndex::has_symbol(bytes)) {
          marks.push_back(id);
        } else if (bytes.find_first_of("\"}])") != bytes.npos) {
          likely.push_back(id);
        }
      }
      if (grammar.is_accepting(state) && (open.empty() || random() % 4 == 0)) return out;
      EXPECT_FALSE(open.empty()) << "a dead end behind " << out.text;
      if (open.empty()) return out;
      if (random() % 4 == 0) {
        std::vector<std::string_view> rare;
        for (const std::string_view text : kRareTexts) {
          if (!grammar.is_dead(behind(grammar, state, text))) rare.push_back(text);
        }
        if (!rare.empty()) {
          const std::string_view text = rare[random() % rare.size()];
          state = behind(grammar, state, text);
          write(text, out);
          continue;
        }
      }
      const auto& from = !marks.empty() && random() % 4 == 0   ? marks
                         : likely.empty() || random() % 3 == 0 ? open
                                                               : likely;
      add(from[random() % from.size()], out);
      state = grammar.advance(state, last_);
      EXPECT_FALSE(grammar.is_dead(state));
    }
    ADD_FAILURE() << "no end of " << out.text;
    return out;
  }

  // As a model's tokens; `text` names the marks.
  bool accepts(const Grammar& grammar, std::string_view text) const {
    return grammar::accepts(grammar, vocabulary_.compiler.tokens().with_symbols(text));
  }

  TranscriptAnswer parsed(const Written& written, const Json& tools) const {
    const ToolTypes types(tools);
    const auto parser = make_transcript_parser(format_, tags_, "<|start|>assistant", &types);
    TranscriptClient client;
    client.add(parser->append(written.text, written.marks));
    client.add(parser->finish());
    return client.answer;
  }

  Written written(std::string_view text) const {
    Written out;
    write(text, out);
    return out;
  }

 private:
  GrammarState behind(const Grammar& grammar, GrammarState state, std::string_view text) const {
    return grammar.advance(state, vocabulary_.compiler.tokens().with_symbols(text));
  }

  void write(std::string_view text, Written& out) const {
    const std::string bytes = vocabulary_.compiler.tokens().with_symbols(text);
    for (size_t at = 0; at < bytes.size(); ++at) {
      const size_t end = bytes[at] == '\xFF' ? bytes.find('\xFF', at + 1) : at;
      const std::string_view one(bytes.data() + at, end - at + 1);
      if (one.size() == 1) {
        out.text += one;
      } else {
        const auto id = vocabulary_.tokenizer->token_to_id(one.substr(1, one.size() - 2));
        add(*id, out);
      }
      at = end;
    }
  }

  void add(int32_t id, Written& out) const {
    last_ = id;
    const std::string_view bytes = vocabulary_.compiler.tokens().bytes(id);
    if (!grammar::TokenIndex::has_symbol(bytes)) {
      out.text += bytes;
      return;
    }
    const std::string_view name = bytes.substr(1, bytes.size() - 2);
    if (tags_.ids.contains(name)) out.marks.push_back({out.text.size(), id});
    out.text += name;
  }

  const TranscriptFormat format_;
  const Vocabulary& vocabulary_;
  const TranscriptTags tags_;
  const std::string chat_template_;
  mutable int32_t last_ = 0;
};

// Each call's arguments fit its schema.
void expect_calls_fit(const TranscriptAnswer& answer, const Json& tools, const std::string& where) {
  for (const auto& [name, arguments] : answer.calls) {
    const auto tool =
        std::ranges::find_if(tools, [&](const Json& it) { return it["function"]["name"] == name; });
    ASSERT_NE(tool, tools.end()) << where;
    const auto schema =
        grammar::demo_compiler().json_schema((*tool)["function"]["parameters"].dump());
    ASSERT_TRUE(Json::accept(arguments)) << where;
    EXPECT_TRUE(grammar::accepts(*schema, Json::parse(arguments).dump())) << where;
  }
}

TEST(CallTags, EveryParserDeclaresHowItsCallsAreWritten) {
  std::vector<std::string> names = tool_call_parsers();
  for (const Declared& declared : all_declared()) std::erase(names, declared.parser);
  EXPECT_TRUE(names.empty()) << names[0];
}

TEST(CallTags, RandomOutputsAreCallsThatFitTheirSchemas) {
  std::mt19937 random(5);
  for (const Declared& declared : all_declared()) {
    for (const bool with_marks : {true, false}) {
      // Tokens at random hardly ever spell the tag that ends one of its thoughts.
      if (declared.parser == "openai" && !with_marks) continue;
      const Walk walk(declared, with_marks);
      for (const bool parallel : {true, false}) {
        const CallRules rules = {.tools = call_tools(), .must_call = true, .parallel = parallel};
        const auto grammar = walk.grammar(&rules);
        for (int round = 0; round < 15; ++round) {
          const Written written = walk.at_random(*grammar, random);
          const TranscriptAnswer answer = walk.parsed(written, rules.tools);
          const std::string where = fmt::format("{} {} {}: {}", declared.parser,
                                                declared.chat_template, with_marks, written.text);
          EXPECT_FALSE(answer.calls.empty()) << where;
          // What gpt-oss says before a call is content.
          EXPECT_TRUE(answer.content.empty() || declared.parser == "openai") << where;
          EXPECT_TRUE(parallel || answer.calls.size() == 1) << where;
          expect_calls_fit(answer, rules.tools, where);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

void expect_strict_calls_fit(const Json& tools) {
  std::mt19937 random(9);
  const CallRules rules = {.tools = tools};
  EXPECT_TRUE(rules.has_strict());
  for (const Declared& declared : all_declared()) {
    std::map<std::string, int> num_calls;
    for (const bool with_marks : {true, false}) {
      // All tags of gpt-oss are tokens.
      if (declared.parser == "openai" && !with_marks) continue;
      const Walk walk(declared, with_marks);
      const auto grammar = walk.grammar(&rules);
      const std::string text = declared.parser == "openai"
                                   ? "<|channel|>final<|message|>No call <b>here</b>."
                                   : "No call <b>here</b>.";
      EXPECT_TRUE(walk.accepts(*grammar, text)) << declared.parser;
      for (int round = 0; round < 30; ++round) {
        const Written written = walk.at_random(*grammar, random);
        const TranscriptAnswer answer = walk.parsed(written, tools);
        for (const auto& [name, arguments] : answer.calls) ++num_calls[name];
        expect_calls_fit(answer, bound_tools(tools),
                         fmt::format("{} {} {}: {}", declared.parser, declared.chat_template,
                                     with_marks, written.text));
        if (::testing::Test::HasFailure()) return;
      }
    }
    for (const Json& tool : tools) {
      const auto name = tool["function"]["name"].get<std::string>();
      EXPECT_GT(num_calls[name], 0) << declared.parser << " " << name;
    }
  }
}

TEST(CallTags, StrictToolsFitFromTheirTriggerOn) { expect_strict_calls_fit(strict_tools()); }

TEST(CallTags, OthersBesideStrictToolsGetAnObject) {
  for (const size_t strict : {0, 1}) {
    Json tools = call_tools();
    tools[strict]["function"]["strict"] = true;
    expect_strict_calls_fit(tools);
  }
}

TEST(CallTags, ATextFollowsItsFormatWhereNoCallComes) {
  const Json text = {{"type", "json_schema"}, {"json_schema", {{"const", 7}}}};
  const CallRules rules = {.tools = strict_tools()};
  for (const Declared& declared : all_declared()) {
    const Walk walk(declared, true);
    const auto both = walk.grammar(&rules, &text);
    const auto alone = walk.grammar(nullptr, &text);
    // gpt-oss was taught to name the type of an answer that follows a schema.
    const std::vector<std::string> headers =
        declared.parser == "openai"
            ? std::vector<std::string>{"<|channel|>final<|message|>",
                                       "<|channel|>final <|constrain|>json<|message|>"}
            : std::vector<std::string>{""};
    for (const std::string& before : headers) {
      for (const auto& grammar : {both, alone}) {
        EXPECT_TRUE(walk.accepts(*grammar, before + "7")) << declared.parser;
        EXPECT_FALSE(walk.accepts(*grammar, before + "8")) << declared.parser;
        EXPECT_FALSE(walk.accepts(*grammar, before + "text")) << declared.parser;
      }
      const TranscriptAnswer answer = walk.parsed(walk.written(before + "7"), rules.tools);
      EXPECT_EQ(answer, (TranscriptAnswer{"", "7", {}})) << declared.parser;
    }
    std::mt19937 random(3);
    bool has_called = false;
    for (int round = 0; round < 40 && !has_called; ++round) {
      has_called = !walk.parsed(walk.at_random(*both, random), rules.tools).calls.empty();
    }
    EXPECT_TRUE(has_called) << declared.parser;
  }
}

// What models were taught, as their templates render past calls.
TEST(CallTags, TakeWhatTheModelsWereTaught) {
  const std::string object = R"({"city": "Paris", "parts": ["rain"]})";
  const std::string named = R"({"name": "get_weather", "arguments": )" + object + "}";
  const std::string now = R"({"name": "now", "arguments": {}})";
  const std::string coder =
      "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
      "<parameter=parts>\n[\"rain\"]\n</parameter>\n</function>\n</tool_call>";
  const std::string glm46 =
      "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
      "<arg_key>parts</arg_key>\n<arg_value>[\"rain\"]</arg_value>\n</tool_call>";
  const std::string glm47 =
      "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value>"
      "<arg_key>parts</arg_key><arg_value>[\"rain\"]</arg_value></tool_call>";
  const std::string hermes = "<tool_call>\n" + named + "\n</tool_call>";
  const std::string thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
  const std::vector<std::pair<Declared, std::vector<std::string>>> cases = {
      {{"hermes", "Qwen-Qwen3-0.6B"},
       {hermes, "\n\n" + hermes, hermes + "\n<tool_call>\n" + now + "\n</tool_call>"}},
      {{"llama3_json", ""},
       {R"({"name": "get_weather", "parameters": )" + object + "}",
        R"({"name": "now", "parameters": {}}; {"name": "now", "parameters": {}})"}},
      {{"mistral", ""},
       {"[TOOL_CALLS][" + named + ", " + now + "]",
        R"([TOOL_CALLS][{"name": "now", "arguments": {}, "id": "abcDEF123"}])"}},
      {{"mistral", "mistralai-Ministral-3-14B-Reasoning-2512"},
       {"[TOOL_CALLS]get_weather[ARGS]" + object,
        "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[ARGS]{}"}},
      {{"mistral", "Mistral-Small-3.2-24B-Instruct-2506"},
       {"[TOOL_CALLS]get_weather[CALL_ID]abcDEF123[ARGS]" + object}},
      {{"qwen3_coder", "Qwen3-Coder"},
       {coder, "\n\n" + coder + "\n<tool_call>\n<function=now>\n</function>\n</tool_call>"}},
      {{"glm45", "GLM-4.6"}, {glm46, "\n" + glm46 + "\n<tool_call>now\n</tool_call>"}},
      {{"glm45", "GLM-4.7-Flash"}, {glm47, glm47 + "<tool_call>now</tool_call>"}},
      {{"granite", "ibm-granite-granite-3.3-2B-Instruct"},
       {"<|tool_call|>[" + named + ", " + now + "]"}},
      {{"olmo3", ""},
       {"<function_calls>get_weather(city=\"Paris\", parts=[\"rain\"])\nnow()</function_calls>"}},
      {{"openai", "openai-gpt-oss-120b"},
       {thought + "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" +
            object + "<|call|>",
        " to=functions.get_weather<|channel|>commentary json<|message|>" + object,
        thought + "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
                  "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"}},
  };
  const CallRules rules = {.tools = call_tools(), .must_call = true};
  for (const auto& [declared, texts] : cases) {
    for (const bool with_marks : {true, false}) {
      const Walk walk(declared, with_marks);
      const auto grammar = walk.grammar(&rules);
      for (const std::string& text : texts) {
        EXPECT_TRUE(walk.accepts(*grammar, text)) << declared.parser << ": " << text;
        EXPECT_FALSE(walk.accepts(*grammar, "Well. " + text)) << declared.parser << ": " << text;
        const TranscriptAnswer answer = walk.parsed(walk.written(text), rules.tools);
        EXPECT_FALSE(answer.calls.empty()) << text;
        expect_calls_fit(answer, rules.tools, text);
      }
    }
  }
}

TEST(CallTags, RefuseWhatCallsCannotSpell) {
  const auto error_of = [](const std::string& parser, const std::string& name) {
    return grammar::message_of([&] {
      const Walk walk({parser, ""}, false);
      CallRules rules = {.tools = call_tools(), .must_call = true};
      rules.tools[0]["function"]["name"] = name;
      walk.grammar(&rules);
    });
  };
  EXPECT_EQ(error_of("hermes", "a \"b\""), "");
  EXPECT_EQ(error_of("hermes", "<tool_call"), "");
  // Where the tag is no token, the call would end with it.
  EXPECT_EQ(error_of("hermes", "a</tool_call>"),
            "the function \"a</tool_call>\" has a name that the model's calls can't spell; use "
            "letters, digits, _ and -");
  EXPECT_EQ(error_of("qwen3_coder", "a>b"),
            "the function \"a>b\" has a name that the model's calls can't spell; use letters, "
            "digits, _ and -");
  EXPECT_NE(error_of("openai", "a b"), "");
  const Walk walk({"openai", ""}, true);
  const CallRules rules = {.tools = call_tools(), .must_call = true};
  EXPECT_EQ(grammar::message_of([&] {
              answer_tag({"openai_gptoss", "openai"}, {}, "",
                         "<|start|>assistant<|channel|>final<|message|>It", &rules, nullptr);
            }),
            "no call can be asked of an answer that goes on with a message");
  EXPECT_EQ(grammar::message_of([&] { answer_tag({}, {}, "", "", &rules, nullptr); }),
            "calls need a parser; none is known for this model");
}

// A name is a text, even where a tokenizer has it as a token: that one would end or open a call.
TEST(CallTags, SpellNamesAsTextWhereTheyAreTokensToo) {
  std::mt19937 random(11);
  const auto rules_of = [](const std::string& name) {
    CallRules rules = {.tools = call_tools(), .must_call = true, .parallel = false};
    rules.tools = Json::array({rules.tools[1]});
    rules.tools[0]["function"]["name"] = name;
    return rules;
  };
  const std::vector<std::string> names = {"</tool_call>", "<tool_call>", "[ARGS]",
                                          "a.*\\[b]|(\"c\")"};
  for (const char* parser : {"hermes", "llama3_json", "mistral", "granite", "openai"}) {
    for (const std::string& name : names) {
      const bool has_tag = name.find("tool_call>") != name.npos;
      if (parser == std::string("openai") && has_tag) continue;
      for (const bool with_marks : {true, false}) {
        // A tag that is no token is one wherever it stands, and gpt-oss has no others.
        if (!with_marks && (has_tag || parser == std::string("openai"))) continue;
        const Walk walk({parser, ""}, with_marks);
        const CallRules rules = rules_of(name);
        const auto grammar = walk.grammar(&rules);
        for (int round = 0; round < 5; ++round) {
          const Written written = walk.at_random(*grammar, random);
          const TranscriptAnswer answer = walk.parsed(written, rules.tools);
          const std::string where = fmt::format("{} {}: {}", parser, with_marks, written.text);
          ASSERT_EQ(answer.calls.size(), 1u) << where;
          EXPECT_EQ(answer.calls[0].first, name) << where;
        }
      }
    }
  }
  const Walk walk({"hermes", ""}, true);
  const CallRules rules = rules_of("</tool_call>");
  const auto grammar = walk.grammar(&rules);
  const auto accepts = [&](const std::string& name) {
    const auto mark = grammar::TokenIndex::symbol;
    return grammar::accepts(*grammar, mark("<tool_call>") + "\n{\"name\": \"" + name +
                                          "\", \"arguments\": {}}\n" + mark("</tool_call>"));
  };
  EXPECT_TRUE(accepts("</tool_call>"));
  EXPECT_FALSE(accepts(grammar::TokenIndex::symbol("</tool_call>")));
}

TEST(CallTags, TakeAllThatAnOutputMayFollow) {
  StructuredOutputsParams asked;
  const auto accepts = [&](const std::string& text) {
    const Json format = text_format(asked);
    const auto grammar = grammar::demo_compiler().structural_tag(
        answer_tag({"qwen3", "hermes"}, {}, "", "", nullptr, &format));
    return grammar::accepts(*grammar, text);
  };
  asked = {.json = R"({"type": "integer"})"};
  EXPECT_TRUE(accepts("12"));
  EXPECT_FALSE(accepts("a"));
  asked = {.regex = "a+"};
  EXPECT_TRUE(accepts("aa"));
  asked = {.choice = {{"yes", "no"}}};
  EXPECT_TRUE(accepts("no"));
  EXPECT_FALSE(accepts("not"));
  asked = {.grammar = "root ::= \"x\""};
  EXPECT_TRUE(accepts("x"));
  asked = {.json_object = true};
  EXPECT_TRUE(accepts("{}"));
  EXPECT_FALSE(accepts("[]"));
  asked = {.structural_tag = R"({"type": "structural_tag", "format":
      {"type": "const_string", "value": "c"}})"};
  EXPECT_TRUE(accepts("c"));
  asked = {.structural_tag = R"({"structures": [{"begin": "<f>", "schema": {"const": 1},
      "end": "</f>"}], "triggers": ["<f>"]})"};
  EXPECT_TRUE(accepts("a<f>1</f>"));
  EXPECT_FALSE(accepts("a<f>2</f>"));
}

}  // namespace
}  // namespace nanovllm::server
