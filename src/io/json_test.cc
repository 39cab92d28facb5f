#include "io/json.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/testing.h"
#include "nanovllm/error.h"

namespace nanovllm {
namespace {

std::string error_of(std::string_view text, const JsonRules& rules) {
  try {
    parse_ordered_json(text, "here", rules);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
    return error.what();
  }
  return "";
}

TEST(OrderedJson, KeepsEveryKindOfValueAndTheOrderOfKeys) {
  const std::string text =
      R"({"b":[1,-2,18446744073709551615,2.5,true,null,"x"],"a":{"d":{},"c":[[]]},"":1e+300})";
  EXPECT_EQ(parse_ordered_json(text, "here").dump(), text);
  EXPECT_EQ(parse_ordered_json(" 7 ", "here"), 7);
  EXPECT_EQ(parse_json(text, "here").dump(), text);
}

TEST(OrderedJson, TheLastOfEqualKeysCountsUnlessTheyAreRefused) {
  const std::string text = R"({"a":{"x":1},"b":{"a":2},"a":[3,{"a":4}]})";
  EXPECT_EQ(parse_ordered_json(text, "here").dump(), R"({"a":[3,{"a":4}],"b":{"a":2}})");
  EXPECT_EQ(error_of(text, {.allows_repeats = false}),
            "here: the key \"a\" appears twice in one object");
}

TEST(OrderedJson, RefusesWhatIsTooDeepOrTooMuchOrNoJson) {
  EXPECT_EQ(error_of("[[[]]]", {.max_depth = 3}), "");
  EXPECT_EQ(error_of("[[{}], [[[1]]]]", {.max_depth = 3}),
            "here: JSON nested deeper than 3 levels");
  EXPECT_EQ(error_of("[1, 2]", {.max_values = 3}), "");
  EXPECT_EQ(error_of("[1, 2, 3]", {.max_values = 3}), "here: more than 3 JSON values");
  EXPECT_TRUE(error_of("\n[1,]", {.first_line = 7})
                  .starts_with("here: not valid JSON: parse error at line 8, column 4: "));
  for (const char* text : {"", "[", "{\"a\"}", "NaN", "[1e999]", "\"\xff\"", "1 2"}) {
    EXPECT_TRUE(error_of(text, {}).starts_with("here: not valid JSON: ")) << text;
  }
}

TEST(OrderedJson, HoldsNumbersExactlyWhereItMust) {
  const JsonRules everywhere = {.exact_members = kEverywhere};
  for (const char* number :
       {"0", "-0.0", "0e99999999999999999999", "18446744073709551615", "-9223372036854775808",
        "0.1", "1.50", "100000000000000000000000", "1e23", "1E+0023", "0.00012e-3", "5e-324",
        "1.7976931348623157e308", "9.999999999999999e+22", "12300000000000000000000000000e-3",
        "0.30000000000000004"}) {
    EXPECT_EQ(error_of(number, everywhere), "") << number;
  }
  for (const char* number : {"18446744073709551617", "123456789012345678901234567890",
                             "-9223372036854775809.5", "1e-400", "3.14159265358979323846", "4e-324",
                             "0.1000000000000000055", "1e-99999999999999999999"}) {
    EXPECT_EQ(error_of(number, {}), "") << number;
    EXPECT_EQ(error_of(number, everywhere),
              fmt::format("here: the number {} at the beginning can't be held exactly; use fewer "
                          "digits",
                          number));
  }
  const std::string_view members[] = {"a", "b"};
  const JsonRules some = {.exact_members = members};
  const std::string large = "123456789012345678901";
  EXPECT_EQ(error_of(R"({"c":{"a":[)" + large + R"(]},"d":)" + large + "}", some), "");
  EXPECT_EQ(error_of("[" + large + "]", some), "");
  const auto place = [&](const std::string& text) {
    const std::string error = error_of(text, some);
    const size_t at = error.find(" at ");
    return error.substr(at + 4, error.find(" can't") - at - 4);
  };
  EXPECT_EQ(place(R"({"c":1,"b":)" + large + "}"), "/b");
  EXPECT_EQ(place(R"({"a":{"x":{},"y":[0,[],{"z":)" + large + "}]}}"), "/a/y/2/z");
  EXPECT_EQ(place(R"({"a":1,"c":2,"a":{"x":1,"y":2,"x":[)" + large + "]}}"), "/a/x/0");
}

TEST(OrderedJson, CountsWhatAListHasBeyondItsBoundAndDoesNotKeepIt) {
  JsonListBound bounds[] = {{.name = "a", .most = 2}, {.name = "b", .most = 3}};
  const auto parse = [&](std::string_view text) {
    for (JsonListBound& bound : bounds) bound.size = 0;
    return parse_ordered_json(text, "here", {}, bounds).dump();
  };
  EXPECT_EQ(parse(R"({"a":[1,[2,2,2]],"b":[{"a":[5,6,7]}],"c":[1,2,3,4]})"),
            R"({"a":[1,[2,2,2]],"b":[{"a":[5,6,7]}],"c":[1,2,3,4]})");
  EXPECT_EQ(bounds[0].size, 2u);
  EXPECT_EQ(bounds[1].size, 1u);
  EXPECT_EQ(parse(R"({"b":[1,{"x":{}},[3,[4]],[[5]],{"y":[6]}],"z":0})"),
            R"({"b":[1,{"x":{}},{"y":[6]}],"z":0})");
  EXPECT_EQ(bounds[0].size, 0u);
  EXPECT_EQ(bounds[1].size, 5u);
  EXPECT_EQ(parse("[[1,2,3,4]]"), "[[1,2,3,4]]");
  EXPECT_THROW(parse(R"({"a":[1,2,3,)"), Error);
}

TEST(OrderedJson, ManyKeysAndListsOfObjectsTakeLinearTime) {
  const auto repeated = [](size_t count, const char* open, const char* format, const char* close) {
    std::string text = open;
    for (size_t i = 0; i < count; ++i) text += fmt::format(fmt::runtime(format), i);
    return text + close;
  };
  EXPECT_TRUE(test::takes_linear_time(5'000, [&](size_t count) {
    parse_ordered_json(repeated(count, "{", "\"{}\": {{}}, ", "\"\": 0}"), "here");
  }));
  EXPECT_TRUE(test::takes_linear_time(5'000, [&](size_t count) {
    parse_json(repeated(count, "[", "{{\"a\": {}}}, ", "0]"), "here");
  }));
}

TEST(JsonFields, AbsentOrNullReadsAsNothingAndAllElseIsOfItsTypeAndRange) {
  const Json object = parse_json(
      R"({"null": null, "five": 5, "huge": 18446744073709551615, "half": 0.5, "yes": true,
          "text": "t", "list": [1]})",
      "here");
  const JsonFields fields(object, "here");
  for (const char* key : {"null", "missing"}) {
    EXPECT_FALSE(fields.find(key) || fields.integer(key, 0, 1) || fields.number(key, 0, 1) ||
                 fields.boolean(key) || fields.string(key))
        << key;
  }
  EXPECT_TRUE(fields.has("null"));
  EXPECT_FALSE(fields.has("missing"));
  EXPECT_EQ(fields.integer("five", 5, 5), 5);
  EXPECT_EQ(fields.number("five", 4.5, 5), 5);
  EXPECT_EQ(fields.number("half", 0.5, 1), 0.5);
  EXPECT_EQ(fields.boolean("yes"), true);
  EXPECT_EQ(fields.string("text"), "t");
  EXPECT_EQ(&fields.required("list"), &object["list"]);
  EXPECT_EQ(fields.unread(), std::vector<std::string>{"huge"});

  const auto refusal = [](const auto& read) -> std::string {
    try {
      read();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal([&] { fields.integer("five", 6, 9); }),
            "here: \"five\" is 5, expected an integer from 6 to 9");
  EXPECT_EQ(refusal([&] { fields.integer("five", 1, 4); }),
            "here: \"five\" is 5, expected an integer from 1 to 4");
  EXPECT_EQ(refusal([&] { fields.integer("huge", 0, INT64_MAX); }),
            "here: \"huge\" is 18446744073709551615, expected an integer from 0 to "
            "9223372036854775807");
  EXPECT_EQ(refusal([&] { fields.integer("half", 0, 1); }),
            "here: \"half\" is 0.5, expected an integer from 0 to 1");
  EXPECT_EQ(refusal([&] { fields.number("yes", 0, 1); }),
            "here: \"yes\" is true, expected a number from 0 to 1");
  EXPECT_EQ(refusal([&] { fields.boolean("text"); }),
            "here: \"text\" is \"t\", expected true or false");
  EXPECT_EQ(refusal([&] { fields.string("list"); }),
            "here: \"list\" is an array, expected a string");
  EXPECT_EQ(refusal([&] { fields.required("null"); }), "here: \"null\" is missing");
  EXPECT_EQ(refusal([&] { JsonFields(object["list"], "here"); }),
            "here: expected a JSON object, found array");
}

}  // namespace
}  // namespace nanovllm
