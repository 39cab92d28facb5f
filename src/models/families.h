// All families of models; registry.cc maps architectures to them.
#pragma once

#include <memory>

#include "models/model.h"

namespace nanovllm {

std::unique_ptr<Model> make_qwen3(const ModelContext& context);
std::unique_ptr<Model> make_qwen2(const ModelContext& context);
std::unique_ptr<Model> make_llama(const ModelContext& context);
std::unique_ptr<Model> make_mistral(const ModelContext& context);
std::unique_ptr<Model> make_gemma2(const ModelContext& context);
std::unique_ptr<Model> make_gemma3(const ModelContext& context);
std::unique_ptr<Model> make_glm4_moe(const ModelContext& context);
std::unique_ptr<Model> make_gpt_oss(const ModelContext& context);
std::unique_ptr<Model> make_mixtral(const ModelContext& context);
std::unique_ptr<Model> make_olmoe(const ModelContext& context);
std::unique_ptr<Model> make_qwen2_moe(const ModelContext& context);
std::unique_ptr<Model> make_qwen3_moe(const ModelContext& context);
std::unique_ptr<Model> make_glm4(const ModelContext& context);
std::unique_ptr<Model> make_granite(const ModelContext& context);
std::unique_ptr<Model> make_olmo2(const ModelContext& context);
std::unique_ptr<Model> make_olmo3(const ModelContext& context);
std::unique_ptr<Model> make_phi3(const ModelContext& context);
std::unique_ptr<Model> make_smollm3(const ModelContext& context);

}  // namespace nanovllm
