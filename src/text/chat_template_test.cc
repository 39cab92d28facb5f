#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "io/gguf_testing.h"
#include "nanovllm/chat.h"
#include "nanovllm/error.h"

namespace nanovllm {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A folder that looks like a model's, gone after the test.
class ChatTemplateFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              (std::string("chat_template_") + info->name() + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  void write_config(const Json& config) const { write("tokenizer_config.json", config.dump()); }
  std::unique_ptr<ChatTemplate> load() const { return ChatTemplate::load(folder_.string()); }
  std::string render(const Json& tools = nullptr, const Json& kwargs = Json::object()) const {
    return load()->render({{{"role", "user"}, {"content", "hi"}}}, tools, false, kwargs);
  }
  // The code of the error that loading gives.
  ErrorCode load_error() const {
    try {
      load();
    } catch (const Error& error) {
      return error.code();
    }
    ADD_FAILURE() << "loaded";
    return ErrorCode::kInternal;
  }

  fs::path folder_;
};

TEST_F(ChatTemplateFolder, TheJinjaFileGoesBeforeAllOthers) {
  write_config({{"chat_template", "config"}});
  EXPECT_EQ(render(), "config");
  write("chat_template.json", R"({"chat_template": "legacy"})");
  EXPECT_EQ(render(), "legacy");
  write("chat_template.jinja", "file");
  EXPECT_EQ(render(), "file");
}

TEST_F(ChatTemplateFolder, ToolsChooseTheTemplateForTools) {
  const Json default_template = {{"name", "default"}, {"template", "default"}};
  const Json tool_template = {{"name", "tool_use"}, {"template", "tools"}};
  write_config({{"chat_template", {default_template, tool_template}}});
  EXPECT_EQ(render(), "default");
  EXPECT_EQ(render(Json::array()), "tools");
  write_config({{"chat_template", {default_template}}});
  EXPECT_EQ(render(Json::array()), "default");
  write_config({{"chat_template", {tool_template}}});
  EXPECT_THROW(render(), Error);
}

TEST_F(ChatTemplateFolder, AdditionalTemplatesAreFound) {
  write("chat_template.jinja", "default");
  write("additional_chat_templates/tool_use.jinja", "tools");
  EXPECT_EQ(render(), "default");
  EXPECT_EQ(render(Json::array()), "tools");
}

TEST_F(ChatTemplateFolder, SpecialTokensAreStringsOrObjectsAndKwargsOverrideThem) {
  write_config({{"chat_template", "{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}"},
                {"bos_token", "<s>"},
                {"eos_token", {{"content", "</s>"}, {"lstrip", false}}},
                {"pad_token", nullptr}});
  EXPECT_EQ(render(), "<s>|</s>|False");
  EXPECT_EQ(render(nullptr, {{"bos_token", "<b>"}}), "<b>|</s>|False");
}

TEST_F(ChatTemplateFolder, OlderFoldersKeepSpecialTokensInAFileOfTheirOwn) {
  Json config = {{"chat_template", "{{ bos_token }}|{{ eos_token }}"}, {"bos_token", "<old>"}};
  write("special_tokens_map.json", R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}})");
  write_config(config);
  EXPECT_EQ(render(), "<s>|</s>");
  config["added_tokens_decoder"] = Json::object();
  write_config(config);
  EXPECT_EQ(render(), "<old>|");
}

TEST_F(ChatTemplateFolder, ATemplateOfOnesOwnGetsTheSpecialTokensOfTheModel) {
  write_config({{"chat_template", "the model's"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}});
  const auto own = ChatTemplate::from_source("{{ bos_token }}own{{ eos_token }}", folder_.string());
  EXPECT_EQ(own->render({{{"role", "user"}}}, nullptr, false, Json::object()), "<s>own</s>");
  write("tokenizer_config.json", "{");
  EXPECT_THROW(ChatTemplate::from_source("own", folder_.string()), Error);
  fs::remove(folder_ / "tokenizer_config.json");
  EXPECT_EQ(ChatTemplate::from_source("{{ bos_token is defined }}", folder_.string())
                ->render({{{"role", "user"}}}, nullptr, false, Json::object()),
            "False");
}

TEST_F(ChatTemplateFolder, WhatIsMissingOrBrokenIsSaid) {
  EXPECT_EQ(load_error(), ErrorCode::kNotFound);
  write_config({{"chat_template", nullptr}});
  EXPECT_EQ(load_error(), ErrorCode::kNotFound);
  write_config({{"chat_template", 5}});
  EXPECT_EQ(load_error(), ErrorCode::kCorruptData);
  write_config({{"chat_template", {{{"name", "default"}}}}});
  EXPECT_EQ(load_error(), ErrorCode::kCorruptData);
  write("tokenizer_config.json", "{");
  EXPECT_EQ(load_error(), ErrorCode::kCorruptData);
  write("tokenizer_config.json",
        R"({"x": )" + std::string(300000, '[') + std::string(300000, ']') + "}");
  EXPECT_EQ(load_error(), ErrorCode::kCorruptData);
}

TEST_F(ChatTemplateFolder, ATemplateThatCanNotBeUsedIsToldAndRefusedWhereItIsNeeded) {
  const auto refusal = [&](const Json& tools) {
    try {
      render(tools);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
      return std::string(error.what());
    }
    return std::string();
  };
  write("chat_template.jinja", "text\n{% include 'x' %}");
  const std::string fault = load()->fault(false);
  EXPECT_EQ(fault.find((folder_ / "chat_template.jinja").string() +
                       ": chat template, line 2, column 4: the statement 'include' is not"),
            0u)
      << fault;
  EXPECT_EQ(load()->fault(true), fault);
  EXPECT_EQ(refusal(nullptr), fault);
  write("chat_template.jinja", "fine");
  EXPECT_EQ(load()->fault(false) + load()->fault(true), "");
  write("additional_chat_templates/tool_use.jinja", "{% if %}");
  EXPECT_EQ(load()->fault(false) + refusal(nullptr), "");
  EXPECT_NE(load()->fault(true).find("tool_use.jinja: chat template, line 1"), std::string::npos);
  EXPECT_EQ(refusal(Json::array()), load()->fault(true));
  try {
    ChatTemplate::from_source("{% if %}", folder_.string(), "own.jinja");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("own.jinja: chat template, line 1"), 0u);
  }
}

// Each of them alone, so that another template could take the place of one that is passed over.
TEST_F(ChatTemplateFolder, WhatIsNoReadableFileIsNeitherReadNorTakenForAbsent) {
  const std::pair<const char*, const char*> names[] = {
      {"chat_template.jinja", "template"},
      {"additional_chat_templates/tool_use.jinja", "template"},
      {"chat_template.json", R"({"chat_template": "template"})"},
      {"special_tokens_map.json", "{}"},
      {"tokenizer_config.json", R"({"chat_template": "template"})"}};
  for (const auto& [name, text] : names) {
    TearDown();
    write_config({{"chat_template", "another"}});
    const fs::path path = folder_ / name;
    const auto expect_refused = [&, name = name](const std::string& why) {
      try {
        load();
        ADD_FAILURE() << "loaded: " << name << ", " << why;
      } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()).find(path.string()), 0u) << error.what();
        EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
      }
      fs::remove(path);
    };
    write(name, text);
    EXPECT_NO_THROW(load()) << name;
    fs::resize_file(path, (64 << 20) + 1);
    expect_refused("67108865 bytes long");
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    expect_refused("not a regular file");
    fs::create_directory(path);
    expect_refused("not a regular file");
    fs::create_symlink("/dev/zero", path);
    expect_refused("not a regular file");
    fs::create_symlink("nowhere", path);
    expect_refused("a link to nowhere: no such file");
    fs::create_symlink(path.filename(), path);
    expect_refused("Too many levels of symbolic links");
  }
  TearDown();
  write_config({{"chat_template", "another"}});
  EXPECT_NO_THROW(load());
  fs::create_symlink("nowhere", folder_ / "additional_chat_templates");
  EXPECT_EQ(load_error(), ErrorCode::kNotFound);
}

std::string render(const std::string& source, const Json& messages, const Json& tools = nullptr,
                   bool prompt = false, const Json& kwargs = Json::object()) {
  return ChatTemplate(source).render(messages, tools, prompt, kwargs);
}

const Json kHello = {{{"role", "user"}, {"content", "Hello"}}};

TEST(ChatTemplate, ChatMlRendersAsTrained) {
  const std::string source =
      "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' "
      "}}{%- endfor %}\n{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}\n"
      "{%- if enable_thinking is defined and enable_thinking is false %}"
      "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}";
  const std::string turn = "<|im_start|>user\nHello<|im_end|>\n";
  EXPECT_EQ(render(source, kHello), turn);
  EXPECT_EQ(render(source, kHello, nullptr, true), turn + "<|im_start|>assistant\n");
  EXPECT_EQ(render(source, kHello, nullptr, true, {{"enable_thinking", true}}),
            turn + "<|im_start|>assistant\n");
  EXPECT_EQ(render(source, kHello, nullptr, true, {{"enable_thinking", false}}),
            turn + "<|im_start|>assistant\n<think>\n\n</think>\n\n");
}

TEST(ChatTemplate, ToolsAndDocumentsAreThereAndNoneWithoutAny) {
  EXPECT_EQ(render("{{ tools is none }}{{ documents is none }}", kHello), "TrueTrue");
  const Json tool = {{"type", "function"}, {"function", {{"name", "f"}, {"a", 1.0}}}};
  EXPECT_EQ(render("{% for t in tools %}{{ t|tojson }}{% endfor %}{{ documents[0].text }}", kHello,
                   Json::array({tool}), false, {{"documents", {{{"text", "d"}}}}}),
            R"({"type": "function", "function": {"name": "f", "a": 1.0}}d)");
}

TEST(ChatTemplate, ToolsHaveADescriptionWhereTheTemplateJoinsItToOtherTexts) {
  const Json tools =
      Json::array({{{"type", "function"}, {"function", {{"name", "f"}, {"description", nullptr}}}},
                   {{"type", "function"}, {"function", {{"name", "g"}, {"description", "does"}}}}});
  EXPECT_EQ(render("{% for t in tools %}{{ '//' + t.function.description + ';' }}{% endfor %}",
                   kHello, tools),
            "//;//does;");
  EXPECT_EQ(render("{% for t in tools %}{{ t.function.description | tojson }}{% endfor %}", kHello,
                   tools),
            "null\"does\"");
}

TEST(ChatTemplate, NullValuesOfAMessageAreLeftOutAndItsContentIsEmpty) {
  EXPECT_EQ(render("[{{ messages[0].content }}]{{ messages[0].tool_calls is defined }}",
                   {{{"role", "user"}, {"content", nullptr}, {"tool_calls", nullptr}}}),
            "[]False");
}

TEST(ChatTemplate, ReasoningIsFoundUnderEveryName) {
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    EXPECT_EQ(render("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}",
                     {{{"role", "assistant"}, {name, "r"}}}),
              "rr")
        << name;
  }
}

TEST(ChatTemplate, ErrorsSayWhere) {
  try {
    render("line one\n  {{ raise_exception('roles must alternate') }}", kHello);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_STREQ(error.what(), "chat template, line 2, column 21: roles must alternate");
  }
  try {
    ChatTemplate("a\n{{ \xC3\xA4\xC3\xA4 ( }}");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
    EXPECT_EQ(std::string(error.what()).rfind("chat template, line 2, column ", 0), 0U)
        << error.what();
  }
}

TEST(ChatTemplate, WrongInputIsRefused) {
  EXPECT_THROW(render("", Json::array()), Error);
  EXPECT_THROW(render("", "text"), Error);
  EXPECT_THROW(render("", Json::array({5})), Error);
  EXPECT_THROW(render("", kHello, "tools"), Error);
  EXPECT_THROW(render("", kHello, nullptr, false, Json::array()), Error);
}

TEST(ChatTemplate, InvalidUtf8PassesThrough) {
  const Json messages = {{{"role", "user"},
                          {"content",
                           "a\xFF"
                           "b"}}};
  EXPECT_EQ(render("{{ messages[0].content|trim }}{{ messages[0].content|length }}", messages),
            "a\xFF"
            "b3");
}

TEST(ChatTemplate, OneTemplateServesManyThreads) {
  const ChatTemplate shared(
      "{% for m in messages %}{{ '\xC3\xA4' ~ m.content|upper ~ 'text'[1:3] }}{% endfor %}");
  std::vector<std::thread> threads;
  std::vector<std::string> results(4);
  for (std::string& result : results) {
    threads.emplace_back([&shared, &result] {
      for (int i = 0; i < 200; ++i) result = shared.render(kHello, nullptr, false, Json::object());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& result : results) EXPECT_EQ(result, "\xC3\xA4HELLOex");
}

testing::GgufWriter vocabulary_with_specials() {
  return testing::GgufWriter()
      .add("tokenizer.ggml.model", std::string("llama"))
      .add("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "<s>", "</s>", "<p>"})
      .add("tokenizer.ggml.eos_token_id", 3);
}

TEST_F(ChatTemplateFolder, OfGgufFiles) {
  testing::GgufWriter file = vocabulary_with_specials();
  file.add("tokenizer.chat_templates", std::vector<std::string>{"tool_use"})
      .add("tokenizer.chat_template", std::string("{{ bos_token }}{{ eos_token }}{{ pad_token }}"));
  write("model.gguf", file.bytes());
  EXPECT_EQ(render(), "<s><p>");
  EXPECT_EQ(render(Json::array()), "<s><p>");
  write("model.gguf",
        file.add("tokenizer.chat_template.tool_use", std::string("tools {{ eos_token }}")).bytes());
  EXPECT_EQ(render(), "<s><p>");
  EXPECT_EQ(render(Json::array()), "<s>tools <p>");
  const auto other = ChatTemplate::from_source("{{ bos_token }}!", folder_ / "model.gguf");
  EXPECT_EQ(other->render({{{"role", "user"}, {"content", "hi"}}}, nullptr, false, {}), "<s>!");
}

TEST_F(ChatTemplateFolder, OfAGgufFileThatCanNotBeUsed) {
  write("model.gguf", vocabulary_with_specials()
                          .add("tokenizer.chat_template", std::string("a\n{% include 'x' %}"))
                          .bytes());
  EXPECT_NE(load()->fault(false).find("model.gguf: tokenizer.chat_template: chat template, line 2"),
            std::string::npos)
      << load()->fault(false);
}

// llama.cpp's rule: the token that add_bos_token asks for stands before a chat too, once.
TEST_F(ChatTemplateFolder, OfGgufFilesBeginWithTheBosThatTheyAskFor) {
  const auto rendered = [&](const char* source, std::optional<bool> adds_bos) {
    testing::GgufWriter file = vocabulary_with_specials();
    file.add("tokenizer.chat_template", std::string(source));
    if (adds_bos) file.add("tokenizer.ggml.add_bos_token", *adds_bos);
    write("model.gguf", file.bytes());
    EXPECT_EQ(load()->adds_bos(), adds_bos.value_or(true));
    return render();
  };
  const char* without = "U: {{ messages[0].content }}";
  EXPECT_EQ(rendered(without, true), "<s>U: hi");
  EXPECT_EQ(rendered(without, std::nullopt), "<s>U: hi");  // SentencePiece's default
  EXPECT_EQ(rendered(without, false), "U: hi");
  for (const char* with : {"{{ bos_token }}U: {{ messages[0].content }}",
                           "\n\n{{ bos_token }}U: {{ messages[0].content }}"}) {
    for (const bool adds_bos : {false, true}) {
      const std::string text = rendered(with, adds_bos);
      EXPECT_EQ(text.find("<s>U: hi"), text.find("<s>"));
      EXPECT_EQ(text.find("<s>"), text.rfind("<s>")) << text;
    }
  }
  write("model.gguf", vocabulary_with_specials()
                          .add("tokenizer.ggml.bos_token_id", uint32_t{4294967295})
                          .add("tokenizer.chat_template", std::string(without))
                          .bytes());
  EXPECT_FALSE(load()->adds_bos());
  EXPECT_EQ(render(), "U: hi");
}

TEST_F(ChatTemplateFolder, OfFoldersBeginAsTheyAre) {
  write_config({{"chat_template", "{{ messages[0].content }}"},
                {"bos_token", "<s>"},
                {"add_bos_token", true}});
  EXPECT_EQ(render(), "hi");
  EXPECT_FALSE(load()->adds_bos());
}

TEST_F(ChatTemplateFolder, GgufFilesWithoutOne) {
  write("model.gguf", vocabulary_with_specials().bytes());
  EXPECT_EQ(load_error(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace nanovllm
