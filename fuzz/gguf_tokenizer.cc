// Any bytes as a GGUF file: it is refused, or its tokenizer encodes, decodes and streams as every
// tokenizer does; its chat template is read as well.
#include "check_ids.h"
#include "fuzzing.h"
#include "io/temp_dir_testing.h"
#include "nanovllm/chat.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  static const testing::TempDir kFolder;
  const std::string path = kFolder.write("vocabulary.gguf", fuzzing::as_text(data, size));
  fuzzing::run_or_refuse([&] { fuzzing::check_tokenizer(*Tokenizer::load(path)); });
  fuzzing::run_or_refuse([&] { ChatTemplate::load(path); });
  return 0;
}
