// Models by their names on the Hugging Face hub.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace nanovllm {

// How far a download ("pull") is.
struct PullProgress {
  // Bytes of the model that are in the cache, those of an earlier pull included.
  int64_t num_bytes = 0;
  // Bytes of the whole model; 0 = not known yet.
  int64_t total_bytes = 0;
  // Bytes that came over the network since this pull began.
  int64_t num_received = 0;
  // What it does while no bytes come: wait for another program that pulls the model, check files,
  // or try again after trouble with the network. Empty while bytes come.
  std::string note = {};
};

struct PullOptions {
  // true: ask the hub what a branch holds now, and pull what has changed. false: a model that is in
  // the cache is taken without any connection, whoever pulled it.
  bool update = false;
  // true: use the cache only, as with HF_HUB_OFFLINE=1.
  bool offline = false;
  // Connections at the same time, at least 1.
  int num_connections = 8;
  // Called about ten times a second by the thread that pulls. An exception from it ends the pull
  // and is passed on to the caller; what has been downloaded is kept, and the next pull goes on
  // from there.
  std::function<void(const PullProgress&)> on_progress = {};
  // Called with a sentence where the hub can't be reached or refuses, and what is in the cache is
  // taken. Empty: the sentence goes to stderr.
  std::function<void(const std::string&)> on_warning = {};
};

// Returns the folder or file of a model, for `LLM`, `LLMEngine` and `Tokenizer::load`. Downloads
// what is missing into the cache that Hugging Face's own libraries use, and checks it by size and
// hash. Any thread may call it; pulls of one model at the same time, also by other processes, wait
// for each other.
//
// `model` is a path (or any other text that is no name), which is returned unchanged, or a name of
// the hub,
//   OWNER/MODEL[@REVISION][:TYPE]
// or the address of its page at huggingface.co or hf.co. REVISION is a branch, a tag or a commit.
// TYPE chooses one of a repository's GGUF files: Q4_K_M, or a file's name. If a file or folder
// OWNER/MODEL exists, it is taken as a path. If there is only a folder OWNER, and the cache has no
// such model, a mistyped path is more likely than a name: kNotFound, unless options.update is set.
// Where the hub can't be reached or refuses, a model that the cache has is returned, and
// options.on_warning is told why.
//
// Environment variables, as for Hugging Face's libraries: HF_HUB_CACHE and HF_HOME (where the cache
// is), HF_ENDPOINT (which hub), HF_TOKEN (or what `hf auth login` wrote), HF_HUB_OFFLINE, and
// https_proxy and the like.
//
// Throws Error: kInvalidArgument (not a valid name or token), kNotFound (no such model, revision or
// file, or this token may not read it), kUnavailable (the hub can't be reached or asks to wait),
// kCorruptData (sizes or hashes that differ from what the hub promised, file names that point
// outside of the cache), kIo (the cache can't be written, or its disk is full).
std::string resolve_model(const std::string& model, const PullOptions& options = {});

}  // namespace nanovllm
