import gzip
import json
import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyenc.data import (
    CLS,
    PAD,
    SEP,
    SPECIALS,
    UNK,
    DataError,
    Vocab,
    read_tsv,
    tokenise,
    write_atomically,
)

DATA = Path(__file__).parents[1] / "examples" / "data"
HELLO = Vocab(["hello", "a", "b", "h"])


# --- tokenise


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("A dumb movie, with dumb characters!", "a dumb movie , with dumb characters !"),
        ("It isn't rock’n’roll.", "it isn't rock'n'roll ."),
        ("'Stock up' on ''bullets''", "' stock up ' on ' ' bullets ' '"),
        ("well-known foo_bar 3.5%", "well - known foo _ bar 3 . 5 %"),
        ("宝石蓝的外壳", "宝 石 蓝 的 外 壳"),
        ("我爱NLP，上网20元/天!!", "我 爱 nlp , 上 网 20 元 / 天 ! !"),
        ("ＡＢＣ１２３", "abc123"),
        ("Cafe\u0301 CAFÉ naïve", "café café naïve"),
        ("हिन्दी भाषा", "हिन्दी भाषा"),
        ("x\u0301\u0302", "x\u0301\u0302"),
        ("good👍🏽👨\u200d👩\u200d👧❤\ufe0f🇨🇳🇫🇷", "good 👍🏽 👨\u200d👩\u200d👧 ❤\ufe0f 🇨🇳 🇫🇷"),
        ("𠮷𠮷野家", "𠮷 𠮷 野 家"),
        ("J\u030cℌ", "\u01f0h"),  # the accent joins the small letter only, and some capitals appear with NFKC
        ("zero\u200bwidth\ufeff \0nul\ud800", "zerowidth nul"),
        (" \t\r\n\u3000\xa0\u2028 ", ""),
        ("", ""),
    ],
)
def test_text_is_cut_into_words_characters_and_signs(text, tokens):
    assert tokenise(text) == tokens.split()


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_tokens_joined_by_spaces_give_the_same_tokens_again(text):
    tokens = tokenise(text)
    assert tokenise(" ".join(tokens)) == tokens


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(categories=["L", "N", "P", "S", "Z"], max_codepoint=0xFFFF)))
def test_no_letter_or_sign_is_lost_and_no_token_holds_a_space(text):
    tokens = tokenise(text)
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).lower().replace("\u2019", "'"))
    assert "".join(tokens) == "".join(plain.split())
    assert all(token and not any(c.isspace() for c in token) for token in tokens)


def test_composed_and_decomposed_text_have_the_same_tokens():
    text = "Déjà vu, naïve Ångström, 한국어"
    assert tokenise(unicodedata.normalize("NFD", text)) == tokenise(unicodedata.normalize("NFC", text))


def test_something_other_than_a_str_is_refused_by_name():
    with pytest.raises(TypeError, match="text must be a str, not NoneType"):
        tokenise(None)


# --- Vocab


def test_tokens_are_ordered_by_count_and_then_by_text_behind_the_specials():
    vocab = Vocab.from_texts(["b c a", "c b", "d c"])
    assert vocab.tokens == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "c", "b", "a", "d"]
    assert [vocab.ids[t] for t in SPECIALS] == [0, 1, 2, 3, 4]
    assert len(vocab) == 9


@given(st.permutations(["b c a", "c b", "d c", "我 爱 c", "e e f"]))
def test_order_of_the_texts_has_no_influence_on_the_vocabulary(texts):
    assert Vocab.from_texts(texts).tokens[5:] == ["c", "b", "e", "a", "d", "f", "我", "爱"]


def test_rare_tokens_are_left_out_by_count_and_by_size():
    texts = ["a a a b b c"]
    assert Vocab.from_texts(texts, min_count=2).tokens[5:] == ["a", "b"]
    assert Vocab.from_texts(texts, max_size=6).tokens[5:] == ["a"]
    assert len(Vocab.from_texts(texts, max_size=5)) == 5
    assert Vocab.from_texts([]).tokens == SPECIALS


def test_bad_arguments_of_a_vocabulary_are_named():
    with pytest.raises(ValueError, match="max_size 4 is less than the 5 special tokens"):
        Vocab.from_texts(["a"], max_size=4)
    with pytest.raises(TypeError, match="a collection of texts, not one str"):
        Vocab.from_texts("a b c")
    with pytest.raises(ValueError, match="token 'a' stands 2 times"):
        Vocab(["a", "b", "a"])
    with pytest.raises(ValueError, match=r"token '\[SEP\]' stands 2 times"):
        Vocab(["[SEP]"])


def test_unknown_words_are_unk_and_brackets_in_a_text_make_no_special_token():
    assert HELLO.encode("hello world") == [CLS, HELLO.ids["hello"], UNK, SEP]
    assert set(Vocab.from_texts(["sep"]).encode("[SEP][PAD]")[1:-1]).isdisjoint({PAD, CLS, SEP})


def test_empty_text_is_cls_and_sep():
    assert HELLO.encode("") == HELLO.encode(" \n") == [CLS, SEP]
    assert HELLO.encode_pair("", "") == ([CLS, SEP, SEP], [0, 0, 1])


def test_truncation_keeps_cls_and_sep():
    assert HELLO.decode(HELLO.encode("hello hello hello hello", 4)) == "hello hello"
    assert HELLO.encode("hello hello hello hello", 4) == [CLS, 5, 5, SEP]
    assert HELLO.encode("hello hello", 4) == [CLS, 5, 5, SEP]
    assert HELLO.encode("hello", 2) == [CLS, SEP]


def test_pair_loses_tokens_of_its_longer_text_first():
    ids, segments = HELLO.encode_pair("h h h h h", "a b", 8)
    assert [HELLO.tokens[i] for i in ids] == "[CLS] h h h [SEP] a b [SEP]".split()
    assert segments == [0, 0, 0, 0, 0, 1, 1, 1]
    ids, segments = HELLO.encode_pair("a b a b a", "h h h h h", 8)
    assert [HELLO.tokens[i] for i in ids] == "[CLS] a b a [SEP] h h [SEP]".split()


def test_pair_that_keeps_its_first_text_loses_tokens_of_the_second_only():
    ids, segments = HELLO.encode_pair("a b", "h h h h h h", 8, keep_first=True)
    assert [HELLO.tokens[i] for i in ids] == "[CLS] a b [SEP] h h h [SEP]".split()
    assert segments == [0, 0, 0, 0, 1, 1, 1, 1]
    ids, _ = HELLO.encode_pair("a b a b a", "h h h h", 9, keep_first=True)
    assert [HELLO.tokens[i] for i in ids] == "[CLS] a b a b a [SEP] h [SEP]".split()
    with pytest.raises(ValueError, match="the first text's 5 tokens and 3 specials exceed max_len 7"):
        HELLO.encode_pair("a b a b a", "h", 7, keep_first=True)


def test_length_without_room_for_the_specials_is_refused():
    with pytest.raises(ValueError, match="max_len 1 has no room for 2 special tokens"):
        HELLO.encode("hello", 1)
    with pytest.raises(ValueError, match="max_len 2 has no room for 3 special tokens"):
        HELLO.encode_pair("a", "b", 2)


@given(st.integers(0, 12), st.integers(0, 12), st.integers(3, 30))
def test_truncated_pair_fills_its_length_and_cuts_evenly(n_first, n_second, max_len):
    ids, segments = HELLO.encode_pair("a " * n_first, "b " * n_second, max_len)
    first, second = ids.count(HELLO.ids["a"]), ids.count(HELLO.ids["b"])
    assert len(ids) == len(segments) == min(n_first + n_second + 3, max_len)
    assert (ids[0], ids[first + 1], ids[-1], ids.count(SEP)) == (CLS, SEP, SEP, 2)
    assert segments == [0] * (first + 2) + [1] * (second + 1)
    assert first == n_first or second == n_second or first - second in (0, 1)
    assert first >= min(n_first, second) and second >= min(n_second, first - 1)


def test_words_carry_their_index_to_every_piece():
    vocab = Vocab(["jean", "-", "luc", "sings"])
    ids, word_ids = vocab.encode_words(["Jean-Luc", "\u200b", "sings"])
    assert [vocab.tokens[i] for i in ids] == ["[CLS]", "jean", "-", "luc", "[UNK]", "sings", "[SEP]"]
    assert word_ids == [None, 0, 0, 0, 1, 2, None]
    assert vocab.encode_words(["Jean-Luc", "sings"], 4) == ([CLS, 5, 6, SEP], [None, 0, 0, None])


def test_decoding_gives_text_back():
    vocab = Vocab.from_texts(["It isn't 我爱 nlp 。 20"])
    ids = vocab.encode("我爱NLP 。 it ISN'T 20")
    assert vocab.decode(ids) == "我爱 nlp 。 it isn't 20"
    assert vocab.decode(np.array([*ids, PAD, PAD])) == vocab.decode(ids)
    assert vocab.decode(vocab.encode("nlp我爱")) == "nlp 我爱"
    assert vocab.decode([CLS, UNK, 4, SEP]) == "[UNK] [MASK]"
    assert vocab.decode([]) == ""
    for id in (-1, len(vocab)):
        with pytest.raises(ValueError, match=f"token id {id} is not in 0 .. {len(vocab) - 1}"):
            vocab.decode([id])


@settings(deadline=None)
@given(st.text())
def test_decoded_text_has_the_tokens_that_were_encoded(text):
    vocab = Vocab.from_texts([text])
    assert tokenise(vocab.decode(vocab.encode(text))) == tokenise(text)


def test_saved_vocabulary_loads_equal(tmp_path):
    vocab = Vocab.from_texts(["the naïve 👍🏽 我爱 \u2028 \"'\\"])
    vocab.save(tmp_path / "vocab.json")
    assert Vocab.load(tmp_path / "vocab.json").tokens == vocab.tokens
    assert "我" in (tmp_path / "vocab.json").read_text(encoding="utf-8")
    assert [p.name for p in tmp_path.iterdir()] == ["vocab.json"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not a vocabulary"),
        (b"\x80\x04\x95pickle", "not a vocabulary"),
        (b"[1, 2]", "it has no specials and tokens"),
        (b"7", "it has no specials and tokens"),
        (b'{"tokens": ["a"]}', "it has no specials and tokens"),
        (json.dumps({"specials": SPECIALS[::-1], "tokens": ["a"]}).encode(), "its special tokens are not"),
        (
            json.dumps({"specials": SPECIALS, "tokens": "abc"}).encode(),
            "its tokens are not a list of strings",
        ),
        (
            json.dumps({"specials": SPECIALS, "tokens": ["a", 1]}).encode(),
            "its tokens are not a list of strings",
        ),
        (json.dumps({"specials": SPECIALS, "tokens": ["a", "a"]}).encode(), "token 'a' stands 2 times"),
        (b"[" * 100_000, "not a vocabulary"),
    ],
)
def test_file_that_is_no_vocabulary_is_refused_in_one_line(tmp_path, content, problem):
    path = tmp_path / "vocab.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=problem) as error:
        Vocab.load(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_vocabulary_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match="none.json: cannot be read: No such file"):
        Vocab.load(tmp_path / "none.json")


# --- files


def test_file_keeps_its_old_content_when_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.undo()
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


ROWS = [("1", "The story grips."), ("neg", '说"不" 👎')]


@pytest.mark.parametrize(
    "content",
    [
        '1\tThe story grips.\nneg\t说"不" 👎\n',
        '1\tThe story grips.\nneg\t说"不" 👎',
        '\ufeff1\tThe story grips.\r\nneg\t说"不" 👎\r\n',
        '\ufeff\r\n\r\n1 \t The story grips. \r\n \t \r\nneg\t说"不" 👎\r\n\r\n',
        '1\tThe story grips.\rneg\t说"不" 👎\r',
    ],
    ids=["plain", "no-last-end", "bom-crlf", "blank-lines", "cr"],
)
def test_rows_are_read_with_any_line_ends_plain_and_gzipped(tmp_path, content):
    (tmp_path / "a.tsv").write_bytes(content.encode("utf-8"))
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(content.encode("utf-8")))
    (tmp_path / "zipped.tsv").write_bytes(gzip.compress(content.encode("utf-8")))
    for name in ("a.tsv", "a.tsv.gz", "zipped.tsv"):
        assert read_tsv(tmp_path / name) == ROWS
        assert read_tsv(str(tmp_path / name)) == ROWS


def test_line_separators_within_a_text_do_not_end_its_row(tmp_path):
    (tmp_path / "a.tsv").write_bytes("1\tone\u2028two\x0bthree\x85four\n".encode())
    assert read_tsv(tmp_path / "a.tsv") == [("1", "one\u2028two\x0bthree\x85four")]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"1\tfine\nno tab here\n", ", line 2: 0 tabs, where label<TAB>text has one: 'no tab here'"),
        (b"1\tfine\r\n\r\n1\ttwo\tthree\r\n", ", line 3: 2 tabs, where label<TAB>text has one"),
        (b"1\tfine\n\ttext\n", ", line 2: no label in '\\ttext'"),
        (b"1\tfine\n1\t \n", ", line 2: no text in '1\\t '"),
        (b"1\tfine\n0\tcaf\xe9\n", ", line 2: not UTF-8 (byte 0xe9)"),
        ("1\tfine\n".encode("utf-16"), ", line 1: not UTF-8 (byte 0xff)"),
        (b"", ": no rows"),
        (b"\n \r\n\xef\xbb\xbf", ", line 3: 0 tabs"),
        (b"\xef\xbb\xbf", ": no rows"),
        (gzip.compress(b""), ": no rows"),
        (gzip.compress(b"1\tfine\n" * 99)[:-9], ": cannot be read: "),
        (b"\x1f\x8bgarbage", ": cannot be read: "),
        (gzip.compress(b"1\tfine\n")[:10] + b"\xff" * 20, ": cannot be read: "),
    ],
)
def test_bad_file_gives_one_line_with_its_name_and_the_place(tmp_path, content, problem):
    path = tmp_path / "bad.tsv"
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        read_tsv(path)
    assert str(error.value).startswith(f"{path}{problem}")
    assert "\n" not in str(error.value)


def test_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.tsv: cannot be read: No such file or directory$"):
        read_tsv(tmp_path / "none.tsv")
    with pytest.raises(DataError, match="cannot be read: "):
        read_tsv(tmp_path)


# --- the committed data


@pytest.mark.parametrize(("folder", "vocab_size"), [("en_reviews", 600), ("zh_reviews", 611)])
def test_overfit_sets_hold_fifty_different_texts_of_each_label(folder, vocab_size):
    rows = read_tsv(DATA / folder / "overfit100.tsv")
    assert sorted(label for label, _ in rows) == ["0"] * 50 + ["1"] * 50
    assert len({text for _, text in rows}) == 100
    assert len(Vocab.from_texts(text for _, text in rows)) == vocab_size


def test_review_parts_share_no_sentence_and_have_both_labels():
    parts = {name: read_tsv(DATA / "en_reviews" / f"{name}.tsv.gz") for name in ("train", "valid", "test")}
    assert {name: len(rows) for name, rows in parts.items()} == {"train": 7069, "valid": 988, "test": 2013}
    texts = [" ".join(tokenise(text)) for rows in parts.values() for _, text in rows]
    assert len(set(texts)) == len(texts)
    for rows in parts.values():
        assert 0.48 < sum(label == "1" for label, _ in rows) / len(rows) < 0.52
        assert {label for label, _ in rows[:20]} == {"0", "1"}  # mixed, not one label after the other
    assert ("1", "Sleek and arty.") in parts["test"]


def test_committed_data_have_their_source_and_licence_and_stay_small():
    for folder in DATA.iterdir():
        assert {"SOURCE.txt", "LICENSE.txt"} <= {path.name for path in folder.iterdir()}
        assert "Licence" in (folder / "SOURCE.txt").read_text(encoding="utf-8")
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) < 1_000_000
