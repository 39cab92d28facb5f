// What models of each family write in one dialogue with a tool and with thoughts.
#pragma once

#include <string>
#include <vector>

#include "server/transcript/transcript_testing.h"

namespace nanovllm::server {

inline const std::string kFamilyTools = R"([{"type": "function", "function": {"name": "get_weather",
  "description": "Looks the weather up.", "parameters": {"type": "object", "properties": {
    "city": {"type": "string", "description": "where"}, "days": {"type": "integer"},
    "detailed": {"type": "boolean"}, "parts": {"type": "array", "items": {"type": "string"}}},
  "required": ["city"]}}}])";
inline const std::string kFamilyArguments =
    R"({"city": "12", "days": 3, "detailed": true, "parts": ["rain", "\"wind\""]})";

struct Family {
  std::string name;
  std::string chat_template;  // a file of tests/data/chat_templates, or the text
  TranscriptFormat usual;     // of the architecture
  TranscriptFormat format;    // that is found
  // What the model writes; a tag behind kToken is a token where the tokenizer has such.
  std::string first, second;
  bool thinks = true;
  std::string kwargs = "{}";
};

// As those of OLMo 3 do it.
inline const std::string kOlmoTemplate =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{{ m.content or '' }}"
    "{% if m.role == 'system' and tools %}<functions>{{ tools | tojson }}</functions>{% endif %}"
    "{% if m.tool_calls %}<function_calls>{% for c in m.tool_calls %}{{ c.function.name }}("
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }}"
    "{% if not loop.last %}, {% endif %}{% endfor %}){% endfor %}</function_calls>{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>' }}{% endif %}";

inline std::string coder_parameter(const std::string& name, const std::string& value) {
  return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
}

inline std::string glm_argument(const std::string& name, const std::string& value) {
  return "<arg_key>" + name + "</arg_key>\n<arg_value>" + value + "</arg_value>\n";
}

inline std::vector<Family> families() {
  const std::string t(1, kToken), parts = R"(["rain", "\"wind\""])";
  const std::string named_call =
      R"({"name": "get_weather", "arguments": )" + kFamilyArguments + "}";
  const std::string think = t + "<think>\nIs it cold?\n" + t + "</think>\n\n";
  const std::string hermes = t + "<tool_call>\n" + named_call + "\n" + t + "</tool_call>";
  const TranscriptFormat qwen3 = {"qwen3", "hermes"};
  std::vector<Family> all;
  const auto harmony = [&](const std::string& header, const std::string& text) {
    return header + t + "<|message|>" + text;
  };
  const std::string channel = t + "<|channel|>", next = t + "<|end|>" + t + "<|start|>assistant";
  const std::string analysis = harmony(channel + "analysis", "Is it cold?");
  for (const std::string& header :
       {channel + "commentary to=functions.get_weather " + t + "<|constrain|>json",
        " to=functions.get_weather" + channel + "commentary json",
        channel + "analysis to=functions.get_weather"}) {
    for (const std::string end : {"", "<|call|>"}) {
      all.push_back(
          {"gpt-oss",
           "openai-gpt-oss-120b",
           {"openai_gptoss", "openai"},
           {"openai_gptoss", "openai"},
           analysis + next + harmony(channel + "commentary", "I look it up.") + next +
               harmony(header, kFamilyArguments) + (end.empty() ? "" : t + end),
           analysis + next + harmony(channel + "final", "It is cold.") + t + "<|return|>"});
    }
  }
  all.push_back({"GLM-4.6",
                 "GLM-4.6",
                 {"glm45", "glm45"},
                 {"glm45", "glm45"},
                 "\n" + t + "<think>Is it cold?" + t + "</think>\nI look it up.\n" + t +
                     "<tool_call>get_weather\n" + glm_argument("city", "12") +
                     glm_argument("days", "3") + glm_argument("detailed", "true") +
                     glm_argument("parts", parts) + t + "</tool_call>",
                 "\n" + t + "<think>Is it cold?" + t + "</think>\nIt is cold."});
  all.push_back({"Granite 3.3",
                 "ibm-granite-granite-3.3-2B-Instruct",
                 {"granite", "granite"},
                 {"granite", "granite"},
                 t + "<think>Is it cold?" + t + "</think>\n\n<response>I look it up.</response>\n" +
                     t + "<|tool_call|>[" + named_call + "]",
                 t + "<think>Is it cold?" + t + "</think>\n<response>It is cold.</response>",
                 true,
                 R"({"thinking": true})"});
  all.push_back({"Granite 3.2",
                 "ibm-granite-granite-3.3-2B-Instruct",
                 {"granite", "granite"},
                 {"granite", "granite"},
                 "Here is my thought process:\n\nIs it cold?\n\nHere is my response:\n\nI look it "
                 "up.\n\n" +
                     t + "<tool_call>[" + named_call + "]",
                 "Here's my thought process: Is it cold? Here's my response: It is cold."});
  all.push_back({"Granite without a thought",
                 "ibm-granite-granite-3.3-2B-Instruct",
                 {"granite", "granite"},
                 {"granite", "granite"},
                 "I look it up." + t + "<|tool_call|> [\n" + named_call + "\n]",
                 "It is cold.",
                 false});
  const std::string coder_call =
      t + "<tool_call>\n<function=get_weather>\n" + coder_parameter("city", "12") +
      coder_parameter("days", "3") + coder_parameter("detailed", "true") +
      coder_parameter("parts", parts) + "</function>\n" + t + "</tool_call>";
  all.push_back({"Qwen3-Coder",
                 "Qwen3-Coder",
                 qwen3,
                 {"", "qwen3_coder"},
                 "I look it up.\n\n" + coder_call,
                 "It is cold.",
                 false});
  // Dense ones and mixtures. The template opens a thought, or closes an empty one.
  const TranscriptFormat qwen3_5 = {"qwen3", "qwen3_coder"};
  const std::string thought = "Is it cold?\n" + t + "</think>\n\n";
  all.push_back({"Qwen3.5", "Qwen3.5-4B", qwen3_5, qwen3_5,
                 thought + "I look it up.\n\n" + coder_call, thought + "It is cold."});
  all.push_back({"Qwen3.5 without a thought", "Qwen3.5-4B", qwen3_5, qwen3_5,
                 "I look it up.\n\n" + coder_call, "It is cold.", false,
                 R"({"enable_thinking": false})"});
  all.push_back({"Qwen3-30B, of the same architecture", "Qwen-Qwen3-0.6B", qwen3, qwen3,
                 think + "I look it up.\n" + hermes, think + "It is cold."});
  all.push_back({"Ministral 3",
                 "mistralai-Ministral-3-14B-Reasoning-2512",
                 {"mistral", "mistral"},
                 {"mistral", "mistral"},
                 t + "[THINK]Is it cold?" + t + "[/THINK]I look it up." + t +
                     "[TOOL_CALLS]get_weather[ARGS]" + kFamilyArguments,
                 t + "[THINK]Is it cold?" + t + "[/THINK]It is cold."});
  all.push_back({"Mistral's older calls",
                 "mistralai-Ministral-3-14B-Reasoning-2512",
                 {"mistral", "mistral"},
                 {"mistral", "mistral"},
                 "I look it up." + t + "[TOOL_CALLS][" + named_call + "]",
                 "It is cold.",
                 false});
  all.push_back({"OLMo 3",
                 kOlmoTemplate,
                 {"olmo3", "olmo3"},
                 {"olmo3", "olmo3"},
                 "Is it cold?" + t + "</think>\nI look it up.\n" + t +
                     "<function_calls>get_weather(city=\"12\", "
                     "days=3, detailed=True, parts=" +
                     parts + ")" + t + "</function_calls>",
                 "Is it cold?" + t + "</think>\nIt is cold."});
  all.push_back({"Qwen2.5",
                 "Qwen-Qwen2.5-7B-Instruct",
                 {"", "hermes"},
                 {"", "hermes"},
                 "I look it up.\n" + hermes,
                 "It is cold.",
                 false});
  return all;
}

}  // namespace nanovllm::server
