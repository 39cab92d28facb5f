#include "server/agents/custom_input.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace nanovllm::server {
namespace {

void expect_input(const std::string& arguments, const std::string& input) {
  for (size_t cut = 0; cut <= arguments.size(); ++cut) {
    CustomInput reader;
    std::string all = reader.append(std::string_view(arguments).substr(0, cut));
    all += reader.append(std::string_view(arguments).substr(cut));
    all += reader.finish();
    EXPECT_EQ(all, input) << arguments << " cut at " << cut;
  }
  CustomInput reader;
  std::string all;
  for (const char byte : arguments) all += reader.append(std::string_view(&byte, 1));
  EXPECT_EQ(all + reader.finish(), input) << arguments;
}

TEST(CustomInput, IsTheStringWithoutItsEscapes) {
  expect_input(R"({"input": "*** Begin\n+\"a\"\t\\ \/ \u00e9"})", "*** Begin\n+\"a\"\t\\ / é");
  expect_input("{ \n\"input\" :\"\"}", "");
  expect_input("{\"input\": \"a line\nof text\"}", "a line\nof text");
  expect_input(R"({"input": "\ud83d\ude00."})", "😀.");
  expect_input(R"({"input": "a", "more": 1})", "a");
  expect_input(R"({"more": {"x": 1}, "input": "a\nb"})", "a\nb");
}

TEST(CustomInput, IsAllThatIsNoSuchObject) {
  for (const char* text :
       {"", "*** Begin Patch\n", "{}", R"({"patch": "a"})", R"({"input": 3})", R"({"in put": "a"})",
        R"({" input ": "a"})", R"(["input"])", R"({"inp)", "{broken"}) {
    expect_input(text, text);
  }
}

TEST(CustomInput, KeepsWhatIsNoEscape) {
  expect_input(R"({"input": "\d+\."})", R"(\d+\.)");
  expect_input(R"({"input": "\u12x\u00e9"})", "\\u12xé");
  expect_input(R"({"input": "\ud83d"})", "\xEF\xBF\xBD");
  expect_input(R"({"input": "\ud83d\n"})", "\xEF\xBF\xBD\n");
  expect_input(R"({"input": "\ud83d\u0041"})",
               "\xEF\xBF\xBD"
               "A");
  expect_input(R"({"input": "\ud83d\ud83d\ude00"})", "\xEF\xBF\xBD😀");
  expect_input(R"({"input": "\ude00"})", "\xEF\xBF\xBD");
  expect_input(R"({"input": "cut off)", "cut off");
  expect_input(R"({"input": "cut off\)", "cut off");
}

TEST(CustomInput, ComesBackAsItWasWritten) {
  std::mt19937 random(1);
  const std::string signs[] = {"a", "\"", "\\", "\n", "é", "😀", "\t", "{", "}", "u", "d83d", "/"};
  for (int round = 0; round < 200; ++round) {
    std::string input;
    for (unsigned i = random() % 20; i > 0; --i) input += signs[random() % std::size(signs)];
    for (const bool ascii : {false, true}) {
      expect_input(nlohmann::json({{"input", input}}).dump(-1, ' ', ascii), input);
    }
  }
}

}  // namespace
}  // namespace nanovllm::server
