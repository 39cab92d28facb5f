#include "api/structured_outputs_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "api/json.h"
#include "nanovllm/error.h"

namespace nanovllm {
namespace {

using Json = nlohmann::ordered_json;

StructuredOutputsParams read(const char* text) {
  return read_structured_outputs(Json::parse(text));
}

template <typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(StructuredOutputsJson, ReadsEveryFieldAndWritesItAgain) {
  const StructuredOutputsParams all{.json = R"({"b":1,"a":2})",
                                    .regex = "a+",
                                    .choice = {{"x", ""}},
                                    .grammar = "root ::= \"a\"",
                                    .json_object = true,
                                    .structural_tag = "{}",
                                    .disable_any_whitespace = true,
                                    .disable_additional_properties = true,
                                    .whitespace_pattern = " ?"};
  EXPECT_EQ(read_structured_outputs(to_json(all)), all);
  EXPECT_EQ(to_json(StructuredOutputsParams()), Json::object());
  EXPECT_EQ(read(R"({})"), StructuredOutputsParams());
  // As Python's asdict() writes vLLM's class.
  EXPECT_EQ(read(R"({"json":null,"regex":"a","choice":null,"json_object":null,
                     "disable_any_whitespace":false,"_backend":null,"_backend_was_auto":false})"),
            StructuredOutputsParams{.regex = "a"});
}

TEST(StructuredOutputsJson, KeepsTheOrderOfASchema) {
  const char* schema =
      R"({"type":"object","properties":{"z":{"type":"null"},"a":{"type":"null"}}})";
  EXPECT_EQ(read_structured_outputs({{"json", Json::parse(schema)}}).json, schema);
  EXPECT_EQ(read_structured_outputs({{"json", schema}}).json, schema);
  EXPECT_EQ(read(R"({"json":"{"})").json, "{");  // which the compiler refuses
  EXPECT_EQ(read(R"({"structural_tag":{"z":1,"a":2}})").structural_tag, R"({"z":1,"a":2})");
}

TEST(StructuredOutputsJson, RefusesOtherTypesAndFields) {
  const std::pair<const char*, const char*> cases[] = {
      {"3", "structured_outputs must be an object, got 3"},
      {R"({"json":3})", "structured_outputs.json must be a JSON object, or the text of one, got 3"},
      {R"({"regex":{}})", "structured_outputs.regex must be a text, got an object"},
      {R"({"choice":"a"})", "structured_outputs.choice must be a list of texts, got \"a\""},
      {R"({"choice":["a",1]})", "structured_outputs.choice must hold texts only, got 1"},
      {R"({"json_object":1})", "structured_outputs.json_object must be true or false, got 1"},
      {R"({"structural_tag":[]})",
       "structured_outputs.structural_tag must be a JSON object, or the text of one, got an array"},
      {R"({"regexp":"a"})",
       "structured_outputs has no \"regexp\"; there are json, regex, choice, grammar, json_object, "
       "structural_tag, disable_any_whitespace, disable_additional_properties, "
       "whitespace_pattern"},
  };
  for (const auto& [text, sentence] : cases) {
    EXPECT_EQ(refusal([&, &text = text] { read(text); }), sentence);
  }
}

std::optional<StructuredOutputsParams> of_format(const char* text) {
  SamplingParams params;
  apply_response_format(Json::parse(text), params);
  return params.structured_outputs;
}

TEST(ResponseFormat, SaysWhatTheOutputFollows) {
  using P = StructuredOutputsParams;
  EXPECT_EQ(of_format(R"({"type":"text"})"), std::nullopt);
  EXPECT_EQ(of_format(R"({"type":"json_object"})"), P{.json_object = true});
  EXPECT_EQ(of_format(R"({"type":"json_schema","json_schema":{
                "name":"n","strict":true,"description":"d","schema":{"b":1,"a":2}}})"),
            P{.json = R"({"b":1,"a":2})"});
  for (const char* type : {"json_object", "json_schema"}) {
    const Json llama_cpp = {{"type", type}, {"schema", {{"a", 1}}}};
    EXPECT_EQ(of_format(llama_cpp.dump().c_str()), P{.json = R"({"a":1})"});
  }
  const char* tag = R"({"type":"structural_tag","format":{"type":"any_text"}})";
  EXPECT_EQ(of_format(tag), P{.structural_tag = tag});
}

TEST(ResponseFormat, RefusesWhatItIsNot) {
  const std::pair<const char*, const char*> cases[] = {
      {"3", "response_format must be an object, got 3"},
      {"{}", "response_format.type must be given"},
      {R"({"type":"xml"})",
       "response_format.type must be text, json_object, json_schema or structural_tag, got "
       "\"xml\""},
      {R"({"type":"json_schema"})", "response_format.json_schema must be given"},
      {R"({"type":"json_schema","json_schema":[]})",
       "response_format.json_schema must be an object, got an array"},
      {R"({"type":"json_schema","json_schema":{"name":"n"}})",
       "response_format.json_schema.schema must be given"},
      {R"({"type":"json_schema","json_schema":{"schema":"{}"}})",
       "response_format.json_schema.schema must be an object, got \"{}\""},
  };
  for (const auto& [text, sentence] : cases) {
    EXPECT_EQ(refusal([&, &text = text] { of_format(text); }), sentence);
  }
  SamplingParams params;
  params.structured_outputs = {.regex = "a"};
  EXPECT_EQ(refusal([&] {
              apply_response_format({{"type", "json_object"}}, params);
            }),
            "response_format and structured_outputs both say what the output must follow; leave "
            "one of them out");
  apply_response_format({{"type", "text"}}, params);
  EXPECT_EQ(params.structured_outputs, StructuredOutputsParams{.regex = "a"});
}

TEST(ParseRequestLine, TakesStructuredOutputsAndResponseFormat) {
  using P = StructuredOutputsParams;
  SamplingParams defaults;
  defaults.structured_outputs = P{.regex = "a"};
  const auto asked = [&](const char* text) {
    return parse_request_line(text, defaults).params.structured_outputs;
  };
  EXPECT_EQ(asked(R"({"prompt":"a"})"), P{.regex = "a"});
  EXPECT_EQ(asked(R"({"prompt":"a","sampling_params":{"structured_outputs":{"choice":["b"]}}})"),
            (P{.choice = {{"b"}}}));
  EXPECT_EQ(asked(R"({"prompt":"a","sampling_params":{"structured_outputs":null}})"), std::nullopt);
  EXPECT_EQ(asked(R"({"prompt":"a","response_format":null})"), P{.regex = "a"});
  EXPECT_EQ(asked(R"({"prompt":"a","response_format":{"type":"text"}})"), std::nullopt);
  EXPECT_EQ(asked(R"({"prompt":"a","response_format":{"type":"json_object"}})"),
            P{.json_object = true});
  EXPECT_NE(refusal([&] {
              asked(R"({"prompt":"a","response_format":{"type":"json_object"},
                        "sampling_params":{"structured_outputs":{"choice":["b"]}}})");
            }),
            "");
}

}  // namespace
}  // namespace nanovllm
