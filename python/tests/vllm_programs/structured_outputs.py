"""Outputs that follow a choice, an expression, a schema or a grammar, as vLLM's example of them has it."""
import json
import re
import sys

from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

GRAMMAR = """
root ::= select_statement
select_statement ::= "SELECT " column " from " table
column ::= "col_1" | "col_2"
table ::= "table_1" | "table_2"
"""
SCHEMA = {
    "type": "object",
    "properties": {"brand": {"enum": ["a", "b"]}, "is_old": {"type": "boolean"}},
    "required": ["brand", "is_old"],
    "additionalProperties": False,
}


def main() -> None:
    llm = LLM(model=sys.argv[1], max_model_len=512)

    def text(asked: StructuredOutputsParams) -> str:
        (output,) = llm.generate("Once", SamplingParams(structured_outputs=asked, max_tokens=100), use_tqdm=False)
        assert output.outputs[0].finish_reason == "stop"
        print(output.outputs[0].text)
        return output.outputs[0].text

    assert text(StructuredOutputsParams(choice=["Positive", "Negative"])) in ("Positive", "Negative")
    assert re.fullmatch(r"[a-z]{2}@\w{2}\.com", text(StructuredOutputsParams(regex=r"[a-z]{2}@\w{2}\.com")))
    assert json.loads(text(StructuredOutputsParams(json=SCHEMA)))["brand"] in ("a", "b")
    assert json.loads(text(StructuredOutputsParams(json=json.dumps(SCHEMA), disable_any_whitespace=True)))["is_old"] in (True, False)
    assert re.fullmatch("SELECT col_[12] from table_[12]", text(StructuredOutputsParams(grammar=GRAMMAR)))


if __name__ == "__main__":
    main()
