// Blocks of ggml's quantised types to numbers, one function a type.
#pragma once

#include <cstdint>

namespace nanovllm {

// Writes a block's elements in float32, the operations in the order of gguf-py's dequantize_blocks
// (gguf 0.19.0, quants.py), so that every bit is the same. Returns something that is finite if and
// only if all scales that the block holds are and all its elements.
using DecodeBlock = float (*)(const uint8_t* block, float* out);

float decode_q4_0(const uint8_t* block, float* out);
float decode_q4_1(const uint8_t* block, float* out);
float decode_q5_0(const uint8_t* block, float* out);
float decode_q5_1(const uint8_t* block, float* out);
float decode_q8_0(const uint8_t* block, float* out);
float decode_q2_k(const uint8_t* block, float* out);
float decode_q3_k(const uint8_t* block, float* out);
float decode_q4_k(const uint8_t* block, float* out);
float decode_q5_k(const uint8_t* block, float* out);
float decode_q6_k(const uint8_t* block, float* out);
float decode_iq4_nl(const uint8_t* block, float* out);
float decode_iq4_xs(const uint8_t* block, float* out);
float decode_mxfp4(const uint8_t* block, float* out);

}  // namespace nanovllm
