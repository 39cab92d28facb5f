// Runs a fuzz target's function, with no fuzzer, on the seeds that are known and on random changes
// of them: the part of fuzzing that every build can do.
//
// usage: mutants SEEDS_FOLDER DICTIONARY COUNT
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kMaxBytes = 2048;

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Lines of text in quotes, where a backslash stands before a quote or a backslash.
std::vector<std::string> words_of(const std::filesystem::path& dictionary) {
  std::vector<std::string> words;
  std::ifstream file(dictionary);
  for (std::string line; std::getline(file, line);) {
    const size_t begin = line.find('"'), end = line.rfind('"');
    if (line.starts_with('#') || begin == std::string::npos || begin == end) continue;
    std::string& word = words.emplace_back();
    for (size_t i = begin + 1; i < end; ++i) {
      if (line[i] == '\\' && i + 1 < end) ++i;
      word.push_back(line[i]);
    }
  }
  return words;
}

class Mutator {
 public:
  Mutator(std::vector<std::string> seeds, std::vector<std::string> words)
      : seeds_(std::move(seeds)), words_(std::move(words)) {}

  std::string next() {
    std::string text = any(seeds_);
    for (size_t changes = 1 + random_() % 6; changes > 0; --changes) change(text);
    text.resize(std::min(text.size(), kMaxBytes));
    return text;
  }

 private:
  const std::string& any(const std::vector<std::string>& all) {
    return all[random_() % all.size()];
  }

  void change(std::string& text) {
    const size_t at = random_() % (text.size() + 1);
    const size_t size = std::min<size_t>(1 + random_() % 16, text.size() - at);
    switch (random_() % 6) {
      case 0:
        text.insert(at, any(words_));
        break;
      case 1:
        text.erase(at, size);
        break;
      case 2:  // again somewhere else
        text.insert(random_() % (text.size() + 1), text.substr(at, size));
        break;
      case 3:
        text.insert(at, 1, static_cast<char>(random_()));
        break;
      case 4:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ 1 << random_() % 8);
        break;
      default: {  // the end of another
        const std::string& other = any(seeds_);
        text = text.substr(0, at) + other.substr(random_() % (other.size() + 1));
        break;
      }
    }
  }

  const std::vector<std::string> seeds_, words_;
  std::mt19937 random_{1};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: mutants SEEDS_FOLDER DICTIONARY COUNT\n");
    return 2;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) files.push_back(entry);
  std::ranges::sort(files);
  std::vector<std::string> seeds;
  for (const auto& file : files) seeds.push_back(contents(file));
  std::vector<std::string> words = words_of(argv[2]);
  if (seeds.empty() || words.empty()) {
    std::fprintf(stderr, "mutants: there are no seeds in %s, or no words in %s\n", argv[1],
                 argv[2]);
    return 2;
  }
  const auto run = [](const std::string& text) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  };
  for (const std::string& seed : seeds) run(seed);
  const std::string input = std::string(argv[0]) + ".input";
  std::ofstream file(input, std::ios::binary);
  Mutator mutator(std::move(seeds), std::move(words));
  for (int left = std::atoi(argv[3]); left > 0; --left) {
    const std::string text = mutator.next();
    // So that what ends the process can be looked at. One file that stays open: some file systems
    // write what is opened anew to the disk at once.
    file.seekp(0) << text << std::flush;
    std::filesystem::resize_file(input, text.size());
    run(text);
  }
  return 0;
}
