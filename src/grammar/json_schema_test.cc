#include "grammar/json_schema.h"

#include <fmt/format.h>

#include <chrono>

#include "grammar/testing.h"

namespace nanovllm::grammar {
namespace {

std::shared_ptr<const Grammar> compile_schema(const std::string& schema) {
  return demo_compiler().json_schema(schema);
}

TEST(JsonSchema, TakesAnyJson) {
  check_cases(
      {
          {"true",
           {"null", "true", "-12.50e-3", "\"a\\n\\u00e9\\ud83d\\ude00é\"", "[]", "[1, [2], {}]",
            "{\"a\": {\"b\": []}, \"a\": 1}", "{\n  \"a\": 1,\n\t\"b\": 2\n}", "[ ]"},
           {"", "nul", "01", "+1", "1.", ".5", "\"\n\"", "\"\\x\"", "\"\\ud800\"", "[1,]", "{a: 1}",
            " 1", "1 ", "[1,  2]", "[\r\n]", "'a'"}},
          {"{}", {"1", "{}"}, {""}},
          {"{\"type\": \"object\"}", {"{}", "{\"a\": [1]}"}, {"[]", "1"}},
      },
      compile_schema);
}

TEST(JsonSchema, Types) {
  check_cases(
      {
          {R"({"type": "null"})", {"null"}, {"true", "0"}},
          {R"({"type": "boolean"})", {"true", "false"}, {"null", "\"true\""}},
          {R"({"type": "integer"})",
           {"0", "-0", "-12", "12345678901234567890123456789012"},
           {"1.5", "1e3", "01", "123456789012345678901234567890123"}},
          {R"({"type": "number"})",
           {"0", "1.5", "-1e10", "2E+3", "1.5e-99"},
           {"1.", "\"1\"", "1e100"}},
          {R"({"type": "string"})", {"\"\"", "\"é\""}, {"a", "1"}},
          {R"({"type": "array"})", {"[]", "[1]"}, {"{}"}},
          {R"({"type": ["string", "null"]})", {"\"a\"", "null"}, {"1"}},
      },
      compile_schema);
  EXPECT_EQ(message_of([] { compile_schema(R"({"type": []})"); }),
            "the JSON schema can't be satisfied: no type fits /type");
}

TEST(JsonSchema, Objects) {
  check_cases(
      {
          {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}, "c": {}},
               "required": ["b"], "additionalProperties": false})",
           {R"({"b": null})", R"({"a": 1, "b": null})", R"({"a":1,"b":null,"c":[]})",
            R"({"b":null,"c":1})"},
           {"{}", R"({"a": 1})", R"({"b": null, "a": 1})", R"({"b": null, "d": 1})",
            R"({"b": null,})", R"({,"b": null})", R"({"b": null "c": 1})",
            R"({"a": "x", "b": null})"}},
          {R"({"type": "object", "properties": {"a": {"type": "integer"}}})",
           {"{}", R"({"a": 1})", R"({"a": 1, "b": []})", R"({"b": 1})", R"({"ab": 1, "": 2})"},
           {R"({"a": "x"})", R"({"b": 1, "a": "x"})", R"({"b": 1, "\u0061": "x"})"}},
          {R"({"type": "object", "additionalProperties": {"type": "integer"}})",
           {"{}", R"({"a": 1, "b": 2})"},
           {R"({"a": "x"})"}},
          {R"({"type": "object", "required": ["z"]})",
           {R"({"z": 1})", R"({"z": [], "a": 2})"},
           {"{}", R"({"a": 2})"}},
          {R"({"type": "object", "properties": {"a": false, "b": true}})",
           {"{}", R"({"b": 1})"},
           {R"({"a": 1})"}},
          {R"({"type": "object", "properties": {"é\"": {"type": "null"}}, "additionalProperties": false})",
           {R"({"é\"": null})"},
           {R"({"e": null})"}},
          {R"({"type": "object", "patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": false})",
           {"{}", R"({"x-": 1, "x-a": 2})"},
           {R"({"x-": "s"})", R"({"y": 1})"}},
          {R"({"type": "object", "properties": {"x-1": {"minimum": 5}}, "patternProperties": {"^x-": {"type": "integer"}, "9$": {"maximum": 9}},
               "additionalProperties": {"type": "string"}})",
           {R"({"x-1": 5, "x-2": 1, "x-9": 9, "y": "s"})", R"({"y9": null})"},
           {R"({"x-1": 4})", R"({"x-1": null})", R"({"x-2": "s"})", R"({"x-9": 10})", R"({"y": 1})",
            R"({"y9": 10})"}},
          {R"({"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "null"}})",
           {R"({"a": null})", R"({"a": null, "b": null})"},
           {"{}", R"({"a": null, "b": null, "c": null})"}},
          {R"({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "maxProperties": 2, "additionalProperties": {"type": "null"}})",
           {R"({"a": 1, "b": 2})", R"({"b": 1, "c": 2})", R"({"c": 2, "d": null})",
            R"({"x": null, "y": null})"},
           {"{}", R"({"a": 1})", R"({"a": 1, "b": 2, "c": 3})", R"({"a": 1, "b": 2, "d": null})"}},
          {R"({"type": "object", "properties": {"ab": {}, "B": {}}, "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 3}})",
           {"{}", R"({"ab": 1, "abc": 2})"},
           {R"({"B": 1})", R"({"abcd": 1})", R"({"a1": 1})"}},
          {R"({"type": "object", "maxProperties": 0})", {"{}"}, {R"({"a": 1})"}},
      },
      compile_schema);
}

// Who reads an object takes a key that comes twice for one member.
TEST(JsonSchema, FewKeysDoNotComeTwiceToBeEnough) {
  const std::string closed = R"("type": "object", "additionalProperties": false, )";
  check_cases(
      {
          {R"({"type": "object", "propertyNames": {"enum": ["b", "a", "c"]}, "minProperties": 2})",
           {R"({"b": 1, "a": 2})", R"({"a": 1, "c": 2})", R"({"b": 1, "a": 2, "c": 3})"},
           {R"({"a": 1})", R"({"a": 1, "a": 2})", R"({"b": 1, "c": 2, "c": 3})"}},
          {"{" + closed +
               R"("patternProperties": {"^[ab]$": {"type": "null"}, "^é\\\\$": {"type": "integer"}},
             "properties": {"z": {}}, "minProperties": 3})",
           {R"({"z": 1, "a": null, "b": null})", R"({"a": null, "b": null, "é\\": 1})"},
           {R"({"a": null, "b": null})", R"({"z": 1, "a": null, "a": null})",
            R"({"z": 1, "a": 1, "b": null})"}},
          // One more than is required can be no other's repetition; nor is there a bound to reach.
          {"{" + closed + R"("patternProperties": {"^[ab]$": {}}, "minProperties": 1})",
           {R"({"b": 1, "a": 2})"},
           {"{}"}},
          {"{" + closed + R"("patternProperties": {"^[ab]$": {}}, "maxProperties": 2})",
           {R"({"b": 1, "a": 2})", "{}"},
           {R"({"a": 1, "b": 2, "a": 3})"}},
          {R"({"type": "object", "minProperties": 2})", {R"({"b": 1, "a": 2})"}, {R"({"a": 1})"}},
          {"{" + closed + R"("patternProperties": {"^[a-z]{2,}$": {}}, "minProperties": 2})",
           {R"({"fr": 1, "de": 2})"},
           {R"({"de": 1})"}},
      },
      compile_schema);
  const std::string refused = "the JSON schema can't be satisfied: no object fits /minProperties, ";
  EXPECT_EQ(message_of([] {
              compile_schema(R"({"type": "object", "propertyNames": {"pattern": "^c$"},
                "additionalProperties": {"type": "boolean"}, "minProperties": 2})");
            }),
            refused + "/additionalProperties and /propertyNames");
  EXPECT_EQ(
      message_of([&] {
        compile_schema("{" + closed + R"("patternProperties": {"^c$": {}}, "minProperties": 2})");
      }),
      refused + "/patternProperties and /additionalProperties");
}

TEST(JsonSchema, SaysWhatCanNotBeSatisfied) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"enum": []})", "no value fits /enum"},
      {R"({"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}},
           "required": ["a"]})",
       "the property \"a\" is required, and no number of up to 32 digits before and behind the "
       "point fits /properties/a/minimum and /properties/a/maximum"},
      {R"({"type": "object", "properties": {"a": {}}, "required": ["b"],
           "additionalProperties": false})",
       "the property \"b\" is required, and no value fits /additionalProperties, which is false"},
      {R"({"allOf": [{"const": 1}, {"const": 2}]})",
       "no value fits /allOf/0/const and /allOf/1/const"},
      {R"({"allOf": [{"type": "string"}, {"type": "null"}]})",
       "no type fits /allOf/0/type and /allOf/1/type"},
      {R"({"type": "array", "items": {"anyOf": [false, {"type": "string", "minLength": 3,
           "maxLength": 2}]}, "minItems": 1})",
       "no string fits /items/anyOf/1/minLength and /items/anyOf/1/maxLength, and other branches "
       "can't be satisfied either"},
      {R"({"type": "array", "minItems": 3, "maxItems": 2})",
       "no list fits /minItems and /maxItems"},
      {R"({"type": "object", "required": ["a", "b"], "maxProperties": 1})",
       "no object fits /required and /maxProperties"},
      {R"({"type": "object", "propertyNames": {"pattern": "^x"}, "required": ["a"]})",
       "the property \"a\" is required, and no key fits /propertyNames"},
      {R"({"type": "array", "prefixItems": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}],
           "minItems": 2, "$defs": {"a": {"type": []}}})",
       "no type fits /$defs/a/type"},
      {R"({"allOf": [{"enum": [1]}, {"enum": [2]}, {"enum": [3]}, {"enum": [4]}, {"enum": [5]},
           {"enum": [6]}]})",
       "no value fits /allOf/0/enum, /allOf/1/enum, /allOf/2/enum, /allOf/3/enum and 2 more"},
  };
  for (const auto& [schema, what] : cases) {
    EXPECT_EQ(message_of([&] { compile_schema(schema); }),
              std::string("the JSON schema can't be satisfied: ") + what)
        << schema;
  }
}

// Each level names the next one twice.
TEST(JsonSchema, WhatIsNamedTwiceIsCompiledOnce) {
  const auto schema_of = [](int levels, const char* more) {
    std::string schema = R"({"$ref": "#/$defs/d0", "$defs": {)";
    for (int i = 0; i < levels; ++i) {
      const std::string next = fmt::format(R"({{"$ref": "#/$defs/d{}"{}}})", i + 1, more);
      schema += fmt::format(
          R"("d{}": {{"type": "object", "properties": {{"x": {}, "y": {}}}, "required": ["x", "y"],
             "additionalProperties": false}}, )",
          i, next, next);
    }
    return schema + fmt::format(R"("d{}": {{"type": "integer"}}}}}})", levels);
  };
  for (const char* more : {"", R"(, "title": "next")"}) {
    const auto grammar = compile_schema(schema_of(2, more));
    EXPECT_TRUE(accepts(*grammar, R"({"x": {"x": 1, "y": 2}, "y": {"x": 3, "y": 4}})"));
    EXPECT_FALSE(accepts(*grammar, R"({"x": {"x": 1, "y": 2}, "y": {"x": 3}})"));
    EXPECT_LT(compile_schema(schema_of(40, more))->bytes(), 4u << 20) << more;
  }
}

TEST(JsonSchema, SaysWhereThereAreTooManyRules) {
  std::string members = R"("a": {"type": "integer"})";
  for (int i = 0; i < 60; ++i) {
    members +=
        fmt::format(R"(, "p{}": {{"type": "object", "maxProperties": 20, "properties": {{)", i);
    for (int j = 0; j < 200; ++j) {
      members += fmt::format(R"({}"q{}_{}": {{"type": "integer", "minimum": {}}})",
                             j > 0 ? "," : "", i, j, i * 200 + j);
    }
    members += "}}";
  }
  const std::string message =
      message_of([&] { compile_schema(R"({"properties": {)" + members + "}}"); });
  EXPECT_TRUE(message.starts_with("JSON schema at /properties/p")) << message;
}

TEST(JsonSchema, Lists) {
  check_cases(
      {
          {R"({"type": "array", "items": {"type": "integer"}})",
           {"[]", "[1]", "[1, 2,3]"},
           {"[\"a\"]", "[1,]", "[,1]"}},
          {R"({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3})",
           {"[1, 2]", "[1, 2, 3]"},
           {"[]", "[1]", "[1, 2, 3, 4]"}},
          {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "items": {"type": "string"}, "minItems": 1})",
           {"[1]", "[1, null]", "[1, null, \"a\", \"b\"]"},
           {"[]", "[null]", "[1, null, 2]"}},
          {R"({"type": "array", "items": [{"type": "integer"}], "additionalItems": false})",
           {"[]", "[1]"},
           {"[1, 2]"}},
          {R"({"type": "array", "prefixItems": [true, false]})", {"[]", "[1]"}, {"[1, 2]"}},
          {R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"}},
          {R"({"type": "array", "items": false})", {"[]"}, {"[1]"}},
          {R"({"type": "array", "items": {"type": "array", "minItems": 1000}, "maxItems": 1000})",
           {"[]"},
           {"[[]]"}},
      },
      compile_schema);
}

TEST(JsonSchema, Strings) {
  check_cases(
      {
          {R"({"type": "string", "minLength": 2, "maxLength": 3})",
           {"\"ab\"", "\"é😀\\n\"", "\"\\ud83d\\ude00a\""},
           {"\"a\"", "\"abcd\"", "\"\\ud83d\\ude00\""}},
          {R"({"type": "string", "pattern": "^[a-c\"\\\\]+$"})",
           {"\"abc\"", "\"\\\"\\\\\""},
           {"\"\"", "\"abcd\""}},
          {R"({"type": "string", "pattern": "b+"})",
           {"\"b\"", "\"abba\"", "\"\\nb\""},
           {"\"\"", "\"ac\""}},
          {R"({"type": "string", "pattern": "^a*b?$", "minLength": 2, "maxLength": 4})",
           {"\"aa\"", "\"aaab\"", "\"ab\""},
           {"\"a\"", "\"b\"", "\"aaaab\"", "\"abb\""}},
          {R"({"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "z$"}]})",
           {"\"az\"", "\"abcz\""},
           {"\"a\"", "\"z\"", "\"za\""}},
          {R"({"type": "string", "format": "date"})",
           {"\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\""},
           {"\"2023-02-29\"", "\"1900-02-29\"", "\"2023-04-31\"", "\"2023-13-01\"", "\"2023-1-1\"",
            "\"0000-01-01\"", "\"0000-02-29\""}},
          {R"({"type": "string", "format": "time"})",
           {"\"12:00:00Z\"", "\"23:59:59.123+02:00\"", "\"12:00:00.123456789Z\""},
           {"\"24:00:00Z\"", "\"12:00:00\"", "\"12:00:00.1234567890Z\""}},
          {R"({"type": "string", "format": "date-time"})",
           {"\"2024-02-29T12:00:00Z\""},
           {"\"2024-02-29 12:00:00Z\"", "\"2024-02-30T12:00:00Z\""}},
          {R"({"type": "string", "format": "duration"})",
           {"\"P1Y2M3DT4H5M6S\"", "\"P4W\"", "\"PT5M\"", "\"P999999D\"", "\"PT999999999S\""},
           {"\"P\"", "\"PT\"", "\"1Y\"", "\"P1YT\"", "\"P1000000D\"", "\"PT1000000000S\""}},
          {R"({"type": "string", "format": "email"})",
           {"\"a.b+c@example.org\""},
           {"\"a\"", "\"@b\"", "\"a..b@c\"", "\"a@-b\""}},
          {R"({"type": "string", "format": "hostname"})",
           {"\"example.org\"", "\"a-b\""},
           {"\"-a\"", "\"a..b\"", "\"a_b\""}},
          {R"({"type": "string", "format": "ipv4"})",
           {"\"255.1.0.99\""},
           {"\"256.1.1.1\"", "\"1.1.1\"", "\"01.1.1.1\""}},
          {R"({"type": "string", "format": "ipv6"})",
           {"\"::\"", "\"::1\"", "\"1:2:3:4:5:6:7:8\"", "\"fe80::a:b\"", "\"::ffff:1.2.3.4\""},
           {"\":\"", "\"1:2:3:4:5:6:7\"", "\"1::2::3\"", "\"12345::\""}},
          {R"({"type": "string", "format": "uuid"})",
           {"\"123e4567-e89b-12d3-a456-426614174000\""},
           {"\"123e4567e89b12d3a456426614174000\""}},
          {R"({"type": "string", "format": "uri"})",
           {"\"https://user@example.org:80/a/b?c=d#e\"", "\"mailto:a@b.c\"", "\"urn:a:b\"",
            "\"http://[::1]/\""},
           {"\"example.org\"", "\"http://a b\"", "\"http://a/%zz\""}},
      },
      compile_schema);
  EXPECT_EQ(
      message_of([] { compile_schema(R"({"type": "string", "format": "date", "maxLength": 9})"); }),
      "the JSON schema can't be satisfied: no string fits /maxLength and /format");
  const auto noted = compile_schema(R"({"type": "string", "format": "color"})");
  ASSERT_EQ(noted->notes().size(), 1u);
  EXPECT_EQ(noted->notes()[0], "JSON schema: the format \"color\" is not enforced");
}

TEST(JsonSchema, StringsWhoseLengthAndPatternMeetHaveNoDeadEnds) {
  // From each state on a shortest way of masks ends in an instance.
  const auto grammar = compile_schema(
      R"({"type": "string", "pattern": "^(abc|de)*$", "minLength": 4, "maxLength": 7})");
  std::vector<std::pair<GrammarState, std::string>> todo = {{grammar->start(), ""}};
  for (size_t i = 0; i < todo.size(); ++i) {
    const auto [state, text] = todo[i];
    bool goes_on = grammar->is_accepting(state);
    for (const char byte : std::string("\"abcde")) {
      const GrammarState next = grammar->advance(state, std::string_view(&byte, 1));
      if (grammar->is_dead(next)) continue;
      goes_on = true;
      todo.emplace_back(next, text + byte);
    }
    EXPECT_TRUE(goes_on) << text;
  }
  EXPECT_TRUE(accepts(*grammar, "\"dede\""));
  EXPECT_TRUE(accepts(*grammar, "\"abcdede\""));
  EXPECT_TRUE(accepts(*grammar, "\"abcde\""));
  EXPECT_FALSE(accepts(*grammar, "\"abc\""));
  EXPECT_FALSE(accepts(*grammar, "\"abcabcde\""));
}

TEST(JsonSchema, Numbers) {
  check_cases(
      {
          {R"({"type": "integer", "minimum": -12, "maximum": 105})",
           {"-12", "-9", "0", "9", "99", "100", "105"},
           {"-13", "106", "-0", "1.0", "1000", "007"}},
          {R"({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5})",
           {"4"},
           {"3", "5"}},
          {R"({"type": "integer", "minimum": 3, "exclusiveMinimum": true, "maximum": 5.5})",
           {"4", "5"},
           {"3", "6"}},
          {R"({"type": "integer", "minimum": 2.5})",
           {"3", "10", "99999999999999999999"},
           {"2", "-3"}},
          {R"({"type": "integer", "maximum": -1})", {"-1", "-100"}, {"0", "1"}},
          {R"({"type": "number", "minimum": 0})", {"0", "0.0", "12.5", "0.001"}, {"-1", "-0.1"}},
          {R"({"type": "number", "exclusiveMinimum": 0})",
           {"0.001", "1", "10.0"},
           {"0", "0.0", "-1"}},
          {R"({"type": "number", "minimum": -1.25, "maximum": 2.5})",
           {"-1.25", "-1.2", "-1", "-0.5", "0", "2.5", "2.50", "2.49999", "1.999"},
           {"-1.26", "-1.251", "2.51", "3", "-2"}},
          {R"({"type": "number", "exclusiveMinimum": 1.25, "exclusiveMaximum": 1.5})",
           {"1.3", "1.251", "1.49"},
           {"1.25", "1.250", "1.5", "1.2", "1"}},
          {R"({"type": "number", "minimum": 90, "maximum": 90})", {"90", "90.0"}, {"90.1", "89"}},
          {R"({"type": "integer", "multipleOf": 7})",
           {"0", "7", "-14", "700", "1001"},
           {"1", "8", "-15"}},
          {R"({"type": "integer", "multipleOf": 5, "minimum": 7, "maximum": 23})",
           {"10", "15", "20"},
           {"5", "25", "12"}},
          {R"({"type": "integer", "multipleOf": 3, "minimum": 1})", {"3", "33"}, {"0", "-3", "4"}},
          {R"({"type": "number", "multipleOf": 0.01})", {"0", "1.5", "1.25", "-3"}, {"1.255"}},
          {R"({"type": "number", "multipleOf": 0.01, "minimum": 0.5})",
           {"0.5", "0.55", "7"},
           {"0.4", "0.555"}},
          {R"({"type": "number", "multipleOf": 0.5, "minimum": -1, "maximum": 1})",
           {"-1", "-0.5", "0", "0.5", "1"},
           {"0.25", "1.5"}},
          {R"({"type": "number", "maximum": 1e300})", {"5", "-5"}, {"x"}},
          {R"({"type": "number", "minimum": 5e-324, "maximum": 1})", {"1", "0.5"}, {"0"}},
          {R"({"const": 9.999999999999999e+22})", {"9.999999999999999e+22"}, {"9.9e22"}},
          // They mean what is written, and not the double next to it.
          {R"({"type": "integer", "minimum": 100000000000000000000000, "maximum": 1e23})",
           {"100000000000000000000000"},
           {"99999999999999991611392", "99999999999999999999999", "100000000000000000000001"}},
          {R"({"type": "number", "minimum": -1.5e-7, "maximum": 12345678901234567000})",
           {"-0.00000015", "0", "12345678901234567000"},
           {"-0.00000016", "12345678901234567000.1", "12345678901234567001"}},
          {R"({"type": "integer", "minimum": 18446744073709551614})",
           {"18446744073709551614", "18446744073709551615"},
           {"18446744073709551613"}},
      },
      compile_schema);
  EXPECT_EQ(
      message_of([] { compile_schema(R"({"type": "number", "minimum": 3, "maximum": 2})"); }),
      "the JSON schema can't be satisfied: no number of up to 32 digits before and behind the "
      "point fits /minimum and /maximum");
  EXPECT_EQ(message_of([] { compile_schema(R"({"minimum": 1e-300, "type": "number"})"); }), "");
}

TEST(JsonSchema, ListsOfValues) {
  check_cases(
      {
          {R"({"enum": ["a", "ab", 1, 2.5, null, [1, {"b": 2}], "é\n"]})",
           {"\"a\"", "\"ab\"", "1", "2.5", "null", "[1, {\"b\": 2}]", "[1,{\"b\":2}]", "\"é\\n\""},
           {"\"b\"", "2", "[1]"}},
          {R"({"const": 3.0})", {"3.0", "3"}, {"4"}},
          {R"({"type": "string", "enum": ["a", 1]})", {"\"a\""}, {"1"}},
          {R"({"enum": ["a", "bb", "ccc"], "minLength": 2})", {"\"bb\"", "\"ccc\""}, {"\"a\""}},
          {R"({"enum": [1, 5, 9], "const": 5})", {"5"}, {"1"}},
          {R"({"enum": [1, 5, 9, "a"], "minimum": 4})", {"5", "9", "\"a\""}, {"1"}},
          {R"({"enum": [1e20, 7, 14.0, 3], "minimum": 5, "multipleOf": 7})",
           {"7", "14", "14.0"},
           {"1e+20", "3"}},
          {R"({"enum": [0.3, 0.35, 1e22], "multipleOf": 0.1})", {"0.3", "1e+22"}, {"0.35"}},
          {R"({"allOf": [{"enum": [1, {"a": 1, "b": 2}]}, {"enum": [{"b": 2.0, "a": 1}, 2, 1.0]}]})",
           {"1", R"({"a": 1, "b": 2})"},
           {"2", "1.0"}},
          {R"({"enum": ["é😀", "abc", "2024-01-01"], "maxLength": 2})", {"\"é😀\""}, {"\"abc\""}},
          {R"({"enum": ["x", "2024-01-01", "2024-13-01"], "format": "date"})",
           {"\"2024-01-01\""},
           {"\"x\"", "\"2024-13-01\""}},
          {R"({"type": "object", "enum": [{"a": [1]}, {}]})", {R"({"a": [1]})", "{}"}, {"1"}},
      },
      compile_schema);
}

TEST(JsonSchema, CombinesSchemas) {
  check_cases(
      {
          {R"({"anyOf": [{"type": "integer"}, {"type": "string"}]})", {"1", "\"a\""}, {"null"}},
          {R"({"oneOf": [{"type": "integer"}, {"type": "string"}]})", {"1", "\"a\""}, {"null"}},
          {R"({"allOf": [{"type": "integer"}, {"minimum": 3}], "maximum": 5})",
           {"3", "5"},
           {"2", "6", "\"a\""}},
          {R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
               "anyOf": [{"properties": {"b": {"type": "null"}}, "required": ["b"]}, {"properties": {"a": {"minimum": 10}}}]})",
           {R"({"a": 1, "b": null})", R"({"a": 10})"},
           {R"({"a": 1})", R"({"b": null})"}},
          {R"({"$ref": "#/$defs/a", "maximum": 5, "$defs": {"a": {"type": "integer"}}})",
           {"5"},
           {"6", "\"a\""}},
          {R"({"$ref": "/$defs/a", "$defs": {"a": {"type": "integer"}}})", {"6"}, {"\"a\""}},
          {R"({"$defs": {"node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
               "required": ["next"], "additionalProperties": false}}, "$ref": "#/$defs/node"})",
           {R"({"next": null})", R"({"next": {"next": {"next": null}}})"},
           {"{}", R"({"next": {}})"}},
          {R"({"type": "array", "items": {"$ref": "#"}})", {"[]", "[[], [[]]]"}, {"[1]"}},
          {R"({"allOf": [{"$ref": "#/definitions/a"}, {"$ref": "#/definitions/a"}], "definitions": {"a": {"type": "null"}}})",
           {"null"},
           {"1"}},
          {R"({"$id": "http://x/y.json", "$ref": "http://x/y.json#/d/a%25~1b", "d": {"a%/b": {"type": "null"}}})",
           {"null"},
           {"1"}},
          {R"({"items": {"$ref": "#named"}, "type": "array", "$defs": {"a": {"$anchor": "named", "type": "null"}}})",
           {"[null]"},
           {"[1]"}},
          {R"({"allOf": [true, {}]})", {"1"}, {}},
          {R"({"$id": "http://x/a", "$defs": {"t": {"type": "null"}}, "type": "array",
               "items": {"$id": "b", "$defs": {"t": {"type": "integer"}}, "$ref": "#/$defs/t"}})",
           {"[1]"},
           {"[null]"}},
      },
      compile_schema);
}

TEST(JsonSchema, MembersHaveTheOrderOfTheDocument) {
  const std::string a = R"("properties": {"a": {"type": "null"}})";
  const std::string b = R"({"properties": {"b": {"type": "null"}}})";
  for (const std::string& part : {"\"allOf\": [" + b + "]", "\"anyOf\": [" + b + "]",
                                  "\"$ref\": \"#/$defs/b\", \"$defs\": {\"b\": " + b + "}"}) {
    const auto behind = compile_schema("{" + a + ", " + part + "}");
    EXPECT_TRUE(accepts(*behind, R"({"a": null, "b": null})")) << part;
    EXPECT_FALSE(accepts(*behind, R"({"b": null, "a": null})")) << part;
    const auto before = compile_schema("{" + part + ", " + a + "}");
    EXPECT_TRUE(accepts(*before, R"({"b": null, "a": null})")) << part;
    EXPECT_FALSE(accepts(*before, R"({"a": null, "b": null})")) << part;
  }
}

TEST(JsonSchema, RefusesWithThePath) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"properties": {"a": {"not": {}}}})",
       "JSON schema at /properties/a: not can't be enforced; leave it out, or say it in another "
       "way"},
      {R"({"items": {"uniqueItems": true}})",
       "JSON schema at /items: uniqueItems can't be enforced; leave it out, or say it in another "
       "way"},
      {R"({"if": {}, "then": {}})",
       "JSON schema: if can't be enforced; leave it out, or say it in another way"},
      {R"({"contains": {}})",
       "JSON schema: contains can't be enforced; leave it out, or say it in another way"},
      {R"({"dependencies": {"a": ["b"]}})",
       "JSON schema: dependencies can't be enforced; leave it out, or say it in another way"},
      {R"({"unevaluatedProperties": false})",
       "JSON schema: unevaluatedProperties can't be enforced; leave it out, or say it in another "
       "way"},
      {R"({"$ref": "http://other/x"})",
       "JSON schema: $ref names \"http://other/x\", which is not in this schema"},
      {R"({"$ref": "#/$defs/b"})",
       "JSON schema: $ref names \"#/$defs/b\", which is not in this schema"},
      {R"({"$ref": "#"})", "JSON schema: it refers to itself without anything in between"},
      {R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})",
       "JSON schema: it refers to itself without anything in between"},
      {R"({"type": "objekt"})", "JSON schema: type is \"objekt\", which is no type"},
      {R"({"properties": []})", "JSON schema: properties is not an object"},
      {R"({"minLength": -1})", "JSON schema: minLength is not a whole number of zero or more"},
      {R"({"items": 3})",
       "JSON schema at /items: it is no schema: expected an object, true or false"},
      {R"({"anyOf": []})", "JSON schema: anyOf is an empty list"},
      {R"({"multipleOf": 0})", "JSON schema: multipleOf is no number above zero"},
      {R"({"type": "string", "pattern": "(a"})",
       "JSON schema: pattern has a group that is not closed (at position 0)"},
      {R"({"enum": [{"a": 1}], "properties": {"a": {"$ref": "#"}}})",
       "JSON schema: properties beside an enum or const with lists or objects is not supported"},
      {R"({"const": [1], "minItems": 2})",
       "JSON schema: minItems beside an enum or const with lists or objects is not supported"},
      {R"({"properties": {"a": {"enum": [1, 123456789012345678901234567890]}}})",
       "the JSON schema: the number 123456789012345678901234567890 at /properties/a/enum/1 can't "
       "be held exactly; use fewer digits"},
      {"false", "the JSON schema can't be satisfied: no value fits false"},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
       "the JSON schema can't be satisfied: a part of it requires itself, without end"},
  };
  for (const auto& [schema, message] : cases) {
    EXPECT_EQ(message_of([&] { compile_schema(schema); }), message) << schema;
  }
  EXPECT_NE(message_of([] { compile_schema("{"); }).find("the JSON schema"), std::string::npos);
  // Where it can't narrow anything it is no matter.
  for (const char* schema :
       {R"({"type": "string", "uniqueItems": true})", R"({"uniqueItems": false})", R"({"if": {}})",
        R"({"type": "array", "dependencies": {"a": ["b"]}})"}) {
    EXPECT_EQ(message_of([&] { compile_schema(schema); }), "") << schema;
  }
}

TEST(JsonSchema, NotesBranchesThatMayOverlap) {
  const std::string cat =
      R"({"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]})";
  const std::string dog =
      R"({"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}}, "required": ["kind"]})";
  const auto notes_of = [](const std::string& branches, const std::string& more = "") {
    return compile_schema(R"({"items": {"oneOf": [)" + branches + "]}" + more + "}")->notes();
  };
  for (const std::string& branches :
       {std::string(R"({"type": "integer"}, {"type": "string"})"),
        std::string(R"({"const": 1}, {"enum": ["a", 2]})"),
        cat + "," + dog + R"(,{"type": "null"})",
        R"({"properties": {"kind": {"const": "cow"}}, "required": ["kind"]},)" + cat,
        dog + R"(, {"allOf": [{"$ref": "#/$defs/cat"}]})"}) {
    EXPECT_EQ(notes_of(branches, R"(, "$defs": {"cat": )" + cat + "}").size(), 0u) << branches;
  }
  for (const std::string& branches :
       {std::string(R"({"type": "integer"}, {"minimum": 3})"),
        // Nothing says that the member is there, or that there are members.
        std::string(R"({"properties": {"k": {"const": 1}}}, {"properties": {"k": {"const": 2}}})"),
        // One instance may have both.
        std::string(
            R"({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
               {"type": "object", "properties": {"b": {"const": 2}}, "required": ["b"]})")}) {
    const auto notes = notes_of(branches);
    ASSERT_EQ(notes.size(), 1u) << branches;
    EXPECT_EQ(notes[0],
              "JSON schema at /items: branches of oneOf may overlap; it is taken for anyOf");
  }
}

TEST(JsonSchema, OptionsSayWhatStandsBetweenTokens) {
  const std::string schema =
      R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}})";
  JsonSchemaOptions options;
  options.disable_any_whitespace = true;
  const auto tight = demo_compiler().json_schema(schema, options);
  EXPECT_TRUE(accepts(*tight, R"({"a": 1, "b": 2})"));
  EXPECT_TRUE(accepts(*tight, R"({"a":1,"b":2})"));
  EXPECT_FALSE(accepts(*tight, R"({ "a": 1})"));
  EXPECT_FALSE(accepts(*tight, "{\n\"a\": 1}"));
  options = {};
  options.whitespace_pattern = "\\s*";
  const auto odd = demo_compiler().json_schema(schema, options);
  EXPECT_TRUE(accepts(*odd, "{\t\t\"a\"\r\n:1}"));
  EXPECT_FALSE(accepts(*odd, "{\v\"a\":1}"));
  options.whitespace_pattern = " |xyz";
  EXPECT_EQ(message_of([&] { demo_compiler().json_schema(schema, options); }),
            "whitespace_pattern has a part that is no white space of JSON (at position 2)");
  options = {};
  options.disable_additional_properties = true;
  const auto closed = demo_compiler().json_schema(schema, options);
  EXPECT_TRUE(accepts(*closed, R"({"a": 1})"));
  EXPECT_FALSE(accepts(*closed, R"({"c": 1})"));
  // Where no member is named, nothing is left to close.
  EXPECT_TRUE(accepts(*closed, R"({"b": {"x": 1}})"));
  EXPECT_TRUE(accepts(*demo_compiler().json_object(options), R"({"x": 1})"));
  const auto patterns = demo_compiler().json_schema(
      R"({"type": "object", "patternProperties": {"^x": {"type": "null"}}})", options);
  EXPECT_TRUE(accepts(*patterns, R"({"x1": null})"));
  EXPECT_FALSE(accepts(*patterns, R"({"y": null})"));
}

TEST(JsonSchema, OptionsAndSchemasAreToldApart) {
  JsonSchemaOptions first, second;
  first.whitespace_pattern = "\n";
  second.whitespace_pattern = "\n\n";
  const auto one = demo_compiler().json_schema("\n{\"type\": \"array\"}", first);
  const auto other = demo_compiler().json_schema("{\"type\": \"array\"}", second);
  EXPECT_TRUE(accepts(*one, "[\n]"));
  EXPECT_TRUE(accepts(*other, "[\n\n]"));
}

TEST(JsonSchema, WhitespaceEnds) {
  const auto grammar = compile_schema("true");
  EXPECT_TRUE(accepts(*grammar, "[\n" + std::string(64, ' ') + "]"));
  EXPECT_FALSE(accepts(*grammar, "[\n" + std::string(65, ' ') + "]"));
}

TEST(JsonSchema, NamesThatAreNotAllowedHaveABound) {
  const auto schema_of = [](size_t size) {
    return R"({"type": "object", "additionalProperties": {"type": "integer"}, "properties": {")" +
           std::string(size, 'a') + R"(\u0001": {"type": "null"}}})";
  };
  const std::string longest(59994, 'a');
  const auto grammar = compile_schema(schema_of(longest.size()));
  EXPECT_TRUE(accepts(*grammar, "{\"" + longest + "\\u0001\": null}"));
  EXPECT_FALSE(accepts(*grammar, "{\"" + longest + "\\u0001\": 1}"));
  EXPECT_TRUE(accepts(*grammar, "{\"" + longest + "\": 1}"));
  EXPECT_EQ(message_of([&] { compile_schema(schema_of(longest.size() + 1)); }),
            "JSON schema: properties has a name of more than 60000 bytes in JSON");
}

TEST(JsonSchema, LargeSchemasAreCompiledOrRefusedSoon) {
  std::string nested = R"({"type": "integer"})";
  for (int i = 0; i < 30; ++i) nested = R"({"oneOf": [)" + nested + R"(, {"type": "string"}]})";
  EXPECT_TRUE(accepts(*compile_schema(nested), "1"));
  std::string doubled = R"({"$ref": "#/$defs/d0", "$defs": {"d30": {"type": "integer"})";
  for (int i = 0; i < 30; ++i) {
    const std::string next = "#/$defs/d" + std::to_string(i + 1);
    doubled += R"(, "d)" + std::to_string(i) + R"(": {"oneOf": [{"$ref": ")" + next +
               R"("}, {"type": "array", "items": {"$ref": ")" + next + R"("}}]})";
  }
  EXPECT_TRUE(accepts(*compile_schema(doubled + "}}"), "[[1]]"));
  std::string product = R"({"allOf": [)";
  for (int i = 0; i < 30; ++i) {
    product += std::string(i > 0 ? "," : "") + R"({"anyOf": [{"minimum": )" + std::to_string(i) +
               R"(}, {"maximum": )" + std::to_string(i) + "}]}";
  }
  EXPECT_NE(
      message_of([&] { compile_schema(product + "]}"); }).find("more than 10000 combinations"),
      std::string::npos);
  std::string patterns = R"({"allOf": [)";
  for (int i = 0; i < 40; ++i) {
    patterns += std::string(i > 0 ? "," : "") + R"({"type": "string", "pattern": "a)" +
                std::to_string(i) + "\"}";
  }
  EXPECT_NE(message_of([&] { compile_schema(patterns + "]}"); }).find("more than 30 times"),
            std::string::npos);
  const auto keys = [](int count) {
    std::string schema = R"({"patternProperties": {)";
    for (int i = 0; i < count; ++i) {
      schema += fmt::format(R"({}"^a{}": {{}})", i > 0 ? "," : "", i);
    }
    return message_of([&] { compile_schema(schema + "}}"); });
  };
  EXPECT_EQ(keys(29), "");
  EXPECT_EQ(keys(30), "JSON schema: patternProperties are more than 29 patterns");
  std::string wide = R"({"type": "object", "properties": {)";
  for (int i = 0; i < 5000; ++i) {
    wide += std::string(i > 0 ? "," : "") + "\"property" + std::to_string(i) +
            R"(": {"type": "integer"})";
  }
  EXPECT_TRUE(
      accepts(*compile_schema(wide + "}}"), R"({"property7": 1, "property4999": 2, "other": 3})"));
  std::string chain = R"({"$ref": "#/$defs/d0", "$defs": {)";
  for (int i = 0; i < 5000; ++i) {
    chain += "\"d" + std::to_string(i) + R"(": {"type": "array", "items": {"$ref": "#/$defs/d)" +
             std::to_string(i + 1) + "\"}},";
  }
  EXPECT_TRUE(accepts(*compile_schema(chain + R"("d5000": {"type": "null"}}})"), "[[[]]]"));
  std::string parts = "{}";
  for (int i = 1; i < 2000; ++i) parts += ",{}";
  EXPECT_NE(message_of([&] {
              compile_schema(R"({"allOf": [)" + parts + "]}");
            }).find("allOf and what else speaks of this value has too many parts"),
            std::string::npos);
  std::string branches = "{}";
  for (int i = 1; i < 100000; ++i) branches += ",{}";
  EXPECT_NE(message_of([&] {
              compile_schema(R"({"allOf": [)" + parts.substr(3000) + R"(], "anyOf": [)" + branches +
                             "]}");
            }).find("takes too many steps to compile"),
            std::string::npos);
  std::string texts = "\"t\"";
  for (int i = 1; i < 10000; ++i) texts += ",\"t" + std::to_string(i) + "\"";
  const auto listed = compile_schema(R"({"maxLength": 4, "allOf": [{"enum": [)" + texts +
                                     R"(]}, {"enum": [)" + texts + "]}]}");
  EXPECT_TRUE(accepts(*listed, "\"t999\""));
  EXPECT_FALSE(accepts(*listed, "\"t9999\""));
  std::string anchors;
  std::string names;
  for (int i = 0; i < 5000; ++i) {
    anchors += fmt::format(R"("d{}": {{"$anchor": "a{}"}}, )", i, i);
    names += fmt::format(R"({{"$ref": "#a{}"}}, )", i);
  }
  EXPECT_TRUE(accepts(*compile_schema(R"({"type": "array", "prefixItems": [)" + names +
                                      R"({}], "$defs": {)" + anchors + R"("end": {}}})"),
                      "[1, 2]"));
  std::string many = R"({"type": "array", "prefixItems": [{})";
  for (int i = 0; i < 5000; ++i) {
    many += fmt::format(
        R"(, {{"type": "string", "pattern": "^[a-z]{{900}}{}", "maxLength": 2000}})", i);
  }
  EXPECT_NE(message_of([&] { compile_schema(many + "]}"); }).find("are too large together"),
            std::string::npos);
  EXPECT_NE(message_of([] {
              compile_schema("\"" + std::string(1 << 20, 'a') + "\"");
            }).find("bytes; at most 1048576 are supported"),
            std::string::npos);
  EXPECT_NE(message_of([] { compile_schema(std::string(101, '[') + std::string(101, ']')); }), "");
}

// Schemas are short, and what they say is long.
TEST(JsonSchema, WhatIsNamedAgainAndAgainHasABound) {
  std::string doubled = R"({"$ref": "#/$defs/d0", "$defs": {"d100": {"type": "integer"})";
  for (int i = 0; i < 100; ++i) {
    doubled += fmt::format(
        R"(, "d{}": {{"allOf": [{{"$ref": "#/$defs/d{}"}}, {{"$ref": "#/$defs/d{}"}}]}})", i, i + 1,
        i + 1);
  }
  const auto grammar = compile_schema(doubled + "}}");
  EXPECT_TRUE(accepts(*grammar, "1"));
  EXPECT_FALSE(accepts(*grammar, "\"a\""));

  const auto joined = [](int count, const char* format) {
    std::string all;
    for (int i = 0; i < count; ++i) {
      if (i > 0) all += ",";
      all += fmt::format(fmt::runtime(format), fmt::arg("i", i));
    }
    return all;
  };
  // What is large is named by so many branches.
  const auto named = [&](const std::string& large, int count) {
    return message_of([&] {
      compile_schema(R"({"$defs": {"large": {)" + large + R"(}}, "anyOf": [)" +
                     joined(count, R"({{"$ref": "#/$defs/large", "title": "{i}"}})") + "]}");
    });
  };
  const std::string cases[] = {
      joined(30'000, R"("annotation{i}": 1)"),
      R"("required": [)" + joined(3000, "\"name{i}\"") + "]",
      R"("enum": [)" + joined(30'000, "\"value{i}\"") + "]",
      R"("propertyNames": {"enum": [)" + joined(10'000, "\"name{i}\"") + "]}",
      R"("maxProperties": 10, "properties": {)" + joined(1000, R"("name{i}": {{}})") + "}"};
  for (const std::string& large : cases) {
    EXPECT_EQ(named(large, 1), "") << large.substr(0, 60);
    EXPECT_NE(named(large, 900).find(": up to here the schema takes too many steps to compile; "),
              std::string::npos)
        << large.substr(0, 60);
  }
  // Each has a table of characters that are missing.
  const auto counted = [&](int count) {
    return message_of([&] {
      compile_schema(
          R"({"prefixItems": [)" +
          joined(count,
                 R"({{"pattern": "^[a-z]{{900}}{i}", "minLength": 280, "type": "string"}})") +
          "]}");
    });
  };
  EXPECT_EQ(counted(1), "");
  EXPECT_NE(counted(100).find(": up to here the schema takes too many steps"), std::string::npos);
}

TEST(JsonSchema, ManyRequiredMembersAreCompiledSoon) {
  std::string names, members, text;
  for (int i = 0; i < 4000; ++i) {
    const char* const comma = i > 0 ? "," : "";
    names += fmt::format("{}\"p{}\"", comma, i);
    members += fmt::format(R"({}"p{}": {{"type": "integer"}})", comma, i);
    text += fmt::format("{}\"p{}\":1", comma, i);
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto grammar = compile_schema(R"({"type": "object", "properties": {)" + members +
                                      R"(}, "required": [)" + names + "]}");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_TRUE(accepts(*grammar, "{" + text + "}"));
  EXPECT_FALSE(accepts(*grammar, "{" + text.substr(0, text.rfind(',')) + "}"));
}

}  // namespace
}  // namespace nanovllm::grammar
