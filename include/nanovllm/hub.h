// Models by their names on the Hugging Face hub.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace nanovllm {

// How far a pull is.
struct PullProgress {
  int64_t num_bytes = 0;     // of the model that are there, an earlier pull's included
  int64_t total_bytes = 0;   // of the model; 0 = not known yet
  int64_t num_received = 0;  // bytes that came over the network since this pull began
  std::string note = {};     // what it waits for, if not for bytes
};

struct PullOptions {
  // Asks the hub for what a branch holds now; otherwise a model that is there is taken as it is,
  // without any connection.
  bool update = false;
  bool offline = false;     // as with HF_HUB_OFFLINE=1: only what is there
  int num_connections = 8;  // at once
  // Called about ten times a second by the thread that pulls. What it throws ends the pull and
  // comes out of it; what has come until then is kept, and the next pull goes on from there.
  std::function<void(const PullProgress&)> on_progress = {};
};

// The folder or file of a model, for `LLM`, `LLMEngine` and `Tokenizer::load`. `model` is a path,
// which is returned as it is, or a name of the hub: OWNER/MODEL, with @REVISION (a branch, a tag or
// a commit) and, where the repository holds GGUF files, :TYPE (as Q4_K_M, or a file's name) behind
// it. What is missing is pulled into the cache that Hugging Face's own libraries use, and checked
// by size and hash. OWNER/MODEL is a path where there is a file or folder OWNER/MODEL, and where
// there is a folder OWNER but nothing of that name in the cache.
//
// The environment says where the cache is (HF_HUB_CACHE, HF_HOME), which hub is asked
// (HF_ENDPOINT), with which token (HF_TOKEN, or what `hf auth login` wrote), whether at all
// (HF_HUB_OFFLINE) and through which proxy (https_proxy and the like).
//
// Any thread may call it; pulls of one model at once, by other processes too, wait for each other.
// Throws Error: kInvalidArgument (a name or token that can't be one), kNotFound (no such model,
// revision or file, or not for this token), kUnavailable (the hub can't be reached or asks to
// wait), kCorruptData (sizes or hashes that are not what the hub promised, names that leave the
// cache), kIo (the cache can't be written, or its disk is full).
std::string resolve_model(const std::string& model, const PullOptions& options = {});

}  // namespace nanovllm
