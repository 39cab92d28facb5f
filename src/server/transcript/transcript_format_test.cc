#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "io/reference_data_testing.h"
#include "server/transcript/transcript_parser.h"

namespace nanovllm::server {
namespace {

TEST(TranscriptFormat, IsFoundInTheTemplate) {
  EXPECT_EQ(transcript_format_of(""), TranscriptFormat{});
  EXPECT_EQ(transcript_format_of("<tool_call>{%- if enable_thinking is defined and "
                                 "enable_thinking is false %}<think></think>"),
            (TranscriptFormat{"qwen3", "hermes"}));
  EXPECT_EQ(transcript_format_of("split('</think>') {{'<｜Assistant｜><think>\\n'}}"),
            (TranscriptFormat{"deepseek_r1", ""}));
  EXPECT_EQ(transcript_format_of("[TOOL_CALLS]"), (TranscriptFormat{"", "mistral"}));
  EXPECT_EQ(transcript_format_of("<|python_tag|> \"parameters\": <|eot_id|>"),
            (TranscriptFormat{"", "llama3_json"}));
}

TEST(TranscriptFormat, TagsOfThoughtsAreThoseOfTheTemplate) {
  const auto tags = [](const char* parser, const char* chat_template) {
    const ThoughtTags found = thought_tags({parser, ""}, chat_template);
    return std::pair(found.begin, found.end);
  };
  using Pair = std::pair<std::string, std::string>;
  EXPECT_EQ(tags("granite", "between <think></think> and"), Pair("<think>", "</think>"));
  EXPECT_EQ(tags("granite", "after 'Here is my thought process:' ... 'Here is my response:'"),
            Pair("Here is my thought process:", "Here is my response:"));
  EXPECT_EQ(tags("granite", ""), Pair("Here is my thought process:", "Here is my response:"));
  EXPECT_EQ(tags("qwen3", "no tags"), Pair("<think>", "</think>"));
  EXPECT_EQ(tags("", "</think>"), Pair("", ""));
}

TEST(TranscriptFormat, SaysWhereReasoningNeedsNoTag) {
  EXPECT_TRUE(thinks_at_once({"qwen3", ""}, "<|im_start|>assistant\n"));
  EXPECT_TRUE(thinks_at_once({"qwen3", ""}, "<|im_start|>assistant\n<think>\n"));
  EXPECT_TRUE(thinks_at_once({"mistral", ""}, "[/INST][THINK]"));
  EXPECT_FALSE(thinks_at_once({"qwen3", ""}, "<|im_start|>assistant\n<think>\n\n</think>\n"));
  EXPECT_FALSE(thinks_at_once({"mistral", ""}, "[/INST]"));
  EXPECT_FALSE(thinks_at_once({"", "hermes"}, "<think>"));
  EXPECT_FALSE(thinks_at_once({"openai_gptoss", "openai"}, "<|start|>assistant"));
}

class PublishedTranscriptFormat : public testing::ReferenceDataTest {
 protected:
  PublishedTranscriptFormat() : ReferenceDataTest({"chat-templates"}) {}
};

INSTANTIATE_TEST_SUITE_P(All, PublishedTranscriptFormat, testing::kExtents,
                         testing::name_of_extent);

TEST_P(PublishedTranscriptFormat, IsFoundInTheTemplate) {
  const std::map<std::string, TranscriptFormat> expected = {
      {"Qwen-Qwen2.5-7B-Instruct", {"", "hermes"}},
      {"Qwen-Qwen3-0.6B", {"qwen3", "hermes"}},
      {"Qwen-QwQ-32B", {"deepseek_r1", "hermes"}},
      {"Qwen3-Coder", {"", "qwen3_coder"}},
      {"Qwen3.5-4B", {"qwen3", "qwen3_coder"}},
      {"GLM-4.6", {"glm45", "glm45"}},
      {"GLM-4.7-Flash", {"glm45", "glm45"}},
      {"ibm-granite-granite-3.3-2B-Instruct", {"granite", "granite"}},
      {"mistralai-Ministral-3-14B-Reasoning-2512", {"mistral", "mistral"}},
      {"openai-gpt-oss-120b", {"openai_gptoss", "openai"}},
      {"ByteDance-Seed-OSS", {"", ""}},  // XML of its own
      {"NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"", "qwen3_coder"}},
      {"Bielik-11B-v3.0-Instruct", {"", "hermes"}},  // reasons only where it is asked to
      {"HuggingFaceTB-SmolLM3-3B", {"qwen3", ""}},
      {"MiMo-VL", {"", "hermes"}},
      {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", {"", "hermes"}},
      {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", {"", "hermes"}},
      {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", {"deepseek_r1", ""}},
      {"deepseek-ai-DeepSeek-V3.1", {"", ""}},
      {"llama-cpp-deepseek-r1", {"deepseek_r1", ""}},
      {"fireworks-ai-llama-3-firefunction-v2", {"", ""}},
      {"google-gemma-2-2b-it", {"", ""}},
      {"meetkai-functionary-medium-v3.1", {"", ""}},
      {"meta-llama-Llama-3.1-8B-Instruct", {"", "llama3_json"}},
      {"meta-llama-Llama-3.2-3B-Instruct", {"", "llama3_json"}},
      {"meta-llama-Llama-3.3-70B-Instruct", {"", "llama3_json"}},
      {"Mistral-Small-3.2-24B-Instruct-2506", {"", "mistral"}},
      {"mistralai-Mistral-Nemo-Instruct-2407", {"", "mistral"}},
      {"unsloth-mistral-Devstral-Small-2507", {"", "mistral"}},
      {"microsoft-Phi-3.5-mini-instruct", {"", ""}},
      {"unsloth-Apriel-1.5", {"", ""}},
  };
  int count = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder("chat-templates"))) {
    const auto row = expected.find(entry.path().stem());
    if (row == expected.end()) continue;
    const auto& [name, format] = *row;
    ++count;
    std::ifstream file(entry.path());
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const TranscriptFormat found = transcript_format_of(text);
    EXPECT_EQ(found, format) << name << ": " << found.reasoning_parser << ", "
                             << found.tool_call_parser;
  }
  EXPECT_EQ(count, is_whole() ? 31 : 20);
}

}  // namespace
}  // namespace nanovllm::server
