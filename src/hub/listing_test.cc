#include "hub/listing.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "nanovllm/error.h"

namespace nanovllm::hub {
namespace {

Listing listing_of(const std::vector<std::string>& paths) {
  Listing listing;
  for (const std::string& path : paths) listing.push_back({.path = path, .size = 1});
  return listing;
}

std::vector<std::string> chosen(const std::vector<std::string>& paths, const HubName& name) {
  std::vector<std::string> names;
  for (const HubFile& file : choose_files(listing_of(paths), name).files) {
    names.push_back(file.path);
  }
  return names;
}

std::string error_of(const std::vector<std::string>& paths, const std::string& type) {
  try {
    choose_files(listing_of(paths), {.repository = "a/b", .type = type});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(HubListing, TypeOfGguf) {
  const std::pair<const char*, const char*> kCases[] = {
      {"Qwen3-0.6B-Q4_K_M.gguf", "Q4_K_M"},
      {"qwen2.5-0.5b-instruct-q8_0.gguf", "Q8_0"},
      {"model.IQ4_XS.gguf", "IQ4_XS"},
      {"x-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"},
      {"BF16/x-BF16-00001-of-00004.gguf", "BF16"},
      {"x-f16.gguf", "F16"},
      {"gpt-oss-20b-MXFP4.gguf", "MXFP4"},
      {"x-TQ1_0.gguf", "TQ1_0"},
      {"Q8_0.gguf", "Q8_0"},
      {"a/whatever.gguf", "whatever"},
      {"AQ4_0.gguf", "AQ4_0"},
  };
  for (const auto& [path, type] : kCases) EXPECT_EQ(type_of_gguf(path), type) << path;
}

TEST(HubListing, ChoosesWhatTheEngineReads) {
  const HubName name{.repository = "a/b"};
  EXPECT_EQ(chosen({"README.md", "config.json", "x.bin", "model.safetensors", "sub/config.json",
                    "m.gguf", "model.safetensors.index.json", "merges.txt", "chat_template.jinja"},
                   name),
            (std::vector<std::string>{"config.json", "model.safetensors", "merges.txt",
                                      "chat_template.jinja"}));
  const Choice sharded = choose_files(
      listing_of({"config.json", "model.safetensors.index.json", "1.safetensors"}), name);
  EXPECT_TRUE(sharded.needs_index);
  EXPECT_EQ(sharded.files.size(), 2U);
}

TEST(HubListing, ShardsComeFromTheIndex) {
  const Listing listing =
      listing_of({"model.safetensors.index.json", "1.safetensors", "2.safetensors"});
  Choice choice = choose_files(listing, {.repository = "a/b"});
  add_shards(choice, listing, R"({"weight_map": {"x": "2.safetensors", "y": "2.safetensors"}})",
             "i");
  EXPECT_FALSE(choice.needs_index);
  EXPECT_EQ(choice.files.back().path, "2.safetensors");
  EXPECT_EQ(choice.files.size(), 2U);
  for (const char* bad :
       {R"({"weight_map": {"x": "../2.safetensors"}})", R"({"weight_map": {"x": 1}})", "["}) {
    EXPECT_THROW(add_shards(choice, listing, bad, "i"), Error) << bad;
  }
}

TEST(HubListing, ChoosesGgufByType) {
  const std::vector<std::string> paths = {"x-Q8_0-00002-of-00002.gguf",
                                          "x-Q8_0-00001-of-00002.gguf", "x-Q4_K_M.gguf",
                                          "mmproj-x-F16.gguf", "imatrix.gguf"};
  const Choice split = choose_files(listing_of(paths), {.repository = "a/b", .type = "q8_0"});
  EXPECT_EQ(split.entry, "/x-Q8_0-00001-of-00002.gguf");
  EXPECT_EQ(split.files.size(), 2U);
  EXPECT_EQ(choose_files(listing_of(paths), {.repository = "a/b"}).entry, "/x-Q4_K_M.gguf");
  EXPECT_EQ(error_of(paths, "F16"),
            "a/b: holds no GGUF file of type F16; name one after a colon, as in a/b:Q4_K_M: "
            "Q4_K_M, Q8_0");
  EXPECT_NE(error_of({"config.json"}, ""), "");
}

TEST(HubListing, ATypeOfSafetensorsIsExplained) {
  for (const char* weights : {"model.safetensors", "model.safetensors.index.json"}) {
    EXPECT_EQ(error_of({"config.json", weights}, "Q4_K_M"),
              "a/b: holds safetensors and no GGUF file, of which Q4_K_M would be the type; leave "
              ":Q4_K_M away, or name a repository of GGUF files, often called OWNER/b-GGUF");
  }
}

TEST(HubListing, WhatTheHubAnswersIsChecked) {
  const std::string sha1(40, 'a'), sha256(64, 'b');
  const nlohmann::json good = {
      {"sha", sha1},
      {"siblings",
       {{{"rfilename", "config.json"}, {"size", 3}, {"blobId", sha1}},
        {{"rfilename", "m.gguf"}, {"size", 5}, {"blobId", sha1}, {"lfs", {{"sha256", sha256}}}}}}};
  const auto [commit, listing] = parse_listing(good.dump(), "hub");
  EXPECT_EQ(commit, sha1);
  ASSERT_EQ(listing.size(), 2U);
  EXPECT_EQ(listing[0].hash, sha1);
  EXPECT_EQ(listing[1].hash, sha256);
  EXPECT_EQ(listing[1].size, 5);
  const std::vector<std::pair<std::string, nlohmann::json>> changes = {
      {"rfilename", "../x"}, {"rfilename", nullptr},      {"size", -1},
      {"size", 1e30},        {"lfs", {{"sha256", sha1}}}, {"lfs", 1}};
  for (const auto& [key, value] : changes) {
    nlohmann::json bad = good;
    bad["siblings"][1][key] = value;
    EXPECT_THROW(parse_listing(bad.dump(), "hub"), Error) << key << " " << value;
  }
  for (const char* hash : {"../x", "", "A"}) {
    nlohmann::json bad = good;
    bad["siblings"][0]["blobId"] = hash;
    EXPECT_THROW(parse_listing(bad.dump(), "hub"), Error) << hash;
    bad = good;
    bad["sha"] = hash;
    EXPECT_THROW(parse_listing(bad.dump(), "hub"), Error) << hash;
  }
  EXPECT_THROW(parse_listing("{}", "hub"), Error);
}

TEST(HubListing, ATreeSaysWhatAListWithoutSizesDoesNot) {
  const std::string sha1(40, 'a'), sha256(64, 'b');
  const nlohmann::json few = {{"sha", sha1}, {"siblings", {{{"rfilename", "config.json"}}}}};
  EXPECT_FALSE(tells_sizes(parse_listing(few.dump(), "hub").second));
  const nlohmann::json tree = {
      {{"type", "directory"}, {"path", "sub"}, {"oid", sha1}, {"size", 0}},
      {{"type", "file"}, {"path", "config.json"}, {"oid", sha1}, {"size", 3}},
      {{"type", "file"},
       {"path", "m.gguf"},
       {"oid", sha1},
       {"size", 5},
       {"lfs", {{"oid", sha256}, {"size", 5}, {"pointerSize", 134}}}}};
  Listing listing;
  add_tree(listing, tree.dump(), "hub");
  ASSERT_EQ(listing.size(), 2U);
  EXPECT_EQ(listing[0].path, "config.json");
  EXPECT_EQ(listing[0].hash, sha1);
  EXPECT_EQ(listing[1].hash, sha256);
  EXPECT_EQ(listing[1].size, 5);
  const std::vector<std::pair<std::string, nlohmann::json>> changes = {
      {"path", "../x"}, {"oid", "x"}, {"size", nullptr}, {"size", -1}, {"type", 1}};
  for (const auto& [key, value] : changes) {
    nlohmann::json bad = tree;
    bad[1][key] = value;
    EXPECT_THROW(add_tree(listing, bad.dump(), "hub"), Error) << key << " " << value;
  }
  EXPECT_THROW(add_tree(listing, "{}", "hub"), Error);
}

TEST(HubListing, WhatIsKeptReadsAsItWas) {
  const Listing listing = {{.path = "a.json", .size = 0, .hash = std::string(40, 'a')},
                           {.path = "\"\xc3\xa4\".gguf", .size = 5, .hash = std::string(64, 'b')}};
  const std::string commit(40, 'c');
  const auto [kept, files] = parse_listing(listing_text(commit, listing), "kept");
  EXPECT_EQ(kept, commit);
  ASSERT_EQ(files.size(), 2U);
  for (const size_t i : {0U, 1U}) {
    EXPECT_EQ(files[i].path, listing[i].path);
    EXPECT_EQ(files[i].size, listing[i].size);
    EXPECT_EQ(files[i].hash, listing[i].hash);
  }
}

}  // namespace
}  // namespace nanovllm::hub
