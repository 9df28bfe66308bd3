"""The tokenizer of a Hugging Face folder, set up as the model beside it needs it."""

import math
from pathlib import Path

from ..data.files import DataError
from .config import Config, read_object

SPECIALS = {"unk_token": "[UNK]", "sep_token": "[SEP]", "cls_token": "[CLS]", "pad_token": "[PAD]",
            "mask_token": "[MASK]"}  # fmt: skip
SPARE_ROWS = 1000  # by so much may an embedding table exceed the vocabulary: many are rounded up to a multiple
ENDLESS = 10**8  # a model_max_length above this, often 1e30, says that there is none
PADDED_POSITIONS = ("roberta", "xlm-roberta", "camembert")  # these count positions from pad_token_id + 1


def load_tokenizer(folder, max_len=None):
    """A `tokenizers.Tokenizer` from `tokenizer.json`, or from `vocab.txt` and `tokenizer_config.json` (WordPiece).

    It never pads (some files would pad every text to a fixed length), and cuts at `max_len` ids, specials
    included; without one at what the folder says: `max_seq_length` of `sentence_bert_config.json`, else
    `model_max_length` of `tokenizer_config.json`, and the model's positions in any case.

    DataError, naming the file: missing, corrupt, without a special token, or with ids that do not fit the
    `vocab_size` of `config.json`. ValueError: a `max_len` beyond the positions or too small for the specials.
    """
    tokenizers = _library()
    folder = Path(folder)
    model = _config(folder, "config.json")
    settings = _config(folder, "tokenizer_config.json", {})
    sentence = _config(folder, "sentence_bert_config.json", {})

    if (folder / "tokenizer.json").exists():
        path = folder / "tokenizer.json"
        tokenizer = _from_json(tokenizers, path)
    elif (folder / "vocab.txt").exists():
        path = folder / "vocab.txt"
        tokenizer = _from_vocab(tokenizers, path, settings)
    else:
        raise DataError(f"{folder}: neither tokenizer.json nor vocab.txt")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    _check_ids(path, tokenizer, model)

    if sentence.flag("do_lower_case", False):
        parts = [tokenizers.normalizers.Lowercase(), tokenizer.normalizer]
        tokenizer.normalizer = tokenizers.normalizers.Sequence([part for part in parts if part])
    limit = _limit(model, settings, sentence, max_len)
    if limit < tokenizer.num_special_tokens_to_add(is_pair=False):
        raise ValueError(f"max_len {limit} has no room for the special tokens")
    if limit < ENDLESS:
        tokenizer.enable_truncation(limit)
    return tokenizer


def _library():
    try:
        import tokenizers
    except ImportError:
        raise RuntimeError(
            'a pretrained tokenizer needs the library tokenizers: pip install "tinyenc[pretrained]"'
        ) from None
    return tokenizers


def _config(folder, name, missing=None):
    """The Config in a file of the folder; where there is no such file, of `missing`, or DataError without it."""
    path = folder / name
    return Config(read_object(path) if missing is None or path.exists() else missing, path)


def _from_json(tokenizers, path):
    try:
        return tokenizers.Tokenizer.from_buffer(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except Exception as error:  # the library raises this very class
        raise DataError(f"{path}: not a tokenizer: {_one_line(error)}") from None


def _from_vocab(tokenizers, path, settings):
    """BERT's own tokenizer: basic cleaning and splitting, then the longest pieces of `path`, one token a line."""
    try:
        lines = path.read_bytes().decode("utf-8").replace("\r\n", "\n").removesuffix("\n").split("\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}") from None
    ids = {token: id for id, token in enumerate(lines)}
    specials = {key: _content(settings.get(key), default) for key, default in SPECIALS.items()}
    for token in specials.values():
        if token not in ids:
            raise DataError(f"{path}: no {token} among its {len(lines)} tokens")
    settings.require("do_basic_tokenize", True)
    lower = settings.flag("do_lower_case", True)
    strip_accents = lower if settings.get("strip_accents") is None else settings.flag("strip_accents", lower)

    unk, cls, sep = (specials[key] for key in ("unk_token", "cls_token", "sep_token"))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token=unk))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        lowercase=lower,
        strip_accents=strip_accents,
        handle_chinese_chars=settings.flag("tokenize_chinese_chars", True),
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing((sep, ids[sep]), (cls, ids[cls]))
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.add_special_tokens(list(specials.values()))
    return tokenizer


def _content(entry, default):
    """The text of a special token, which a config writes plainly or as an object."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else default


def _check_ids(path, tokenizer, model):
    """DataError unless every id has a row in the model's table, and nearly every row has an id."""
    try:
        trial = tokenizer.encode("\u2603").ids  # unknown to most: needs [UNK], and the specials around it
    except Exception as error:
        raise DataError(f"{path}: the tokenizer fails: {_one_line(error)}") from None
    highest = max([*tokenizer.get_vocab(with_added_tokens=True).values(), *trial], default=-1)
    rows = model.size("vocab_size")
    if not rows - SPARE_ROWS <= highest + 1 <= rows:
        raise DataError(f"{path}: ids go up to {highest}, but vocab_size in {model.path} is {rows}")


def _limit(model, settings, sentence, max_len):
    """The most ids that a text may have; infinity where nothing bounds it."""
    positions = model.index("max_position_embeddings") or math.inf
    if model.get("model_type") in PADDED_POSITIONS:
        positions -= model.index("pad_token_id", 1) + 1
    if max_len is not None:
        if max_len > positions:
            raise ValueError(f"max_len {max_len} exceeds the {positions} positions of the model")
        return max_len
    for config, key in (sentence, "max_seq_length"), (settings, "model_max_length"):
        if config.get(key) is not None:
            return min(math.ceil(config.positive(key)), positions)
    return positions


def _one_line(error):
    return " ".join(str(error).split())[:200]
