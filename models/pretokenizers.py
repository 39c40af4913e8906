"""The pre-tokenizers that GGUF files name: how text is cut into words before byte-pair merges.

Owns the table from the `tokenizer.ggml.pre` name to the cutting rules. Each rule is a published property of a model
family; llama.cpp's list of names (src/llama-vocab.cpp) says which names share one. Rules of a family run in order, each
cutting the pieces that the one before it left. Does not know vocabularies, special tokens or files. Pure; any thread.
"""

from dataclasses import dataclass
from difflib import get_close_matches

from tokenizers import Regex, pre_tokenizers

from models.errors import UnsupportedArchitecture, shown

# Common parts, in Oniguruma syntax. A word takes one leading space (GPT-2) or any one leading non-letter (GPT-4 style).
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_CASED_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_CJK = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_ASCII_PUNCTUATION = r"[!-/:-@\[-`{-~]"


def _join(*alternatives: str) -> str:
    return "|".join(alternatives)


_DIGIT_WORDS = (r"\p{N}", _GPT2_WORDS)
_THREE_DIGITS = (_join(_CONTRACTIONS, _WORD, r"\p{N}{1,3}", _SYMBOLS, _SPACES),)
_ONE_DIGIT = (_join(_CONTRACTIONS, _WORD, r"\p{N}", _SYMBOLS, _SPACES),)
_MARKED_WORDS = (_join(_CONTRACTIONS, _LEAD + r"[\p{L}\p{M}]+", r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _SPACES),)
_TEKKEN = (
    _join(
        f"{_LEAD}{_UPPER}*{_LOWER}+",
        f"{_LEAD}{_UPPER}+{_LOWER}*",
        r"\p{N}",
        _CASED_SYMBOLS,
        _SPACES,
    ),
)
_O200K = (
    _join(
        f"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?",
        f"{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?",
        r"\p{N}{1,3}",
        _CASED_SYMBOLS,
        _SPACES,
    ),
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    _CJK,
    _join(
        _ASCII_PUNCTUATION + "[A-Za-z]+",
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
        r" ?[\p{P}\p{S}]+[\r\n]*",
        _SPACES,
    ),
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
_FALCON = (r"[\p{P}$+<=>^~|`]+", _GPT2_WORDS, "[0-9][0-9][0-9]")
_UNNAMED = (r"[\p{P}$+<=>^~|]+", _GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]")
_BLOOM = (r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+",)
_BAILING = (_join(r"'(?i:[sdmt]|ll|ve|re)", _WORD, r"\p{N}", _SYMBOLS, r"\s*[\r\n]", r"\s+(?!\S)", r"\s+"),)
_SEED_CODER = (_join(_CONTRACTIONS, _WORD, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+", _SPACES),)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """How one model family cuts text, and the defaults that come with its name."""

    rules: tuple[str, ...]
    ignore_merges: bool = False  # a whole word that is in the vocabulary is taken without merging
    add_bos: bool = False  # when the file itself doesn't say

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The same rules for the `tokenizers` library, ending with bytes written as characters."""
        stages = [_stage(rule) for rule in self.rules]
        return pre_tokenizers.Sequence([*stages, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _stage(rule: str) -> pre_tokenizers.PreTokenizer:
    if rule == r"\p{N}":
        return pre_tokenizers.Digits(individual_digits=True)  # the same cut, without a regex engine
    return pre_tokenizers.Split(Regex(rule), behavior="isolated")


_FAMILIES: tuple[tuple[PreTokenizer, tuple[str, ...]], ...] = (
    (PreTokenizer(rules=_UNNAMED), ("default",)),
    (
        PreTokenizer(rules=(_GPT2_WORDS,)),
        ("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "trillion", "granite-docling", "mellum", "gigachat"),
    ),
    (
        PreTokenizer(rules=_DIGIT_WORDS),
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
    ),
    (
        PreTokenizer(rules=_THREE_DIGITS, ignore_merges=True, add_bos=True),
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    ),
    (PreTokenizer(rules=_THREE_DIGITS), ("dbrx", "smaug-bpe", "glm4", "chatglm-bpe")),
    (
        PreTokenizer(rules=_ONE_DIGIT),
        ("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "grok-2", "solar-open"),
    ),
    (PreTokenizer(rules=_MARKED_WORDS), ("qwen35",)),
    (PreTokenizer(rules=_TEKKEN, ignore_merges=True, add_bos=True), ("tekken",)),
    (PreTokenizer(rules=_O200K), ("gpt-4o", "llama4", "kanana2", "minimax-m2")),
    (PreTokenizer(rules=_DEEPSEEK3), ("deepseek-v3", "hunyuan-dense", "joyai-llm")),
    (PreTokenizer(rules=_DEEPSEEK_CODER), ("deepseek-coder",)),
    (PreTokenizer(rules=_FALCON), ("falcon",)),
    (PreTokenizer(rules=_BLOOM), ("bloom", "poro-chat", "gpt3-finnish")),
    (PreTokenizer(rules=(*_BLOOM, r"\p{N}")), ("viking",)),
    (PreTokenizer(rules=_BAILING), ("bailingmoe", "bailingmoe2", "llada-moe")),
    (PreTokenizer(rules=_SEED_CODER), ("seed-coder",)),
)
PRE_TOKENIZERS = {name: family for family, names in _FAMILIES for name in names}


def pre_tokenizer(name: str) -> PreTokenizer:
    """The rules that a GGUF's `tokenizer.ggml.pre` names.

    Raises UnsupportedArchitecture for an unknown name: guessing would give subtly wrong tokens.
    """
    found = PRE_TOKENIZERS.get(name)
    if found is not None:
        return found
    nearest = get_close_matches(name, PRE_TOKENIZERS, n=1)
    hint = f" (the nearest known is {shown(nearest[0])})" if nearest else ""
    raise UnsupportedArchitecture(
        f"This model cuts text by the rules named {shown(name)}, which Inglenook doesn't know{hint}; "
        "use a model of another family or a newer Inglenook."
    )
