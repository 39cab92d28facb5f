// What an output must follow as a grammar, whatever it is written as.
#pragma once

#include <memory>

#include "grammar/grammar.h"
#include "nanovllm/sampling_params.h"

namespace nanovllm {

// Throws ParameterError for what validate() and the compiler refuse.
std::shared_ptr<const Grammar> compile(const StructuredOutputsParams& asked,
                                       const GrammarCompiler& grammars);
// Whether compile() need not compile, which may take part of a second, for it knows the grammar or
// refuses it without.
bool is_known(const StructuredOutputsParams& asked, const GrammarCompiler& grammars);
// The same where there is no tokenizer yet, for what is wrong whatever the tokenizer is.
void check_structured_outputs(const StructuredOutputsParams& asked);

}  // namespace nanovllm
