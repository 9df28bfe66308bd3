import numpy as np
import pytest
from support import padded_batch, small_classifier, small_encoder

from tinyenc import Classifier, FirstPool, MeanPool, Tape, padding_mask


def test_logits_are_the_head_on_the_pooled_states():
    model = small_classifier()
    ids, mask = padded_batch([5, 3])
    pooled = model.pool(model.encoder(ids, mask), mask)
    assert np.array_equal(model(ids, mask), model.out(pooled))
    assert model(ids, mask).shape == (2, 3)


def test_pool_is_the_mean_unless_another_is_given():
    assert isinstance(Classifier(small_encoder(), 2).pool, MeanPool)
    ids, mask = padded_batch([5, 3])
    assert not np.allclose(small_classifier()(ids, mask), small_classifier(pool=FirstPool())(ids, mask))


# A04
def test_every_form_of_a_padding_mask_means_the_same():
    model = small_classifier()
    ids, tokens = padded_batch([5, 3])
    expected = model(ids, tokens)
    for mask in tokens.astype(int), padding_mask(tokens), padding_mask([5, 3]), tokens.tolist():
        assert np.array_equal(model(ids, mask), expected)
        assert np.array_equal(model(ids.tolist(), mask), expected)


@pytest.mark.parametrize(("mask", "error", "said"), [
    (np.ones((2, 4), int), ValueError, r"\(2, 4\) does not fit a batch of shape \(2, 5\)"),
    (np.ones((2, 1, 5, 5), bool), ValueError, r"\(2, 1, 5, 5\) does not fit a batch of shape \(2, 5\)"),
    (np.ones((2, 5), np.float32), TypeError, "got float32"),
    (np.full((2, 5), 3), ValueError, "from 3 to 3"),
])
def test_wrong_mask_is_refused_before_any_work(mask, error, said):
    model, tape = small_classifier(), Tape()
    ids, _ = padded_batch([5, 3])
    with pytest.raises(error, match=said):
        model.forward(ids, mask, tape)
    assert len(tape) == 0


def test_dropout_falls_on_the_pooled_vector_too():
    model = Classifier(small_encoder(dropout=0.0), 3, dropout=0.9, rng=0).astype(np.float64)
    ids, mask = padded_batch([5] * 200)
    logits = model.forward(ids, mask, Tape(seed=0))
    assert 0.1 < (logits == model.out.bias.data).all(axis=1).mean() < 0.3  # 0.9^16 = 0.19 of the rows lose all


@pytest.mark.parametrize("n_classes", [1, 0, -2])
def test_fewer_than_two_classes_are_refused(n_classes):
    with pytest.raises(ValueError, match=f"at least 2 classes, got {n_classes}"):
        Classifier(small_encoder(), n_classes)
