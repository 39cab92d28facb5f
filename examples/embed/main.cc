// The library in a program of your own: generate for several prompts, streaming as the tokens come.
#include <cstdio>

#include "nanovllm/llm.h"

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: embed MODEL_FOLDER [DEVICE]\n");
    return 2;
  }
  try {
    nanovllm::LLM llm(argv[1], {.max_model_len = 256, .device = argc > 2 ? argv[2] : "auto"});
    nanovllm::SamplingParams params;
    params.temperature = 0;
    params.max_tokens = 32;
    int64_t steps = 0;
    const auto outputs = llm.generate({"Once upon a time", "The little dog"}, params,
                                      [&](const auto& /*changed*/, const auto& /*step*/) {
                                        ++steps;
                                        return true;  // false stops
                                      });
    for (const auto& output : outputs) {
      std::printf("%s|%s\n", output.prompt.c_str(), output.outputs[0].text.c_str());
    }
    return steps > 0 ? 0 : 1;
  } catch (const nanovllm::Error& error) {
    std::fprintf(stderr, "embed: %s\n", error.what());
    return 1;
  }
}
