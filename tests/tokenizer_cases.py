"""What tokenizer_differential.py compares: random text and ids, and small tokenizers with every option."""
import base64
import math
import random
import struct

# --- random text ---------------------------------------------------------------------------------

WORDS = ["the", "Hello", "world", "don't", "I'LL", "we've", "'s", "'S", "'\u017f", "tokens", "naïve",
         "straße", "İstanbul", "ﬁne", "x86", "3.14159", "1000000", "==", "!!!", "...", "->", "/*",
         "https://example.org/a?b=c", "你好", "世界", "こんにちは", "カタカナ", "안녕하세요", "привет", "مرحبا",
         "שלום", "नमस्ते", "ไทย", "e\u0301", "a\u0323\u0301", "\u1161\u11a8", "가\u11a8", "\u212b", "ǅ",
         "😀", "👨‍👩‍👧", "🇩🇪", "🫨", "½", "²", "Ⅷ", "①", "٣", "\u2581", "\u2581\u2581", "Ġ", "<0x41>", "<0xE2>"]
BLANKS = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u3000",
          "\u2028", "\u0085", "\u180e", "\u200b", "\x0b", "\x0c", "\x1c"]
RANGES = [(0, 0x7F), (0x20, 0x7E), (0x80, 0x24F), (0x250, 0x36F), (0x370, 0x5FF), (0x600, 0x109F),
          (0x1100, 0x11FF), (0x1200, 0x1FFF), (0x2000, 0x2BFF), (0x2E80, 0x33FF), (0x4E00, 0x9FFF),
          (0xA000, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x16FFF), (0x1D000, 0x1FFFF),
          (0x20000, 0x323AF), (0x10FF00, 0x10FFFF)]


def random_char(rng):
    low, high = rng.choice(RANGES)
    return chr(rng.randint(low, high))


def random_text(rng, extra):
    kind = rng.random()
    parts = []
    for _ in range(rng.choice([0, 1, 2, 5, 20, 60])):
        dice = rng.random()
        if kind < 0.2:
            parts.append(random_char(rng))
        elif kind < 0.3:
            parts.append(rng.choice(BLANKS) if dice < 0.8 else rng.choice(WORDS))
        elif dice < 0.4:
            parts.append(rng.choice(WORDS))
        elif dice < 0.7:
            parts.append(rng.choice(BLANKS))
        elif dice < 0.78 and extra:
            parts.append(rng.choice(extra))
        elif dice < 0.85:
            parts.append(rng.choice(["a", " ", "\n", "7", "!", "é", "\u0301", "中"]) * rng.randint(1, 50))
        else:
            parts.append(random_char(rng))
    return "".join(parts)


def random_ids(rng, size):
    kind = rng.random()
    count = rng.choice([0, 1, 2, 10, 50])
    if kind < 0.3:  # near the start: special and byte tokens
        return [rng.randrange(min(size, 270)) for _ in range(count)]
    return [rng.randrange(size + 3) for _ in range(count)]


# --- small tokenizers ----------------------------------------------------------------------------

def byte_chars():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars, following = {}, 256
    for byte in range(256):
        chars[byte] = chr(byte) if byte in printable else chr(following)
        following += byte not in printable
    return chars


BYTES = byte_chars()


def train(rng, corpus, alphabet, merges):
    """Byte pair encoding over words given as tuples of symbols, with a few merges out of order."""
    words = [list(word) for word in corpus]
    vocabulary = list(alphabet)
    known = set(vocabulary)
    rules = []
    for _ in range(merges):
        counts = {}
        for word in words:
            for pair in zip(word, word[1:]):
                counts[pair] = counts.get(pair, 0) + 1
        if not counts:
            break
        pair = max(counts, key=lambda p: (counts[p], p))
        joined = pair[0] + pair[1]
        rules.append(pair)
        if joined not in known:
            known.add(joined)
            vocabulary.append(joined)
        for word in words:
            i = 0
            while i + 1 < len(word):
                if (word[i], word[i + 1]) == pair:
                    word[i:i + 2] = [joined]
                i += 1
    for _ in range(3):  # ranks that no training would give
        i, j = rng.randrange(len(rules)), rng.randrange(len(rules))
        rules[i], rules[j] = rules[j], rules[i]
    return vocabulary, rules


def corpus(rng):
    texts = [" ".join(rng.choice(WORDS) for _ in range(12)) for _ in range(60)]
    return texts + ["  ", "   ", "aaaaaaaa", "eeee", "7777", "\n\n\n", " \n", "!!!!"]


def byte_level_model(rng, **options):
    words = []
    for text in corpus(rng):
        for word in text.replace(" ", "\0 ").split("\0"):
            words.append(tuple(BYTES[b] for b in word.encode()))
    vocabulary, rules = train(rng, words, BYTES.values(), 220)
    return model_of(vocabulary, rules, **options)


def piece_model(rng, byte_tokens=True, **options):
    words = []
    for text in corpus(rng):
        words += [tuple("\u2581" + word) for word in text.split(" ")]
    alphabet = ["<unk>", "<s>", "</s>"]
    if byte_tokens:
        alphabet += [f"<0x{byte:02X}>" for byte in range(256)]
    common = sorted({c for text in corpus(rng) for c in text.replace(" ", "\u2581")})
    alphabet += [c for i, c in enumerate(common) if i % 7 or c == "\u2581"]
    known = set(alphabet)
    words = [tuple(c for c in word if c in known) for word in words]
    vocabulary, rules = train(rng, words, alphabet, 200)
    return model_of(vocabulary, rules, unk_token="<unk>", byte_fallback=byte_tokens, **options)


def model_of(vocabulary, rules, **options):
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": False}
    model.update(options)
    model["vocab"] = {token: i for i, token in enumerate(vocabulary)}
    model["merges"] = [list(rule) for rule in rules]
    return model


def unigram_model(rng, byte_tokens=True, decimals=6, **options):
    """Tokens that are shorter and come sooner have better scores; with few decimals, many sums are equal."""
    pieces = list(piece_model(rng, byte_tokens)["vocab"])
    scores = [0.0] * 3 + [-round(math.log(i + 2) + rng.random(), decimals) for i in range(3, len(pieces))]
    return {"type": "Unigram", "unk_id": 0, "byte_fallback": byte_tokens, **options,
            "vocab": [list(pair) for pair in zip(pieces, scores)]}


def charsmap(replacements):
    """SentencePiece's table: a double-array trie in which each node's children have 256 units to themselves."""
    units, texts, nodes = [0], b"", [0]

    def block_of(node):
        if not units[node] >> 10:
            units.extend([0] * (-len(units) % 256 + 256))
            units[node] |= (len(units) - 256 ^ node) << 10
        return units[node] >> 10 ^ node

    for key, text in replacements.items():
        node = 0
        for byte in key.encode():
            child = block_of(node) ^ byte
            units[child] |= byte
            node = child
        value = block_of(node)
        units[node] |= 1 << 8
        units[value] = 1 << 31 | len(texts)
        texts += text.encode() + b"\0"
    table = struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + texts
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


# As NFKC does, and in ways that it doesn't.
CHARSMAP = charsmap({"ﬁ": "fi", "½": "1⁄2", "²": "2", "Å": "Å", "e\u0301": "é", "\u00a0": " ", "\u3000": " ", "\r": " ",
                     "\n": " ", "\t": " ", "\x0b": "", "\u200b": " ", "ｶ": "カ", "ｶﾞ": "ガ", "㍿": "株式会社", "´": " \u0301"})


def added(content, **flags):
    token = {"id": 0, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": False}
    token.update(flags)
    return token


def document(model, normalizer=None, pre_tokenizer=None, post_processor=None, decoder=None,
             tokens=()):
    tokens = [dict(token) for token in tokens]
    vocab = model["vocab"] if model["type"] == "BPE" else {piece[0]: i for i, piece in enumerate(model["vocab"])}
    following = len(vocab)
    for token in tokens:
        if token["content"] in vocab:
            token["id"] = vocab[token["content"]]
        else:
            token["id"], following = following, following + 1
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens,
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
            "post_processor": post_processor, "decoder": decoder, "model": model}


def sequence(kind, *parts):
    return {"type": "Sequence", kind: list(parts)}


def byte_level(prefix=False, use_regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True,
            "use_regex": use_regex}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def metaspace(scheme="first", do_split=False):
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme,
            "split": do_split}


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def template(*ids):
    pieces = [{"Sequence": {"id": "A", "type_id": 0}} if i is None else
              {"SpecialToken": {"id": f"t{i}", "type_id": 0}} for i in ids]
    return {"type": "TemplateProcessing", "single": pieces,
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {f"t{i}": {"id": f"t{i}", "ids": [i], "tokens": [f"t{i}"]}
                               for i in ids if i is not None}}


CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
         r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
          r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def small_tokenizers(rng):
    """Name and document of each."""
    bytes_model = byte_level_model(rng)
    pieces = piece_model(rng, fuse_unk=True)
    nfc = {"type": "NFC"}
    llama_decoder = sequence("decoders", replace("\u2581", " "), {"type": "ByteFallback"},
                             {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0})
    specials = [added("<|end|>", special=True), added("<|start|>", special=True),
                added("<tool>"), added("<|st")]
    flagged = [added("[L]", lstrip=True), added("[R]", rstrip=True, special=True),
               added("[B]", lstrip=True, rstrip=True), added("word", single_word=True),
               added("Norm", normalized=True), added("né", normalized=True, single_word=True),
               added("  "), added("[N]", normalized=True, lstrip=True, rstrip=True)]

    def bytewise(name, pre_tokenizer, model=bytes_model, **parts):
        parts.setdefault("decoder", byte_level())
        return name, document(model, pre_tokenizer=pre_tokenizer, **parts)

    def split_bytes(name, pattern, **options):
        return bytewise(name, sequence("pretokenizers", split(pattern, **options),
                                       byte_level(use_regex=False)))

    blanks = [added(" ", lstrip=True, rstrip=True), added("\n", rstrip=True), added(" \t", lstrip=True, rstrip=True)]
    yield bytewise("blank-tokens", byte_level(), tokens=blanks)
    yield bytewise("gpt2", byte_level(), tokens=specials)
    yield bytewise("gpt2-prefix", byte_level(prefix=True), tokens=specials)
    yield bytewise("byte-level-no-regex", byte_level(use_regex=False))
    yield bytewise("qwen2", sequence("pretokenizers", split(CL100K % ""), byte_level(use_regex=False)),
                   normalizer=nfc, tokens=specials + flagged)
    yield bytewise("llama3", sequence("pretokenizers", split(CL100K % "{1,3}"),
                                      byte_level(use_regex=False)),
                   model=byte_level_model(rng, ignore_merges=True), tokens=specials,
                   post_processor=sequence("processors", byte_level(), template(1, None, 2, 2)))
    yield split_bytes("o200k", O200K)
    yield split_bytes("kimi", KIMI)
    yield split_bytes("qwen3.5", QWEN35)
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            yield split_bytes(f"split-{behavior}-{invert}", r"\s+|[\p{P}]", behavior=behavior,
                              invert=invert)
            yield split_bytes(f"split-string-{behavior}-{invert}", " ", behavior=behavior,
                              invert=invert, kind="String")
    for index, pattern in enumerate([
            r"\w+|[^\w\s]+", r"\b", r"x*", r"(?=[A-Z])", r"^.*$", r"\d+|\D+", r"[[:punct:]]|[[:space:]]",
            r"(?<=[a-z])(?=[A-Z0-9])", r"\p{Lu}\p{Ll}*|\P{L}", r"[^\S\n]+", r"[\w\d]+", r"[^\W\d_]+",
            r"(?m:.+)", r"\h+", r"\p{^L}+", r"[\P{L}]+", r"[^\P{L}]+", r"(?i)HELLO|world", r"a{,2}",
            r"\p{N}{1,3}+", r"(?:\r\n|\R)", r"\x41|\u4e16|\x{1F600}", r"[a-z&&[^aeiou]]+", r"\p{Han}+",
            r"'(?i:[sdmt]|ll|ve|re)", r"[^\r\n\p{L}\p{N}]?+\p{L}++", r"\A\s*|\s*\z", r"[-a\]b\[]+",
            r"x|(?i)hello|tokens", r"\p{Greek}|\p{Cyrillic}+|\p{Arabic}+", r"\S+\s?", r"\W", r"\H"]):
        yield split_bytes(f"pattern-{index}", pattern)
    yield bytewise("deepseek3", sequence(
        "pretokenizers", split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK),
        byte_level(use_regex=False)), normalizer=sequence("normalizers"))
    yield bytewise("deepseek-coder", sequence(
        "pretokenizers", split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"),
        split("[一-龥ࠀ-一가-퟿]+"), {"type": "Digits", "individual_digits": True},
        byte_level(use_regex=False)))
    yield bytewise("digits", sequence(
        "pretokenizers", {"type": "Digits", "individual_digits": False}, byte_level()))
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        yield bytewise(f"punctuation-{behavior}", sequence(
            "pretokenizers", {"type": "Punctuation", "behavior": behavior},
            byte_level(use_regex=False)))
    yield bytewise("bytes-then-split", sequence(
        "pretokenizers", byte_level(use_regex=False), split("Ġ", "MergedWithNext", kind="String")))
    yield bytewise("prefix-suffix", byte_level(), model=dict(
        bytes_model, continuing_subword_prefix="", end_of_word_suffix=""))
    yield bytewise("no-decoder", byte_level(), decoder=None, tokens=specials)

    for name, normalizer in {
            "nfc": nfc, "nfkc": {"type": "NFKC"}, "lowercase": {"type": "Lowercase"},
            "replace-regex": replace(r"\s+", " ", "Regex"), "replace-empty": replace("e", ""),
            "several": sequence("normalizers", {"type": "NFKC"}, {"type": "Lowercase"},
                                replace("a", "\u00e4"), sequence("normalizers", nfc)),
    }.items():
        yield bytewise(f"normalizer-{name}", byte_level(), normalizer=normalizer,
                       tokens=specials + flagged)

    llama = sequence("normalizers", {"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581"))
    sentence = [added("<unk>", special=True), added("<s>", special=True),
                added("</s>", special=True, rstrip=True)]
    normalized = [dict(token, normalized=True) for token in sentence]
    yield "llama2", document(pieces, normalizer=llama, decoder=llama_decoder, tokens=normalized,
                             post_processor=template(1, None))
    yield "mistral", document(pieces, normalizer=llama, decoder=llama_decoder,
                              tokens=sentence + flagged, post_processor=template(1, None, 2))
    for fuse in (False, True):
        for byte_tokens in (False, True):
            model = piece_model(rng, byte_tokens, fuse_unk=fuse)
            yield f"pieces-{fuse}-{byte_tokens}", document(
                model, normalizer=llama, decoder=llama_decoder, tokens=sentence)
    for scheme in ("first", "never", "always"):
        for do_split in (False, True):
            meta = metaspace(scheme, do_split)
            yield f"metaspace-{scheme}-{do_split}", document(
                pieces, pre_tokenizer=meta, decoder=llama_decoder, tokens=sentence + flagged)
            yield f"metaspace-decoder-{scheme}-{do_split}", document(
                pieces, pre_tokenizer=meta, decoder=meta, tokens=sentence,
                normalizer=replace("  ", " "))
    for name, decoder in {
            "strip-both": sequence("decoders", {"type": "Fuse"},
                                   {"type": "Strip", "content": "\u2581", "start": 2, "stop": 0}),
            "strip-tokens": sequence("decoders", {"type": "Strip", "content": "\u2581", "start": 1,
                                                  "stop": 0}),
            "replace-regex": sequence("decoders", replace("\u2581+", " ", "Regex")),
            "replace-fused": sequence("decoders", {"type": "Fuse"}, replace("\u2581a", " b ")),
            "fallback-only": {"type": "ByteFallback"},
            "fallback-metaspace": sequence("decoders", {"type": "ByteFallback"}, metaspace()),
    }.items():
        yield f"decoder-{name}", document(pieces, normalizer=llama, decoder=decoder, tokens=sentence)
    suffixed = dict(pieces, vocab=dict(pieces["vocab"]), end_of_word_suffix="</w>")
    for char in "aeotn":
        suffixed["vocab"][char + "</w>"] = len(suffixed["vocab"])
    yield "suffix", document(suffixed, pre_tokenizer=split(" ", "Removed", kind="String"))
    prefixed = dict(pieces, vocab=dict(pieces["vocab"]), continuing_subword_prefix="##")
    for char in "aeotnrls":
        prefixed["vocab"]["##" + char] = len(prefixed["vocab"])
    prefixed["vocab"]["Hello"] = prefixed["vocab"].get("Hello", len(prefixed["vocab"]))
    for joined in ("th", "wo", "He"):
        prefixed["vocab"].setdefault(joined, len(prefixed["vocab"]))
    prefixed["vocab"].setdefault("##en", len(prefixed["vocab"]))
    prefixed["merges"] = [["w", "##o"], ["##e", "##n"], ["H", "##e"]]
    yield "prefix", document(prefixed, pre_tokenizer=split(" ", "Removed", kind="String"))


def unigram_tokenizers(rng):
    """The pipelines of published models with a unigram vocabulary, and some more; name and document of each."""
    bytewise, plain = unigram_model(rng), unigram_model(rng, False)
    equal = unigram_model(rng, decimals=1)
    llama_decoder = sequence("decoders", replace("\u2581", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                             {"type": "Strip", "content": " ", "start": 1, "stop": 0})
    llama = sequence("normalizers", {"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581"))
    specials = [added("<unk>", special=True), added("<s>", special=True), added("</s>", special=True)]
    always, words = metaspace("always", True), sequence("pretokenizers", {"type": "WhitespaceSplit"},
                                                        metaspace("always", True))
    blanks = replace(" {2,}", "\u2581", "Regex")

    def strip(left, right):
        return {"type": "Strip", "strip_left": left, "strip_right": right}

    yield "unigram t5", document(plain, sequence("normalizers", CHARSMAP, strip(False, True), blanks), always,
                                 template(None, 2), always, specials)
    yield "unigram xglm", document(plain, CHARSMAP, words, template(2, None), always, specials)
    yield "unigram xlnet", document(plain, sequence(
        "normalizers", replace("``", '"'), {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, CHARSMAP,
        replace(" {2,}", " ", "Regex")), words, None, always, specials)
    for name, model in {"llama": bytewise, "equal scores": equal, "no bytes": plain}.items():
        yield f"unigram {name}", document(model, llama, None, template(1, None), llama_decoder, specials)
    yield "unigram split", document(bytewise, {"type": "NFD"}, sequence(
        "pretokenizers", split(r"\n|[0-9]"), metaspace("first", False)), None, llama_decoder, specials)
    yield "unigram whitespace", document(bytewise, strip(True, True), {"type": "Whitespace"}, None, None, specials)
    yield "unigram some bytes", document(dict(bytewise, vocab=bytewise["vocab"][:200] + bytewise["vocab"][262:]),
                                         llama, None, None, llama_decoder, specials)
    yield "unigram byte level", document(dict(plain, vocab=plain["vocab"] + [[c, -9.5] for c in BYTES.values() if all(
        c != piece for piece, _ in plain["vocab"])]), None, byte_level(), None, byte_level(), specials)


# --- tokenizers for every character --------------------------------------------------------------

def character_tokenizers():
    """Tokenizers whose ids show what each component makes of single characters."""
    model = model_of(BYTES.values(), [])
    lone_bytes = byte_level(use_regex=False)
    for name in ("NFC", "NFKC", "NFD", "NFKD", "StripAccents", "Lowercase"):
        yield name, document(model, normalizer={"type": name}, pre_tokenizer=lone_bytes,
                             decoder=byte_level())
    yield "charsmap", document(model, normalizer=charsmap({"½": "1"}), pre_tokenizer=lone_bytes,
                               decoder=byte_level())
    for name, kind in {"punctuation": {"type": "Punctuation", "behavior": "Removed"},
                       "digits": {"type": "Digits", "individual_digits": True},
                       "whitespace": {"type": "Whitespace"},
                       "whitespace split": {"type": "WhitespaceSplit"},
                       **{f"class {c}": split(c, "Removed") for c in (
                           r"\p{L}", r"\p{N}", r"\p{P}", r"\p{S}", r"\p{M}", r"\p{Lu}", r"\p{Ll}",
                           r"\p{Lo}", r"\p{Nd}", r"\s", r"\w", r"[\w]", r"\d", r"[^\s\p{L}\p{N}]",
                           r"\p{Han}", r"(?i:s)", "[[:punct:]]")}}.items():
        # The prefix that each word gets shows where words start.
        yield name, document(model, decoder=byte_level(), pre_tokenizer=sequence(
            "pretokenizers", kind, metaspace("always"), lone_bytes))
    for name, token in {"single_word": added("<x>", single_word=True),
                        "lstrip": added("<x>", lstrip=True),
                        "rstrip": added("<x>", rstrip=True)}.items():
        yield name, document(model, pre_tokenizer=lone_bytes, decoder=byte_level(), tokens=[token])
