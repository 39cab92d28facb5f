"""Folders whose tokenizer_config.json says other than their tokenizer.json, for tools/make_tokenizer_configs.py."""

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789<>|/_[]"


def added(content, special=False, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": not special,
            "special": special, **flags}


def model(letters, words, **more):
    """BPE that joins each word from its letters, one by one."""
    merges = []
    for word in words:
        merges += [[word[:i], word[i]] for i in range(1, len(word)) if [word[:i], word[i]] not in merges]
    tokens = [*letters, *dict.fromkeys(a + b for a, b in merges)]
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges, **more}


def document(bpe, tokens, **parts):
    """`tokens` get the ids of their content, or the next ones."""
    vocabulary, following = bpe["vocab"], len(bpe["vocab"])
    listed = []
    for token in tokens:
        id = vocabulary.get(token["content"], following)
        following += id == following
        listed.append({"id": id, **token})
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": listed, "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None, **parts, "model": bpe}


def bytes_document():
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return document(model([*LETTERS, "Ġ", "Ċ"], ["the", "Ġthe", "<|im_end|>", "<s>", "</s>"]),
                    [added("<|end|>", special=True), added("[R]"), added("<|reserved|>", special=True)],
                    pre_tokenizer=byte_level, post_processor=byte_level, decoder=byte_level)


def pieces_document(names, **parts):
    """As Llama 2; `names` are special tokens in the vocabulary, the first of them the unknown one."""
    letters = [*names, "▁", *LETTERS]
    replace = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "Fuse"},
               {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    normalizers = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    tokens = parts.pop("added_tokens", [added(name, special=True, normalized=False) for name in names])
    return document(model(letters, ["▁the", "the"], unk_token=names[0], fuse_unk=True), tokens,
                    normalizer={"type": "Sequence", "normalizers": normalizers},
                    decoder={"type": "Sequence", "decoders": replace}, **parts)


def bos_template(name, id):
    special = {"SpecialToken": {"id": name, "type_id": 0}}
    text = [{"Sequence": {"id": letter, "type_id": 0}} for letter in "AB"]
    return {"type": "TemplateProcessing", "single": [special, text[0]], "pair": [special, text[0], special, text[1]],
            "special_tokens": {name: {"id": name, "ids": [id], "tokens": [name]}}}


LLAMA = ["<unk>", "<s>", "</s>"]
TOKENIZERS = {
    "bytes": bytes_document(),
    "pieces": pieces_document(LLAMA),
    "pieces with a template": pieces_document(LLAMA, post_processor=bos_template("<s>", 1)),
    "pieces without added tokens": pieces_document(LLAMA, added_tokens=[]),
    "gemma": pieces_document(["<pad>", "<eos>", "<bos>", "<unk>"]),
    "cohere": pieces_document(["<UNK>", "<PAD>", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"]),
    "neox": pieces_document(["<unk>", "<|endoftext|>"]),
}
IDS = {**TOKENIZERS["bytes"]["model"]["vocab"], **{token["content"]: token["id"] for token in TOKENIZERS["bytes"]["added_tokens"]}}
LAST = max(IDS.values())


def cases():
    """(name, tokenizer, tokenizer_config.json)"""
    def general(name, **config):
        return name, "bytes", {"tokenizer_class": "PreTrainedTokenizerFast", **config}

    def decoder(name, entries, **config):
        return general(name, added_tokens_decoder={str(id): token for id, token in entries.items()}, **config)

    yield general("nothing but the class")
    yield decoder("the same tokens again", {IDS["[R]"]: added("[R]"), IDS["<|end|>"]: added("<|end|>", special=True)})
    yield decoder("a reserved token renamed", {IDS["<|reserved|>"]: added("<|tool|>", special=True)})
    yield decoder("an ordinary token's id", {IDS["a"]: added("<|tool|>", special=True)})
    yield decoder("another id for a token of the vocabulary", {IDS["b"]: added("the")})
    yield decoder("an id behind a gap", {LAST + 9: added("<|tool|>", special=True)})
    yield decoder("two ids behind gaps, the larger first", {LAST + 9: added("<|late|>"), LAST + 5: added("<|tool|>")})
    yield decoder("entries of a content alone", {LAST + 1: {"content": "<|tool|>"}})
    yield decoder("entries of a content that is special", {LAST + 1: {"content": "<|tool|>", "special": True}})
    yield decoder("other flags", {IDS["[R]"]: added("[R]", lstrip=True, rstrip=True)})
    yield decoder("a single word", {IDS["[R]"]: added("[R]", single_word=True)})
    yield decoder("special in the configuration only", {IDS["[R]"]: added("[R]", special=True)})
    yield decoder("special in tokenizer.json only", {IDS["<|end|>"]: added("<|end|>")})
    yield general("an end of the text in the vocabulary only", eos_token="<|im_end|>")
    yield general("the same as an object", eos_token={"__type": "AddedToken", **added("<|im_end|>", special=True)})
    yield general("others in the vocabulary only", additional_special_tokens=["<|im_end|>", "</s>"])
    yield general("flags for the general class", add_bos_token=True, add_eos_token=True, bos_token="<s>", eos_token="</s>")
    yield "flags for a class that ignores them", "bytes", {
        "tokenizer_class": "Qwen2TokenizerFast", "add_bos_token": True, "bos_token": "<s>", "eos_token": "<|end|>",
        "unk_token": "<|end|>", "pad_token": "<|end|>"}

    llama = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    for name in ("LlamaTokenizer", "LlamaTokenizerFast"):
        yield f"{name} without flags", "pieces", {"tokenizer_class": name, **llama}
    for bos in (None, True, False):
        for eos in (None, True, False):
            config = {"tokenizer_class": "LlamaTokenizer", **llama, "add_bos_token": bos, "add_eos_token": eos}
            config = {key: value for key, value in config.items() if value is not None}
            yield f"LlamaTokenizer, BOS {bos}, EOS {eos}", "pieces", config
    yield "LlamaTokenizer without names of tokens", "pieces", {"tokenizer_class": "LlamaTokenizer"}
    yield "LlamaTokenizer and a template", "pieces with a template", {"tokenizer_class": "LlamaTokenizer", **llama,
                                                                      "add_bos_token": False}
    yield "the general class and a template", "pieces with a template", {"tokenizer_class": "PreTrainedTokenizerFast",
                                                                         **llama, "add_bos_token": False}
    yield "LlamaTokenizer and special tokens in the vocabulary only", "pieces without added tokens", {
        "tokenizer_class": "LlamaTokenizer", **llama}
    gemma = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    yield "GemmaTokenizer", "gemma", {"tokenizer_class": "GemmaTokenizer", **gemma}
    yield "GemmaTokenizer without BOS", "gemma", {"tokenizer_class": "GemmaTokenizerFast", **gemma, "add_bos_token": False,
                                                  "add_eos_token": True}
    yield "CohereTokenizer", "cohere", {"tokenizer_class": "CohereTokenizer", "bos_token": "<BOS_TOKEN>",
                                        "eos_token": "<|END_OF_TURN_TOKEN|>", "unk_token": "<UNK>", "pad_token": "<PAD>"}
    neox = {"tokenizer_class": "GPTNeoXTokenizer", **{f"{name}_token": "<|endoftext|>" for name in ("bos", "eos", "unk", "pad")}}
    yield "GPTNeoXTokenizer", "neox", neox
    yield "GPTNeoXTokenizer with BOS", "neox", {**neox, "add_bos_token": True}


TEXTS = ["", "the", " the  the", "a[R]\n\n b", "a [R] b[R]c", "hi<|im_end|>there", "a<s>b</s> c", "x<|end|>y<|reserved|>z",
         "<|tool|> <|late|>the<|tool|>", "<bos>a<eos>", "<BOS_TOKEN>the<|END_OF_TURN_TOKEN|> b", "a<|endoftext|>b"]
