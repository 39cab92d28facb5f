// Any bytes as what a hub answers, after the first zero byte as a model.safetensors.index.json, and
// as a page of a tree, and after the second as a type: refused, or files that stay in their folder.
#include <algorithm>
#include <filesystem>

#include "fuzzing.h"
#include "hub/listing.h"

namespace nanovllm::hub {
namespace {

void check(const Listing& listing) {
  using fuzzing::require;
  for (const HubFile& file : listing) {
    const std::filesystem::path path = std::filesystem::path("/folder/" + file.path);
    const std::string there = path.lexically_normal().string();
    require(there == path.string() && there.size() > 8, "a file stays in its folder");
    require(file.path.size() < 256 && text::find_invalid_utf8(file.path) == file.path.size(),
            "names can be kept and shown");
    if (file.size == -1) continue;  // it was not told, nor need the hash be
    require(file.size >= 0 && file.size <= int64_t{1} << 42, "sizes can be added up");
    require(file.hash.find_first_not_of("0123456789abcdef") == std::string::npos &&
                (file.hash.size() == 40 || file.hash.size() == 64),
            "a hash is one");
  }
}

// What is chosen is of the list.
void check_choice(const Listing& listing, const HubName& name, std::string_view index) {
  Choice choice = choose_files(listing, name);
  if (choice.needs_index) add_shards(choice, listing, index, "index");
  for (const HubFile& file : choice.files) {
    const auto is_same = [&](const HubFile& other) { return other.path == file.path; };
    fuzzing::require(std::any_of(listing.begin(), listing.end(), is_same), "no file is invented");
  }
  fuzzing::require(choice.entry.empty() || choice.entry.ends_with(".gguf"), "an entry is GGUF");
}

}  // namespace
}  // namespace nanovllm::hub

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  const std::string_view input = fuzzing::as_text(data, size);
  const std::string_view answer = input.substr(0, input.find('\0'));
  const std::string_view rest = input.substr(std::min(answer.size() + 1, size));
  const std::string_view index = rest.substr(0, rest.find('\0'));
  const std::string_view type = rest.substr(std::min(index.size() + 1, rest.size()));
  fuzzing::run_or_refuse([&] {
    const auto [commit, listing] = hub::parse_listing(answer, "hub");
    fuzzing::require(hub::is_hash(commit, hub::kSha1Digits), "a commit is a hash");
    hub::check(listing);
    if (!hub::tells_sizes(listing)) return;
    const auto [same, kept] = hub::parse_listing(hub::listing_text(commit, listing), "kept");
    fuzzing::require(same == commit && kept.size() == listing.size(), "what is kept reads again");
    fuzzing::run_or_refuse(
        [&, &files = listing] { hub::check_choice(files, {.repository = "a/b"}, index); });
    if (hub::is_safe_path(std::string(type))) {
      hub::check_choice(listing, {.repository = "a/b", .type = std::string(type)}, index);
    }
  });
  fuzzing::run_or_refuse([&] {
    hub::Listing tree;
    hub::add_tree(tree, index, "hub");
    hub::check(tree);
    fuzzing::require(hub::tells_sizes(tree), "a tree tells sizes");
  });
  return 0;
}
