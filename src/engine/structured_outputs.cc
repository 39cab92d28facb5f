#include "engine/structured_outputs.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/parameter_error.h"
#include "grammar/structural_tag.h"
#include "grammar/token_index.h"

namespace nanovllm {
namespace {

constexpr const char* kParameter = "structured_outputs";
constexpr size_t kMaxBytes = size_t{1} << 20;  // of a text; the compiler bounds schemas itself

void check_size(const char* name, size_t num_bytes) {
  if (num_bytes <= kMaxBytes) return;
  refuse_parameter(kParameter, "structured_outputs.{} may have {} bytes, got {}.", name, kMaxBytes,
                   num_bytes);
}

std::shared_ptr<const Grammar> made_of(const StructuredOutputsParams& asked,
                                       const GrammarCompiler& grammars) {
  const JsonSchemaOptions options = {
      .disable_any_whitespace = asked.disable_any_whitespace,
      .whitespace_pattern = asked.whitespace_pattern,
      .disable_additional_properties = asked.disable_additional_properties};
  if (asked.json) return grammars.json_schema(*asked.json, options);
  if (asked.regex) return grammars.regex(*asked.regex);
  if (asked.choice) return grammars.choice(*asked.choice);
  if (asked.grammar) return grammars.gbnf(*asked.grammar);
  if (asked.json_object) return grammars.json_object(options);
  return grammars.structural_tag(asked.structural_tag.value(), options);
}

// Calls what throws, and says of which parameter.
template <typename Work>
auto named(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw ParameterError(error.code(), kParameter, fmt::format("{}.", error.what()));
  }
}

}  // namespace

void StructuredOutputsParams::validate() const {
  std::string names;
  size_t count = 0;
  for (const auto& [name, is_set] :
       {std::pair{"json", json.has_value()}, std::pair{"regex", regex.has_value()},
        std::pair{"choice", choice.has_value()}, std::pair{"grammar", grammar.has_value()},
        std::pair{"json_object", json_object},
        std::pair{"structural_tag", structural_tag.has_value()}}) {
    if (!is_set) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
    ++count;
  }
  if (count > 1) {
    refuse_parameter(kParameter,
                     "You can only use one kind of structured outputs constraint but multiple are "
                     "specified: {}.",
                     names);
  }
  if (count == 0) {
    refuse_parameter(kParameter,
                     "You must use one kind of structured outputs constraint but none are "
                     "specified: one of json, regex, choice, grammar, json_object, "
                     "structural_tag.");
  }
  for (const auto& [name, text] : {std::pair{"regex", &regex}, std::pair{"grammar", &grammar},
                                   std::pair{"structural_tag", &structural_tag},
                                   std::pair{"whitespace_pattern", &whitespace_pattern}}) {
    if (*text) check_size(name, (*text)->size());
  }
  size_t num_bytes = 0;
  for (const std::string& text : choice.value_or(std::vector<std::string>())) {
    num_bytes += text.size();
  }
  check_size("choice", num_bytes);
}

std::shared_ptr<const Grammar> compile(const StructuredOutputsParams& asked,
                                       const GrammarCompiler& grammars) {
  asked.validate();
  return named([&] { return made_of(asked, grammars); });
}

bool is_known(const StructuredOutputsParams& asked, const GrammarCompiler& grammars) {
  try {
    return compile(asked, grammars.known()) != nullptr;
  } catch (const Error&) {
    return true;
  }
}

void check_structured_outputs(const StructuredOutputsParams& asked) {
  if (asked.structural_tag) {  // it may name tokens: only its JSON is looked at
    asked.validate();
    named([&] { grammar::parse_structural_tag(*asked.structural_tag); });
    return;
  }
  compile(asked, GrammarCompiler(
                     std::make_shared<const grammar::TokenIndex>(std::vector<std::string>{""})));
}

}  // namespace nanovllm
