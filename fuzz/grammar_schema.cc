// Any bytes as a JSON Schema, and behind the first zero byte as an instance: the schema is refused,
// or the automaton stays within its bounds, and has a way on from each state that is not dead.
#include "check_automaton.h"
#include "fuzzing.h"
#include "grammar/json_schema.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  const std::string_view input = fuzzing::as_text(data, size);
  const std::string_view schema = input.substr(0, input.find('\0'));
  const std::string_view text =
      schema.size() < input.size() ? input.substr(schema.size() + 1) : "{\"a\": [1, \"b\"]}";
  fuzzing::run_or_refuse([&] {
    grammar::Syntax syntax;
    std::vector<std::string> notes;
    const grammar::NodeId start =
        syntax.finish(grammar::compile_json_schema(schema, {}, syntax, notes));
    if (start == syntax.never()) return;
    grammar::check_automaton(syntax, start, text);
  });
  return 0;
}
