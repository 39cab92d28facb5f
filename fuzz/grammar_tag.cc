// Any bytes as a structural tag, and behind the first zero byte as a text: it is refused, or the
// automaton stays within its bounds, and has a way on from each state that is not dead.
#include "check_automaton.h"
#include "fuzzing.h"
#include "grammar/structural_tag.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  static const grammar::TokenIndex kTokens(
      {"a", "b", "<", ">", "</", "tool", grammar::TokenIndex::symbol("<tool>"), "{\"", "\": "});
  const std::string_view input = fuzzing::as_text(data, size);
  const std::string_view tag = input.substr(0, input.find('\0'));
  const std::string_view text = tag.size() < input.size() ? input.substr(tag.size() + 1)
                                                          : "some text <tool>{\"a\": 1}</tool>";
  fuzzing::run_or_refuse([&] {
    grammar::Syntax syntax;
    std::vector<std::string> notes;
    const grammar::NodeId start =
        syntax.finish(grammar::compile_structural_tag(tag, {}, kTokens, syntax, notes));
    if (start == syntax.never()) return;
    grammar::check_automaton(syntax, start, text);
    grammar::check_automaton(syntax, start, kTokens.with_symbols(text));
  });
  return 0;
}
