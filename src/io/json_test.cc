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
  EXPECT_EQ(parse_json(text, "here"), nlohmann::json::parse(text));
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

}  // namespace
}  // namespace nanovllm
