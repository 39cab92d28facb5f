// Any bytes as a regular expression, and behind the first zero byte as a text: it is refused, or
// the automaton stays within its bounds, and has a way on from each state that is not dead.
#include "check_automaton.h"
#include "fuzzing.h"
#include "grammar/regex.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  const std::string_view input = fuzzing::as_text(data, size);
  const std::string_view pattern = input.substr(0, input.find('\0'));
  const std::string_view text =
      pattern.size() < input.size() ? input.substr(pattern.size() + 1) : "aab0 b\n";
  fuzzing::run_or_refuse([&] {
    grammar::Syntax syntax;
    const grammar::NodeId start = syntax.finish(grammar::compile_regex(pattern, syntax));
    if (start != syntax.never()) grammar::check_automaton(syntax, start, text);
  });
  return 0;
}
