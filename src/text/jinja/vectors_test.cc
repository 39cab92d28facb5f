// Published chat templates and snippets with the text that real Jinja2 gives.
#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "base/testing.h"
#include "io/reference_data_testing.h"
#include "text/jinja/testing.h"

namespace nanovllm::jinja {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The vectors' clock: 2025-07-10 12:00.
RenderOptions at_mock_date() {
  std::tm now{};
  now.tm_year = 125;
  now.tm_mon = 6;
  now.tm_mday = 10;
  now.tm_hour = 12;
  now.tm_wday = 4;
  now.tm_yday = 190;
  RenderOptions options;
  options.now = now;
  return options;
}

class ChatTemplateVectors : public testing::ReferenceDataTest {
 protected:
  ChatTemplateVectors() : ReferenceDataTest({"chat-templates"}) {}

  fs::path folder() const { return ReferenceDataTest::folder("chat-templates"); }
};

INSTANTIATE_TEST_SUITE_P(All, ChatTemplateVectors, testing::kExtents, testing::name_of_extent);

TEST_P(ChatTemplateVectors, TemplatesRenderAsInJinja2) {
  const Json vectors = Json::parse(read(folder() / "chat_template_vectors.json"));
  int compared = 0;
  for (const char* group : {"default_templates", "custom_templates"}) {
    for (const auto& [name, vector] : vectors.at(group).items()) {
      const Program program(vector.at("chat_template").get<std::string>());
      const auto target = vector.at("target").get<std::string>();
      EXPECT_EQ(program.render(vector.at("data"), at_mock_date()), target) << name;
      ++compared;
    }
  }
  EXPECT_EQ(compared, is_whole() ? 27 : 13);
}

// What is refused, and how.
const std::map<std::string, std::string> kRefused = {
    {"MACROS_3", "line 1, column 78: the statement 'call' is not supported"},
    {"MACROS_4", "line 1, column 109: the statement 'call' is not supported"},
};

TEST_P(ChatTemplateVectors, SnippetsRenderAsInJinja2) {
  const Json vectors = Json::parse(read(folder() / "jinja_syntax_vectors.json"));
  int compared = 0;
  for (const Json& vector : vectors) {
    // Functions of JavaScript can't be given as data.
    if (vector.at("has_function").get<bool>()) continue;
    const auto source = vector.at("template").get<std::string>();
    ++compared;
    const Json& expected = vector.at("expected_jinja2");
    if (const auto refused = kRefused.find(vector.at("name")); refused != kRefused.end()) {
      EXPECT_EQ(error_of(source), "chat template, " + refused->second);
    } else if (expected.is_null()) {
      EXPECT_THROW(Program(source).render(vector.at("context")), Error) << source;
    } else {
      EXPECT_EQ(Program(source).render(vector.at("context")), expected.get<std::string>())
          << source;
    }
  }
  EXPECT_EQ(compared, 157);
}

TEST_P(ChatTemplateVectors, EveryTemplateCompiles) {
  int compiled = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder())) {
    if (entry.path().extension() != ".jinja") continue;
    EXPECT_NO_THROW(Program(read(entry.path()))) << entry.path();
    ++compiled;
  }
  EXPECT_EQ(compiled, is_whole() ? 56 : 23);
}

// Those whose licence allows them to be here.
TEST(ChatTemplateFixtures, PublishedTemplatesRenderAsInJinja2) {
  const fs::path folder = test::source_path("tests/data/chat_templates");
  const Json expected = Json::parse(read(folder / "expected.json"));
  const Json& cases = expected.at("cases");
  for (const auto& [name, texts] : expected.at("templates").items()) {
    const Program program(read(folder / name));
    ASSERT_EQ(texts.size(), cases.size()) << name;
    for (size_t i = 0; i < cases.size(); ++i) {
      const Json& variables = cases[i].at("variables");
      if (texts[i].is_null()) {
        EXPECT_THROW(program.render(variables, at_mock_date()), Error) << name << cases[i];
      } else {
        EXPECT_EQ(program.render(variables, at_mock_date()), texts[i].get<std::string>())
            << name << ", " << cases[i].at("name");
      }
    }
  }
  EXPECT_EQ(expected.at("templates").size(), 23U);
}

}  // namespace
}  // namespace nanovllm::jinja
