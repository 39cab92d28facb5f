#include "server/config_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "nanovllm/error.h"

namespace nanovllm::server {
namespace {

using Words = std::vector<std::string>;

std::string config_of(const std::string& text) {
  // Tests run beside each other, each in a process of its own.
  const std::string path =
      ::testing::TempDir() + "serve_config_" + std::to_string(::getpid()) + ".yaml";
  std::ofstream(path) << text;
  return path;
}

TEST(ConfigFile, FlagsStandInFrontOfThoseOfTheCommandLine) {
  const std::string path = config_of(
      "port: 9000\nmax_model_len: 128\napi-key: [a, 'true', 12]\nenforce-eager: true\n"
      "deterministic: false\nuds:\nhost: \"true\"\nextra: {a: [1, x, \"2\", null, true]}\n");
  const Words expected = {"MODEL",
                          "--port=9000",
                          "--max-model-len=128",
                          "--api-key=a",
                          "--api-key=true",
                          "--api-key=12",
                          "--enforce-eager=true",
                          "--deterministic=false",
                          "--host=true",
                          R"(--extra={"a":[1,"x","2",null,true]})",
                          "--port",
                          "1"};
  EXPECT_EQ(with_config_file({"MODEL", "--port", "1", "--config", path}), expected);
  EXPECT_EQ(with_config_file({"MODEL", "--config=" + path, "--port", "1"}), expected);
}

TEST(ConfigFile, TheModelIsTheCommandLinesWhereItHasOne) {
  const std::string path = config_of("port: 1\nmodel: there\n");
  EXPECT_EQ(with_config_file({"--config", path}), (Words{"there", "--port=1"}));
  EXPECT_EQ(with_config_file({"here", "--config", path}), (Words{"here", "--port=1"}));
}

TEST(ConfigFile, YamlsWordsForTrueAndFalseTurnFlagsOnAndOff) {
  for (const char* word : {"true", "True", "TRUE", "yes", "Yes", "on", "ON"}) {
    EXPECT_EQ(with_config_file({"--config", config_of(std::string("a: ") + word)}),
              (Words{"--a=true"}))
        << word;
  }
  for (const char* word : {"false", "False", "no", "NO", "off", "Off"}) {
    EXPECT_EQ(with_config_file({"--config", config_of(std::string("a: ") + word)}),
              (Words{"--a=false"}))
        << word;
  }
  for (const char* word : {"maybe", "y", "N", "1", "0", "none"}) {
    EXPECT_EQ(with_config_file({"--config", config_of(std::string("a: ") + word)}),
              (Words{std::string("--a=") + word}));
  }
  EXPECT_EQ(with_config_file({"--config", config_of("a: 'yes'\nb: [no]")}),
            (Words{"--a=yes", "--b=no"}));
}

TEST(ConfigFile, ItsPathIsTheLastOneGiven) {
  EXPECT_EQ(path_of_config({"MODEL", "--config", "a", "--config=b", "--port", "1"}), "b");
  EXPECT_EQ(path_of_config({"MODEL", "--port", "1"}), "");
}

TEST(ConfigFile, AnEmptyKeyIsNoAbsentOne) {
  for (const char* text : {"api_key:", "api-key: ''", "api_key: ~", "api-key: [\"\"]"}) {
    EXPECT_EQ(with_config_file({"MODEL", "--config", config_of(text)}),
              (Words{"MODEL", "--api-key", ""}))
        << text;
  }
}

TEST(ConfigFile, WithoutOneTheWordsStayAsTheyAre) {
  EXPECT_EQ(with_config_file({"MODEL", "--port", "1"}), (Words{"MODEL", "--port", "1"}));
  EXPECT_EQ(with_config_file({"MODEL", "--config"}), (Words{"MODEL", "--config"}));
  EXPECT_EQ(with_config_file({"MODEL", "--config", config_of("")}), (Words{"MODEL"}));
}

TEST(ConfigFile, WhatIsNoMapOfFlagsIsRefusedWithItsPath) {
  for (const char* text : {"- a\n", "word", "a: [", "a: b: c"}) {
    const std::string path = config_of(text);
    try {
      with_config_file({"MODEL", "--config", path});
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
      EXPECT_TRUE(std::string(error.what()).starts_with(path)) << error.what();
    }
  }
  EXPECT_THROW(with_config_file({"MODEL", "--config", "/nonexistent/file"}), Error);
}

TEST(ConfigFile, AnEmptyPathIsRefused) {
  for (const Words& words : {Words{"MODEL", "--config", ""}, Words{"--config=", "MODEL"}}) {
    try {
      with_config_file(words);
      FAIL() << words.front();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_TRUE(std::string(error.what()).starts_with("--config: must not be empty"));
    }
  }
}

}  // namespace
}  // namespace nanovllm::server
