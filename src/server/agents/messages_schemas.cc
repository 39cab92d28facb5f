// The bodies of /v1/messages and /v1/messages/count_tokens, for RequestFields and /openapi.json.
#include "server/openai/request_fields.h"

namespace nanovllm::server {

const char kMessagesSchemas[] = R"({
  "MessagesRequest": {"type": "object", "required": ["model", "messages", "max_tokens"],
    "properties": {
      "model": {"type": "string"},
      "max_tokens": {"type": "integer", "minimum": 1},
      "messages": {"type": "array", "minItems": 1, "items": {
        "type": "object", "required": ["role", "content"], "properties": {
          "role": {"enum": ["user", "assistant", "system"]},
          "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {
            "type": "object", "required": ["type"],
            "properties": {"type": {"type": "string"}}}}]}}}},
      "system": {"anyOf": ["string?", {"type": "array", "items": {
        "type": "object", "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}}}}]},
      "tools": {"type": ["array", "null"], "items": {
        "type": "object", "properties": {
          "type": {"const": "custom"}, "name": {"type": "string", "minLength": 1},
          "description": "string?", "input_schema": {"type": "object"}, "strict": "boolean?",
          "defer_loading": "boolean?"}}},
      "tool_choice": {"type": ["object", "null"], "required": ["type"], "properties": {
        "type": {"enum": ["auto", "none", "any", "tool"]}, "name": "string?",
        "disable_parallel_tool_use": "boolean?"}},
      "thinking": {"type": ["object", "null"], "required": ["type"], "properties": {
        "type": {"enum": ["enabled", "disabled", "adaptive"]},
        "budget_tokens": {"type": ["integer", "null"], "minimum": 1024}}},
      "output_config": {"type": ["object", "null"], "properties": {
        "effort": {"enum": ["low", "medium", "high", "xhigh", "max", null]},
        "format": {"type": ["object", "null"], "required": ["type", "schema"], "properties": {
          "type": {"enum": ["json_schema"]}, "schema": {"type": "object"}}}}},
      "output_format": {"type": ["object", "null"], "required": ["type", "schema"], "properties": {
        "type": {"enum": ["json_schema"]}, "schema": {"type": "object"}}},
      "stop_sequences": {"type": ["array", "null"], "maxItems": 4,
                         "items": {"type": "string", "minLength": 1}},
      "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
      "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
      "top_k": {"type": ["integer", "null"], "minimum": -1, "maximum": 2147483647},
      "stream": "boolean?",
      "cache_salt": {"type": ["string", "null"], "minLength": 1},
      "chat_template_kwargs": {"type": ["object", "null"], "maxProperties": 256},
      "metadata": {}, "service_tier": {}, "context_management": {}, "safeguards": {},
      "container": {}, "speed": {}, "betas": {}, "inference_geo": {}, "cache_control": {},
      "mcp_servers": {"type": ["array", "null"], "maxItems": 0}}},
  "CountTokensRequest": {"type": "object", "required": ["model", "messages"],
    "description": "A MessagesRequest, of which these fields count.",
    "properties": {
      "model": {"type": "string"},
      "messages": {"type": "array", "minItems": 1, "items": {"type": "object"}},
      "system": {"anyOf": ["string?", {"type": "array", "items": {"type": "object"}}]},
      "tools": {"type": ["array", "null"], "items": {"type": "object"}},
      "tool_choice": "object?", "thinking": "object?", "output_config": "object?",
      "max_tokens": "integer?", "mcp_servers": "array?", "stop_sequences": "array?",
      "chat_template_kwargs": {"type": ["object", "null"], "maxProperties": 256}}},
  "Message": {"type": "object", "required": [
    "id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"]},
  "TokenCount": {"type": "object", "required": ["input_tokens"], "properties": {
    "input_tokens": {"type": "integer"}}},
  "MessagesError": {"type": "object", "required": ["type", "error"], "properties": {
    "type": {"const": "error"},
    "error": {"type": "object", "required": ["type", "message"], "properties": {
      "type": {"type": "string"}, "message": {"type": "string"}}}}}
})";

}  // namespace nanovllm::server
