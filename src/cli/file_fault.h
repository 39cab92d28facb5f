// What the binary says where a mapped file is cut short, or its disk fails, while it is read.
#pragma once

namespace nanovllm::cli {

// From now on such a fault (SIGBUS beyond the end of a mapping) ends the program with one sentence
// on stderr and kExitError. The library checks sizes before it copies; what is left to this are
// files cut between check and copy, and weights that are read in place while the model runs.
void explain_file_faults();

}  // namespace nanovllm::cli
