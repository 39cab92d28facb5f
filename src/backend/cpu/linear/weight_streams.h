// How weights come in from memory. Plain declarations: files for one instruction set include this.
#pragma once

namespace nanovllm {

// How the cores of a processor best read the weights of few rows (measured:
// docs/measurements/2026-11-23.md).
enum class WeightStreams {
  kSeveral,      // several at once a core, asked for ahead: any but AMD's
  kOne,          // one, asked for ahead: AMD's from Zen 5 on
  kOneForeseen,  // one, not asked for by loops so light that the processor runs ahead: up to Zen 4
};

// What suits this processor.
WeightStreams weight_streams();

}  // namespace nanovllm
