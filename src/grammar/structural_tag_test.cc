#include "grammar/structural_tag.h"

#include <fmt/format.h>

#include <ctime>

#include "grammar/testing.h"

namespace nanovllm::grammar {
namespace {

const GrammarCompiler& marked_compiler() {
  static const std::unique_ptr<Tokenizer> kTokenizer =
      tokenizer_with_marks({"<tool_call>", "</tool_call>"});
  static const GrammarCompiler kCompiler(*kTokenizer);
  return kCompiler;
}

std::shared_ptr<const Grammar> compile_tag(const std::string& format) {
  return marked_compiler().structural_tag(R"({"type": "structural_tag", "format": )" + format +
                                          "}");
}

// Marks that the texts name are tokens.
void check_tags(std::vector<Case> cases) {
  for (Case& one : cases) {
    for (auto* texts : {&one.accepted, &one.refused}) {
      for (std::string& text : *texts) text = marked_compiler().tokens().with_symbols(text);
    }
  }
  check_cases(cases, compile_tag);
}

const std::string kSchema =
    R"({"type": "json_schema", "json_schema": {"type": "object", "properties":
        {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": false}})";

TEST(StructuralTag, TakesPartsAndWhatTheyAreMadeInto) {
  check_tags({
      {R"({"type": "const_string", "value": "a b"})", {"a b"}, {"", "a", "a b "}},
      {R"({"type": "regex", "pattern": "[ab]{2}"})", {"ab"}, {"a", "abc"}},
      {R"({"type": "grammar", "grammar": "root ::= \"x\" | \"(\" root \")\""})", {"((x))"}, {"("}},
      {kSchema, {R"({"x": 3})"}, {"{}", R"({"x": "3"})"}},
      {R"({"type": "sequence", "elements": [{"type": "const_string", "value": "a"},
           {"type": "optional", "content": {"type": "const_string", "value": "b"}},
           {"type": "plus", "content": {"type": "const_string", "value": "c"}}]})",
       {"ac", "abccc"},
       {"a", "bc", "abbc"}},
      {R"({"type": "or", "elements": [{"type": "const_string", "value": "a"},
           {"type": "star", "content": {"type": "const_string", "value": "xy"}}]})",
       {"", "a", "xyxy"},
       {"axy", "x"}},
      {R"({"type": "repeat", "min": 2, "max": 3, "content":
           {"type": "const_string", "value": "a"}})",
       {"aa", "aaa"},
       {"a", "aaaa"}},
      {R"({"type": "repeat", "min": 1, "max": -1, "content":
           {"type": "const_string", "value": "a"}})",
       {"a", "aaaaa"},
       {""}},
      {R"({"type": "any_text", "max_chars": 2})", {"", "éé"}, {"éée"}},
      {R"({"type": "any_text", "excludes": ["aab", "é!"]})",
       {"", "aa", "aac", "éé", "ab"},
       {"aab", "xaaab", "éé!"}},
      {R"({"type": "json_schema", "max_whitespace_cnt": 0, "json_schema": {"type": "array",
           "items": {"const": 1}}})",
       {"[1,1]"},
       {"[1, 1]"}},
  });
}

TEST(StructuralTag, FreeTextEndsWhereItsTagDoes) {
  check_tags({
      {R"({"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"})",
       {"<a></a>", "<a>b</b><</a>"},
       {"<a>", "<a></a></a>", "<a>b</a>c"}},
      {R"x({"type": "tag", "begin": "(", "content": {"type": "any_text"}, "end": [")", "]", ""]})x",
       {"(a", "(a)", "(a]"},
       {"(a)b"}},
      {R"({"type": "tag", "begin": "<a>", "content": {"type": "sequence", "elements": [
           {"type": "tag", "begin": "b", "content": {"type": "any_text"}, "end": "c"},
           {"type": "any_text"}]}, "end": "</a>"})",
       {"<a>b</a>c</a>", "<a>bcd</a>"},
       {"<a>bcd</a>e</a>"}},
      // Ends that overlap themselves.
      {R"({"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": "\n\n"})",
       {"a\n\n", "a\nb\n\n"},
       {"a\n", "a\n\nb\n\n"}},
  });
}

TEST(StructuralTag, ListsOfTextsAreToldApart) {
  const auto grammar = compile_tag(R"({"type": "sequence", "elements": [
      {"type": "any_text", "excludes": ["a\nb"]}, {"type": "const_string", "value": "|"},
      {"type": "any_text", "excludes": ["a", "b"]}, {"type": "const_string", "value": "|"},
      {"type": "json_schema", "json_schema": {"type": "string"}, "excludes": ["a\nb"]},
      {"type": "json_schema", "json_schema": {"type": "string"}, "excludes": ["a", "b"]}]})");
  EXPECT_TRUE(accepts(*grammar, R"(ab|cd|"ab""cd")"));
  EXPECT_FALSE(accepts(*grammar, R"(ab|cad|"ab""cd")"));
  EXPECT_FALSE(accepts(*grammar, R"(ab|cd|"ab""cb")"));
}

TEST(StructuralTag, TriggersLetTagsFollow) {
  const std::string tags = R"("tags": [
      {"type": "tag", "begin": "<f=g>", "content": )" +
                           kSchema + R"(, "end": "</f>"},
      {"type": "tag", "begin": "<f=h>", "content": {"type": "any_text"}, "end": "</f>"}])";
  const auto with = [&](const std::string& rest) {
    return R"({"type": "triggered_tags", "triggers": ["<f="], )" + tags + rest + "}";
  };
  const std::string g = "<f=g>{\"x\": 1}</f>", h = "<f=h>?</f>";
  check_tags({
      {with(""),
       {"", "a <f", g, "a" + g, g + "b", "a" + g + "b" + h + h + "<"},
       {"<f=", "a<f=i>", "<f=g>{}</f>", "<f=h>"}},
      {with(R"(, "excludes": ["bad"])"), {"ba" + g + "d"}, {"bad", g + "bad"}},
      {with(R"(, "at_least_one": true)"), {g, g + "a" + h}, {"", "a", "a" + g}},
      {with(R"(, "stop_after_first": true)"), {"", "a", "a" + g}, {g + "a", g + h}},
      {with(R"(, "at_least_one": true, "stop_after_first": true)"), {g, h}, {"", "a", g + h}},
      {R"({"type": "tags_with_separator", "separator": ", ", )" + tags + "}",
       {"", g, g + ", " + h + ", " + g},
       {g + h, g + ", ", "a"}},
      {R"({"type": "tags_with_separator", "separator": "", "at_least_one": true, )" + tags + "}",
       {g, g + h},
       {"", g + " " + h}},
      {R"({"type": "tags_with_separator", "separator": ";", "stop_after_first": true, )" + tags +
           "}",
       {"", g},
       {g + ";" + g}},
      {R"({"type": "dispatch", "rules": [["<f>", {"type": "regex", "pattern": "[0-9]"}]]})",
       {"", "a<f>1b<f>2"},
       {"<f>", "<f>a"}},
      {R"({"type": "dispatch", "loop": false, "rules":
           [["<f>", {"type": "regex", "pattern": "[0-9]"}]]})",
       {"", "a<f>1"},
       {"a<f>1b"}},
  });
  const std::string older = R"({"structures": [
      {"begin": "<f=g>", "schema": {"const": 1}, "end": "</f>"},
      {"begin": "<f=h>", "schema": "{\"const\": 2}", "end": "</f>"}], "triggers": ["<f="])";
  for (const std::string& text : {older + "}", older + R"(, "type": "structural_tag"})"}) {
    const auto grammar = marked_compiler().structural_tag(text);
    EXPECT_TRUE(accepts(*grammar, "a<f=g>1</f>b<f=h>2</f>"));
    EXPECT_FALSE(accepts(*grammar, "a<f=g>2</f>"));
  }
}

TEST(StructuralTag, MarksAreTokensThatTagsName) {
  const GrammarCompiler& compiler = marked_compiler();
  const auto id_of = [&](std::string_view mark) {
    for (int32_t id = 0; id < compiler.tokens().vocab_size(); ++id) {
      if (compiler.tokens().bytes(id) == TokenIndex::symbol(mark)) return id;
    }
    return -1;
  };
  const int32_t open = id_of("<tool_call>"), close = id_of("</tool_call>");
  ASSERT_GE(open, 0);
  ASSERT_GE(close, 0);
  const auto is_open = [](const Grammar& grammar, GrammarState state, int32_t id) {
    const auto words = grammar.mask(state);
    return ((*words)[id / 32] >> id % 32 & 1) != 0;
  };
  const auto grammar = compile_tag(
      R"({"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [
          {"begin": "<tool_call>\n", "content": {"type": "json_schema", "json_schema":
           {"type": "string"}}, "end": "\n</tool_call>"}]})");
  // In free text the one that begins a tag may come; its characters are text.
  GrammarState state = grammar->start();
  EXPECT_TRUE(is_open(*grammar, state, open));
  EXPECT_FALSE(is_open(*grammar, state, close));
  EXPECT_FALSE(is_open(*grammar, state, id_of("<|im_end|>")));
  EXPECT_TRUE(grammar->is_accepting(grammar->advance(state, "a <tool_call> b")));
  state = grammar->advance(grammar->advance(state, "a "), open);
  EXPECT_FALSE(grammar->is_accepting(state));
  EXPECT_TRUE(grammar->is_dead(grammar->advance(state, "x")));
  // In a string none comes, and its characters are text.
  state = grammar->advance(state, "\n\"</tool_call>");
  for (const int32_t id : {open, close, id_of("<|im_end|>")}) {
    EXPECT_FALSE(is_open(*grammar, state, id));
    EXPECT_TRUE(grammar->is_dead(grammar->advance(state, id)));
  }
  state = grammar->advance(state, "\"\n");
  EXPECT_TRUE(is_open(*grammar, state, close));
  EXPECT_TRUE(grammar->is_dead(grammar->advance(state, "</tool_call>")));
  EXPECT_TRUE(grammar->is_accepting(grammar->advance(state, close)));
  // By name or number.
  for (const std::string& name : {std::string("\"<tool_call>\""), fmt::format("{}", open)}) {
    const auto tokens = compile_tag(
        fmt::format(R"({{"type": "token_triggered_tags", "trigger_tokens": [{0}], "tags": [
            {{"begin": {{"type": "token", "token": {0}}}, "content": {{"type": "any_tokens",
             "exclude_tokens": [{0}]}}, "end": {{"type": "token", "token": {1}}}}}]}})",
                    name, close));
    state = tokens->advance(tokens->advance(tokens->start(), "a"), open);
    state = tokens->advance(tokens->advance(state, "b"), close);
    EXPECT_TRUE(tokens->is_accepting(tokens->advance(state, "c")));
  }
}

// {"style": ..., "json_schema": ...}
std::string styled(const std::string& style, const std::string& schema) {
  return R"({"type": "json_schema", "style": ")" + style + R"(", "json_schema": )" + schema + "}";
}

TEST(StructuralTag, ArgumentsStandBetweenTags) {
  const std::string schema = R"({"type": "object", "properties": {
      "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1},
      "where": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
      "dry": {"type": "boolean"}}, "required": ["city"],
      "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}},
                          "required": ["x"], "additionalProperties": false}}})";
  const auto qwen = [](const std::string& name, const std::string& value) {
    return "\n<parameter=" + name + ">\n" + value + "\n</parameter>";
  };
  const auto glm = [](const std::string& name, const std::string& value) {
    return "<arg_key>" + name + "</arg_key><arg_value>" + value + "</arg_value>";
  };
  check_tags({
      {styled("qwen_xml", schema),
       {qwen("city", "Paris"), qwen("city", ""), qwen("city", "a\nb </param> 3"),
        qwen("city", "\"Paris\"") + qwen("days", "3"),
        qwen("city", "x") + qwen("where", R"({"x": 1.5})") + qwen("dry", "True"),
        qwen("city", "x") + qwen("where", "null"), qwen("city", "x") + qwen("where", "None")},
       {"", qwen("days", "3"), qwen("city", "x") + qwen("days", "0"),
        qwen("city", "x") + qwen("days", "three"), qwen("city", "x") + qwen("where", "{}"),
        qwen("city", "x") + qwen("other", "1"), qwen("city", "a</parameter>"),
        qwen("city", "a\n<parameter=b"), qwen("city", "x") + qwen("dry", "1")}},
      {styled("glm_xml", schema),
       {glm("city", "Paris"), glm("city", "a\nb") + "\n" + glm("days", "12"),
        "\n<arg_key>city</arg_key>\n<arg_value></arg_value>"},
       {"", glm("city", "a</arg_value>"), glm("city", "a") + " " + glm("days", "1")}},
      {styled("pythonic", schema),
       {R"(city="Paris")", R"(city="a\"b", days=3, where={"x": 1}, dry=True)",
        R"(city="", dry=false)"},
       {"", "city=Paris", R"(city="a",days=3)", R"(days=3, city="a")"}},
  });
  // The older name.
  check_tags({{R"({"type": "qwen_xml_parameter", "json_schema": {"properties": {"x": {}}}})",
               {"", qwen("x", "3"), "<parameter=x>\n\n</parameter>"},
               {qwen("y", "3")}}});
}

TEST(StructuralTag, StringsBetweenTagsAreWhatTheSchemaSays) {
  const auto one = [](const std::string& schema) {
    return styled("qwen_xml", R"({"properties": {"x": )" + schema + R"(}, "required": ["x"]})");
  };
  const auto values = [](std::vector<std::string> texts) {
    for (std::string& text : texts) text = "<parameter=x>\n" + text + "\n</parameter>";
    return texts;
  };
  check_tags({
      {one(R"({"enum": ["a b", "c\"d", 3]})"), values({"a b", "c\"d", "3"}),
       values({"\"a b\"", "d"})},
      {one(R"({"type": "string", "pattern": "^a.*z$"})"), values({"az", "a<z", "a<\"/z"}),
       values({"a", "a</parameter>z"})},
      {one(R"({"type": "string", "minLength": 2, "maxLength": 4})"),
       values({"ab", "éééé", "a\nb", "\n\n"}), values({"a", "abcde"})},
      {one(R"({"type": "string", "minLength": 1, "maxLength": 3, "pattern": "^(ab)*$"})"),
       values({"ab"}), values({"", "abab", "b"})},
      {one(R"({"type": "string", "format": "date"})"), values({"2026-02-28"}),
       values({"2026-02-29"})},
      // Nothing is said of it, or nothing that holds of strings.
      {one("{}"), values({"3", "null", "[a"}), {}},
      {one(R"({"minimum": 3})"), values({"1"}), {}},
      // What reads as another type is of that type.
      {one(R"({"type": ["string", "integer"]})"), values({"3", "a3", ""}),
       values({" 3", "3a", "-x"})},
      {one(R"({"anyOf": [{"type": "string"}, {"type": "object", "required": ["y"]},
               {"type": "array", "items": {"type": "null"}}]})"),
       values({"a{", R"({"y": 1})", "[null]"}), values({"{}", "[1]", "{", "[", " {"})},
      // Strings within JSON don't end it either.
      {one(R"({"type": "array", "items": {"type": "string"}})"), values({R"(["a", "</p"])"}),
       values({R"(["</parameter>"])"})},
  });
  // An object that names none has any, and strings.
  check_tags({{styled("glm_xml", "true"),
               {"", "<arg_key>a_1</arg_key><arg_value>x</arg_value>"},
               {"<arg_key>a b</arg_key><arg_value>x</arg_value>"}},
              {styled("pythonic", "{}"), {"", R"(a=3, b="x", c=[null])"}, {"a=x", "a-b=3"}}});
  const auto error_of = [](const std::string& format) {
    return message_of([&] { compile_tag(format); });
  };
  EXPECT_EQ(error_of(styled("pythonic", R"({"properties": {"a-b": {}}})")),
            "structural tag at /format/json_schema: the JSON schema has the property \"a-b\", a "
            "name that the model's calls can't spell");
  EXPECT_EQ(error_of(styled("qwen_xml", R"({"properties": {"a>": {}}})")),
            "structural tag at /format/json_schema: the JSON schema has the property \"a>\", a "
            "name that the model's calls can't spell");
  EXPECT_EQ(error_of(styled("qwen_xml", R"({"patternProperties": {"a": {}}})")),
            "structural tag at /format/json_schema: JSON schema: patternProperties can't be "
            "enforced here");
}

TEST(StructuralTag, StringsOfSchemasExcludeTexts) {
  check_tags({{R"({"type": "json_schema", "excludes": ["</a>", "<tool_call>"], "json_schema":
                   {"type": "array", "items": {"type": "string", "maxLength": 9}}})",
               {R"(["a", "</a"])", R"(["\"", "123456789"])"},
               {R"(["</a>"])", R"(["b</a>c"])", R"(["1234567890"])"}},
              {R"({"type": "json_schema", "excludes": ["</a>"], "json_schema": {"type": "object",
                   "properties": {"x</a>": {"const": 1}}}})",
               {"{}", R"({"y": {"</a": 2}})", R"({"x</a>": 1, "x</b>": {}})"},
               {R"({"y</a>": 1})", R"({"x</a>": 2})", R"({"y": {"x</a>": 1}})"}},
              {R"({"type": "json_schema", "excludes": ["</a>"], "json_schema": {"type": "object",
                   "propertyNames": {"maxLength": 5}, "patternProperties": {"^x": {"const": 1}},
                   "additionalProperties": {"const": 2}}})",
               {R"({"x</a": 1})", R"({"y": 2})"},
               {R"({"x</a>": 1})", R"({"</a>": 2})", R"({"x": 2})", R"({"yyyyyy": 2})"}}});
}

TEST(StructuralTag, RefusesWithThePath) {
  const auto error_of = [](const std::string& format) {
    return message_of([&] { compile_tag(format); });
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[]", "structural tag at /format: expected an object"},
      {"{}", "structural tag at /format: \"type\" is missing"},
      {R"({"type": "const_string"})", "structural tag at /format: \"value\" is missing"},
      {R"({"type": "const_string", "value": 3})",
       "structural tag at /format/value: expected a text"},
      {R"({"type": "or", "elements": []})",
       "structural tag at /format/elements: expected a list that is not empty"},
      {R"({"type": "or", "elements": [{"type": "any_text", "exclude": []}]})",
       "structural tag at /format/elements/0: \"exclude\" is not known; expected excludes, "
       "max_chars, max_tokens"},
      {R"({"type": "any_text", "max_tokens": 3})",
       "structural tag at /format/max_tokens: can't be enforced; use max_chars"},
      {R"({"type": "any_text", "max_chars": 3, "excludes": ["a"]})",
       "structural tag at /format: max_chars can't be enforced where a text is excluded or ends "
       "the tag"},
      {R"({"type": "regex", "pattern": "(a"})",
       "structural tag at /format/pattern: regex has a group that is not closed (at position 0)"},
      {R"({"type": "grammar", "grammar": "root ::= a"})",
       "structural tag at /format/grammar: grammar: line 1: the rule \"a\" is not defined"},
      {R"({"type": "json_schema", "json_schema": {"properties": {"a": {"type": "x"}}}})",
       "structural tag at /format/json_schema: JSON schema at /properties/a: type is \"x\", which "
       "is no type"},
      {R"({"type": "json_schema", "json_schema": true, "style": "cohere_xml"})",
       "structural tag at /format/style: \"cohere_xml\" is not supported; expected json, qwen_xml, "
       "glm_xml or pythonic"},
      {R"({"type": "repeat", "min": 3, "max": 2, "content": {"type": "any_text"}})",
       "structural tag at /format: \"min\" is above \"max\""},
      {R"({"type": "tag", "begin": "a", "content": {"type": "any_text"}, "end": 3})",
       "structural tag at /format/end: expected a text"},
      {R"({"type": "triggered_tags", "triggers": ["<g"], "tags": [{"begin": "<f", "content":
           {"type": "any_text"}, "end": "a"}]})",
       "structural tag at /format: tag 0 begins with none of the triggers"},
      {R"({"type": "triggered_tags", "triggers": [""], "tags": [{"begin": "<f", "content":
           {"type": "any_text"}, "end": "a"}]})",
       "structural tag at /format: trigger 0 is empty"},
      {R"({"type": "dispatch", "rules": [["a"]]})",
       "structural tag at /format/rules/0: expected a pattern and a format"},
      {R"({"type": "token", "token": "plain"})",
       "structural tag at /format/token: \"plain\" is no special or added token of the tokenizer; "
       "name it as a text"},
      {R"({"type": "token", "token": 0})",
       "structural tag at /format/token: 0 is no special or added token of the tokenizer; name its "
       "text"},
      {R"({"type": "token", "token": 999999})",
       "structural tag at /format/token: expected a token's id below 4101 or its text"},
      {R"({"type": "or", "elements": [{"type": "json_schema", "json_schema": false}]})",
       "structural tag at /format/elements/0/json_schema: the JSON schema can't be satisfied: no "
       "value fits false"},
  };
  for (const auto& [format, message] : cases) EXPECT_EQ(error_of(format), message) << format;
  EXPECT_TRUE(error_of(R"({"type": "exclude_token"})")
                  .starts_with("structural tag at /format: the type \"exclude_token\" is not "
                               "supported; expected one of const_string, "));
  const auto whole = [](const std::string& text) {
    return message_of([&] { marked_compiler().structural_tag(text); });
  };
  EXPECT_EQ(whole("3"), "the structural tag is no JSON object");
  EXPECT_EQ(whole("{\"format\": {}}"), "the structural tag's \"type\" is not \"structural_tag\"");
  EXPECT_EQ(whole("{\"type\": \"structural_tag\"}"), "the structural tag has no \"format\"");
  EXPECT_NE(whole("{"), "");
  EXPECT_EQ(whole(R"({"structures": [{"begin": "a", "schema": {}}], "triggers": ["a"]})"),
            "structural tag at /structures/0: \"end\" is missing");
}

TEST(StructuralTag, BoundsHoldOnBothSides) {
  const auto nested = [](int levels) {
    std::string text = R"({"type": "any_text"})";
    for (int i = 1; i < levels; ++i) text = R"({"type": "star", "content": )" + text + "}";
    return text;
  };
  EXPECT_EQ(message_of([&] { compile_tag(nested(100)); }), "");
  EXPECT_TRUE(message_of([&] { compile_tag(nested(101)); })
                  .ends_with("formats are more than 100 "
                             "deep"));
  const auto excluding = [](size_t bytes) {
    return fmt::format(R"({{"type": "any_text", "excludes": ["{}"]}})", std::string(bytes, 'a'));
  };
  EXPECT_EQ(message_of([&] { compile_tag(excluding(1024)); }), "");
  EXPECT_EQ(message_of([&] { compile_tag(excluding(1025)); }),
            "structural tag at /format: what must not come in its text has 1025 bytes; at most "
            "1024 are supported");
  const std::string padding(size_t{1} << 20, ' ');
  EXPECT_EQ(message_of([&] { compile_tag(R"({"type": "any_text"})" + padding); }),
            "the structural tag has 1048634 bytes; at most 1048576 are supported");
}

TEST(StructuralTag, ManyTagsAreCompiledSoon) {
  std::string tags;
  for (int i = 0; i < 1000; ++i) {
    tags += fmt::format(R"({}{{"begin": "<f={}>", "content": {}, "end": "</f>"}})",
                        i == 0 ? "" : ", ", i, kSchema);
  }
  const std::clock_t start = std::clock();  // of this program alone, whatever else runs
  const auto grammar =
      compile_tag(R"({"type": "triggered_tags", "triggers": ["<f="], "tags": [)" + tags + "]}");
  EXPECT_TRUE(accepts(*grammar, "a<f=999>{\"x\": 1}</f>"));
  grammar->mask(grammar->start());
  EXPECT_LT(std::clock() - start, 2 * CLOCKS_PER_SEC);
}

// What one grammar may take is shared by the schemas in it.
TEST(StructuralTag, SchemasShareABoundOfWork) {
  std::string values, members;
  for (int i = 0; i < 100; ++i) {
    values += fmt::format("\"a{}\", ", i);
    members += fmt::format(R"("p{}": {{"$ref": "#/$defs/v", "title": "{}"}}, )", i, i);
  }
  const auto with = [&](int count) {
    std::string elements;
    for (int i = 0; i < count; ++i) {
      elements += fmt::format(
          R"({}{{"type": "json_schema", "json_schema": {{"title": "{}", "type": "object",
             "$defs": {{"v": {{"enum": [{}null]}}}}, "properties": {{{}"end": true}}}}}})",
          i > 0 ? ", " : "", i, values, members);
    }
    return message_of([&] { compile_tag(R"({"type": "or", "elements": [)" + elements + "]}"); });
  };
  EXPECT_EQ(with(1), "");
  EXPECT_NE(with(100).find("/json_schema: JSON schema at "), std::string::npos) << with(100);
}

}  // namespace
}  // namespace nanovllm::grammar
