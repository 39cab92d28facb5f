// A family of models is one row that says all that is its own, in a file of its own. This is what a
// row may say, and which rows there are.
#pragma once

#include <string_view>

#include "io/config_keys.h"
#include "io/config_rules.h"
#include "io/gguf_model.h"
#include "io/json.h"
#include "io/model_config.h"
#include "models/decoder.h"
#include "models/model.h"

namespace nanovllm {

// The order is that in which a model's files are read and its decoder is built.
struct Family {
  SupportedModel model;
  // As config.json has it.
  const char* model_type;

  // Where several families have one general.architecture: whether a GGUF file is of this one. Null
  // = if it is of none of the others.
  bool (*owns)(const GgufFields& fields) = nullptr;
  // Their GGUF files have the rows of q and k for a rotation of neighbours.
  bool gguf_turns_neighbours = false;
  // See GgufLayout::has_post_norms.
  bool gguf_has_post_norms = false;

  ConfigRules rules = {};
  // Fills in what transformers assumes if a file does not say it.
  void (*defaults)(ModelConfig& config) = [](ModelConfig&) {};
  // Reads what only this family has: of config.json, when sizes and experts are there, windows and
  // rotation not yet; or of a GGUF file, before its tensors.
  void (*read)(const JsonFields& fields, ModelConfig& config) = [](const JsonFields&,
                                                                   ModelConfig&) {};
  void (*read_gguf)(const GgufFields& fields, ModelConfig& config) = [](const GgufFields&,
                                                                        ModelConfig&) {};

  // How its decoder differs from others.
  DecoderOptions (*options)(const ModelConfig& config);
};

extern const Family kGemma2, kGemma3, kGemma3WithTowers;
extern const Family kGlm4, kGlm4Moe;
extern const Family kGptOss;
extern const Family kGranite;
extern const Family kLlama;
extern const Family kMistral, kMixtral;
extern const Family kOlmo2, kOlmo3, kOlmoe, kOlmoHybrid;
extern const Family kPhi3;
extern const Family kQwen2, kQwen2Moe;
extern const Family kQwen3, kQwen3Moe;
extern const Family kQwen3_5, kQwen3_5WithTowers;
extern const Family kQwen3_5Moe, kQwen3_5MoeWithTowers;
extern const Family kQwen3Next;
extern const Family kSmolLm3;

// By config.json's names: the family of the architecture, or of the model_type if there is none; if
// there is none of either, a row that says nothing.
const Family& find_family(std::string_view architecture, std::string_view model_type);
// The family that a GGUF file is of. Throws Error(kUnsupported), with a list of the known
// architectures, if there is none.
const Family& family_of(const GgufFields& fields);

}  // namespace nanovllm
