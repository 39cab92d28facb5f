// Encodes and decodes for a program on the other end of a pipe.
//
// usage: tokenizer_driver MODEL_DIR
// Request: one letter, a 32-bit length, that many bytes. Reply: a 32-bit length, that many bytes.
// All integers are little-endian.
//   E text  -> ids with special tokens     e text -> ids without
//   D ids   -> text                        d ids  -> text without special tokens
//   S ids   -> text, through a Detokenizer s ids  -> the same without special tokens
//   T text  -> its id or nothing           I id   -> its token
// An error is answered with length 0xFFFFFFFF, a length and the message.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/tokenizer.h"
#include "text/detokenizer.h"

namespace {

using nanovllm::Tokenizer;

std::string bytes_of(std::span<const int32_t> ids) {
  return std::string(reinterpret_cast<const char*>(ids.data()), ids.size_bytes());
}

std::string answer(const Tokenizer& tokenizer, char what, const std::string& request) {
  std::vector<int32_t> ids(request.size() / 4);
  if (!ids.empty()) std::memcpy(ids.data(), request.data(), ids.size() * 4);  // takes no null
  switch (what) {
    case 'E':
    case 'e':
      return bytes_of(tokenizer.encode(request, what == 'E'));
    case 'D':
    case 'd':
      return tokenizer.decode(ids, what == 'd');
    case 'S':
    case 's': {
      nanovllm::Detokenizer detokenizer(tokenizer, what == 's');
      std::string text;
      for (const int32_t id : ids) text += detokenizer.append(id);
      return text + detokenizer.finish();
    }
    case 'T': {
      const auto id = tokenizer.token_to_id(request);
      return id ? bytes_of(std::span(&*id, 1)) : "";
    }
    case 'I':
      return tokenizer.id_to_token(ids.at(0)).value_or("");
  }
  return "";
}

void write_string(const std::string& text) {
  const auto length = static_cast<uint32_t>(text.size());
  std::fwrite(&length, 4, 1, stdout);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: tokenizer_driver MODEL_DIR\n");
    return 2;
  }
  try {
    const auto tokenizer = Tokenizer::load(argv[1]);
    char what = 0;
    uint32_t length = 0;
    while (std::fread(&what, 1, 1, stdin) == 1 && std::fread(&length, 4, 1, stdin) == 1) {
      std::string request(length, '\0');
      if (std::fread(request.data(), 1, length, stdin) != length) return 1;
      try {
        write_string(answer(*tokenizer, what, request));
      } catch (const std::exception& error) {
        const uint32_t mark = UINT32_MAX;
        std::fwrite(&mark, 4, 1, stdout);
        write_string(error.what());
      }
      std::fflush(stdout);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
