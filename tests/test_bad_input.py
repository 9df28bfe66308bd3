"""What a caller may get wrong at a model's front door: one line that names the values, before any work."""

import numpy as np
import pytest
from support import padded_batch, small_classifier

from tinyenc import CrossEntropy, Tape

IDS, TOKENS = padded_batch([5, 3])
FULL = np.ones((2, 1, 5, 5), bool)


def ids_with(wrong):
    ids = IDS.copy()
    ids[1, 2] = wrong
    return ids


CASES = {  # what is wrong: (ids, mask, error, what the message says)
    "id too large": (ids_with(40), TOKENS, IndexError, "token id 40 is outside the table of 40 tokens (0 to 39)"),
    "id far too large": (ids_with(2**31), TOKENS, IndexError, "token id 2147483648 is outside"),
    "id negative": (ids_with(-1), TOKENS, IndexError, "token id -1 is outside"),
    "id wrong at padding": (np.where(TOKENS, IDS, 99), TOKENS, IndexError, "token id 99 is outside"),
    "float ids": (IDS.astype(np.float32), TOKENS, TypeError, "token ids must be integers, got float32"),
    "boolean ids": (IDS > 3, TOKENS, TypeError, "token ids must be integers, got bool"),
    "one sequence without its batch": (IDS[0], TOKENS[0], ValueError, "got shape (5,)"),
    "ids of three axes": (IDS[None], TOKENS[None], ValueError, "got shape (1, 2, 5)"),
    "no sequences": (IDS[:0], TOKENS[:0], ValueError, "not empty, got shape (0, 5)"),
    "no tokens": (IDS[:, :0], TOKENS[:, :0], ValueError, "not empty, got shape (2, 0)"),
    "too long": (np.ones((2, 65), int), np.ones((2, 65), bool), ValueError,
                 "sequence length 65 is more than max_len 64"),
    "mask of other width": (IDS, TOKENS[:, :4], ValueError,
                            "mask of shape (2, 4) does not fit a batch of shape (2, 5)"),
    "mask of other batch": (IDS, TOKENS[:1], ValueError, "mask of shape (1, 5) does not fit a batch of shape (2, 5)"),
    "mask transposed": (IDS, TOKENS.T, ValueError, "mask of shape (5, 2) does not fit"),
    "float mask": (IDS, TOKENS * 1.0, TypeError, "a mask is boolean (True keeps) or 0/1 integers, got float64"),
    "additive mask": (IDS, (TOKENS - 1) * 10000, ValueError,
                      "an integer mask holds 0 and 1, got values from -10000 to 0"),
}
CASES_OF_ENCODER = CASES | {
    "attention mask of other length": (IDS, FULL[..., :4], ValueError,
                                       "mask of shape (2, 1, 5, 4) does not broadcast to "
                                       "(batch, heads, queries, keys) (2, 4, 5, 5)"),
    "attention mask of other batch": (IDS, FULL.repeat(2, 0), ValueError, "(4, 1, 5, 5) does not broadcast"),
    "attention mask of other heads": (IDS, FULL.repeat(3, 1), ValueError, "(2, 3, 5, 5) does not broadcast"),
    "attention mask without heads": (IDS, FULL[:, 0], ValueError, "(2, 5, 5) does not broadcast"),
}


def assert_refused(model, ids, mask, error, said):
    tape, before = Tape(seed=0), (ids.copy(), mask.copy())
    fresh = Tape(seed=0)
    with pytest.raises(error) as raised:
        model.forward(ids, mask, tape)
    assert type(raised.value) is error  # and not a subclass of it out of NumPy's depths
    assert said in str(raised.value) and "\n" not in str(raised.value)
    assert np.array_equal(ids, before[0]) and np.array_equal(mask, before[1])
    assert len(tape) == 0 and tape.next_seed() == fresh.next_seed()  # before any work


@pytest.mark.parametrize("case", CASES_OF_ENCODER.values(), ids=CASES_OF_ENCODER)
def test_encoder_refuses(case):
    assert_refused(small_classifier(dropout=0.1).encoder, *case)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_classifier_refuses(case):
    assert_refused(small_classifier(dropout=0.1), *case)


LOGITS = np.zeros((2, 3, 4), np.float32)
LABELS = np.array([[0, 3, -100], [1, 2, 0]])


def labels_with(wrong):
    labels = LABELS.copy()
    labels[1, 1] = wrong
    return labels


@pytest.mark.parametrize(("targets", "error", "said"), [
    (labels_with(4), IndexError, "target 4 is not one of 4 classes, nor -100, to ignore"),
    (labels_with(-1), IndexError, "target -1 is not one of 4 classes"),
    (LABELS * 1.0, TypeError, "targets must be integers, got float64"),
    (LABELS > 0, TypeError, "targets must be integers, got bool"),
    (LABELS[:, :2], ValueError, "targets of shape (2, 2) do not fit logits of shape (2, 3, 4)"),
    (LABELS.ravel(), ValueError, "targets of shape (6,) do not fit logits of shape (2, 3, 4)"),
    (LABELS[..., None], ValueError, "targets of shape (2, 3, 1) do not fit logits of shape (2, 3, 4)"),
    (np.eye(4, dtype=int)[LABELS % 4], ValueError, "targets of shape (2, 3, 4) do not fit logits of shape (2, 3, 4)"),
], ids=["too large", "negative", "float", "boolean", "too few", "flat", "extra axis", "one-hot"])
def test_loss_refuses_targets(targets, error, said):
    tape, before = Tape(), targets.copy()
    with pytest.raises(error) as raised:
        CrossEntropy().forward(LOGITS, targets, tape)
    assert said in str(raised.value) and "\n" not in str(raised.value)
    assert np.array_equal(targets, before) and len(tape) == 0


def test_ids_and_labels_at_the_ends_of_their_ranges_are_accepted():
    model = small_classifier()
    ids = IDS.copy()
    ids[0, :2] = [0, 39]
    assert np.isfinite(model(ids, TOKENS)).all()
    assert np.isfinite(CrossEntropy()(LOGITS, LABELS))
