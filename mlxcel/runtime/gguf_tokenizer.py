"""Tokenizer files in Hugging Face layout from the vocabulary inside a GGUF file.

Byte-level BPE (``gpt2``) keeps its merges in the file and needs the right
pre-tokenizer; SentencePiece BPE (``llama``) has scores, from which the merges follow.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxcel.errors import LoadError
from mlxcel.runtime.gguf_read import GgufFile

__all__ = ["Vocabulary", "read_vocabulary", "write_tokenizer"]

_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6
_UNK = 2
_ROLES = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "pad": "padding",
    "eot": "eot",
    "eom": "eom",
}
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# None: digits one by one, then GPT-2's own pattern.
_PATTERNS: dict[str, str | None] = {
    "smollm": None,
    "gpt-2": "",
    "llama-bpe": _LLAMA3,
    "qwen2": _QWEN2,
}
# Ends of a turn, under the names that chat models give them.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a GGUF file.

    Attributes
    ----------
    tokens : list of str
        By id, as the file spells them.
    types : list of int
        GGUF token type of each (3 is control, 4 user-defined, 6 a byte).
    special : dict of str to int
        Role (``bos``, ``eos``, ``unk``, ``pad``, ``eot``, ``eom``) to id, where the file
        names one.
    stops : list of int
        Ids that end generation: the end of text, and the end of a chat turn if there is one.
    """

    tokens: list[str]
    types: list[int]
    special: dict[str, int]
    stops: list[int]


def read_vocabulary(file: GgufFile) -> Vocabulary:
    """Read the tokens of a GGUF file and check that they agree with each other.

    Raises
    ------
    LoadError
        A list is missing or of another length, a token appears twice, an id is out of range.
    """
    tokens = file.texts("tokenizer.ggml.tokens")
    types = file.integers("tokenizer.ggml.token_type")
    if len(types) != len(tokens):
        raise LoadError(f"{file.path}: {len(tokens)} tokens but {len(types)} token types")
    seen: set[str] = set()
    for token in tokens:
        if token in seen:
            raise LoadError(f"{file.path}: token {token!r} appears twice in the vocabulary")
        seen.add(token)
    special = {}
    for role, name in _ROLES.items():
        key = f"tokenizer.ggml.{name}_token_id"
        if file.has(key):
            special[role] = file.integer(key)
            if not 0 <= special[role] < len(tokens):
                raise LoadError(
                    f"{file.path}: {key} is {special[role]}, the vocabulary has {len(tokens)}"
                )
    stops = [special[role] for role in ("eos", "eot", "eom") if role in special]
    stops += [i for i, t in enumerate(tokens) if t in _TURN_ENDS and types[i] == _CONTROL]
    return Vocabulary(tokens, types, special, list(dict.fromkeys(stops)))


def write_tokenizer(file: GgufFile, words: Vocabulary, folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` into ``folder``.

    Parameters
    ----------
    file : GgufFile
        Source of merges, scores and chat template.
    words : Vocabulary
        From `read_vocabulary`.
    folder : Path
        An existing folder.

    Raises
    ------
    LoadError
        The vocabulary is incomplete, contradicts itself, or is of a kind not built here.
    """
    vocab = {token: i for i, token in enumerate(words.tokens)}
    model = file.text("tokenizer.ggml.model")
    try:
        if model == "gpt2":
            tokenizer = _byte_level(file, vocab)
        elif model == "llama":
            tokenizer = _sentencepiece(file, vocab, words.types)
        else:
            raise LoadError(
                f"{file.path}: tokenizer model {model!r} is not supported; gpt2 and llama are"
            )
    except LoadError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception
        raise LoadError(f"{file.path}: the tokenizer cannot be built: {error}") from error
    _add_special(tokenizer, words)
    _add_bos(file, tokenizer, words, default=model == "llama")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.dumps(_config(file, words), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(config, encoding="utf-8")


def _byte_level(file: GgufFile, vocab: dict[str, int]) -> Any:
    """Byte-level BPE with the pre-tokenizer that the file names."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    name = file.text("tokenizer.ggml.pre", "(none)")
    name = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "gpt2": "gpt-2"}.get(name, name)
    if name not in _PATTERNS:
        raise LoadError(
            f"{file.path}: pre-tokenizer {name!r} is not supported; {', '.join(_PATTERNS)} are"
        )
    merges = [_pair(file, merge) for merge in file.texts("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=name == "llama-bpe"))
    pattern = _PATTERNS[name]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern)
    if pattern == "":
        tokenizer.pre_tokenizer = byte_level
    else:
        split = (
            pre_tokenizers.Digits(individual_digits=True)
            if pattern is None
            else pre_tokenizers.Split(Regex(pattern), "isolated")
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pair(file: GgufFile, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise LoadError(f"{file.path}: merge {merge!r} is not two tokens")
    return left, right


def _sentencepiece(file: GgufFile, vocab: dict[str, int], types: Sequence[int]) -> Any:
    """SentencePiece BPE as the Llama family uses it: byte fallback, a space put in front."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = file.numbers("tokenizer.ggml.scores")
    if len(scores) != len(vocab):
        raise LoadError(f"{file.path}: {len(vocab)} tokens but {len(scores)} scores")
    missing = [i for i in range(256) if f"<0x{i:02X}>" not in vocab]
    if missing:
        raise LoadError(f"{file.path}: the vocabulary has no byte token <0x{missing[0]:02X}>")
    unk = next((token for token, i in vocab.items() if types[i] == _UNK), None)
    merges = _merges(vocab, types, scores)
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token=unk, fuse_unk=True, byte_fallback=True)
    )
    replace = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if file.flag("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = replace
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges(
    vocab: dict[str, int], types: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Every way to put a piece together, best score first: SentencePiece's own order."""
    special = (_UNK, _CONTROL, _USER_DEFINED, _BYTE)
    pieces = {token: i for token, i in vocab.items() if types[i] not in special}
    found = []
    for token, i in pieces.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in pieces and right in pieces:
                found.append((-scores[i], pieces[left], pieces[right], left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def _add_special(tokenizer: Any, words: Vocabulary) -> None:
    """Mark control tokens as special, and keep user-defined ones in one piece."""
    from tokenizers import AddedToken

    for kind, special in ((_CONTROL, True), (_UNK, True), (_USER_DEFINED, False)):
        added = [
            AddedToken(token, special=special, normalized=False)
            for token, its in zip(words.tokens, words.types, strict=True)
            if its == kind
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)


def _add_bos(file: GgufFile, tokenizer: Any, words: Vocabulary, *, default: bool) -> None:
    """Put the begin and end tokens around every text, where the file says so."""
    from tokenizers import processors

    tokens, ids = words.tokens, words.special
    default = default or file.text("tokenizer.ggml.pre", "") in ("llama-bpe", "llama3", "llama-v3")
    before = after = ""
    used = []
    if "bos" in ids and file.flag("tokenizer.ggml.add_bos_token", default):
        used.append((tokens[ids["bos"]], ids["bos"]))
        before = f"{tokens[ids['bos']]} "
    if "eos" in ids and file.flag("tokenizer.ggml.add_eos_token", False):
        used.append((tokens[ids["eos"]], ids["eos"]))
        after = f" {tokens[ids['eos']]}"
    if used:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{before}$A{after}", pair=f"{before}$A{after} $B:1", special_tokens=used
        )


def _config(file: GgufFile, words: Vocabulary) -> dict[str, Any]:
    """Contents of ``tokenizer_config.json``."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    for role in ("bos", "eos", "unk", "pad"):
        if role in words.special:
            config[f"{role}_token"] = words.tokens[words.special[role]]
    key = f"{file.text('general.architecture')}.context_length"
    if file.has(key):
        config["model_max_length"] = file.integer(key)
    if file.has("tokenizer.chat_template"):
        config["chat_template"] = file.text("tokenizer.chat_template")
    return config
